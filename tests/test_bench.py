"""`relume bench`: what it reports, and how it treats engines that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.chart import chart
from typer.testing import CliRunner, Result

import models
import relume
from relume.base import targets
from relume.cli import app
from relume.cli.bench import engines
from relume.cli.bench.measure import Spread
from relume.cli.bench.work import drawn, multiply_adds
from relume.cli.console import UsageError
from relume.codegen import peak


def bench(*words: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_a_model_beside_a_peer_that_is_there_and_one_that_is_not() -> None:
    done = bench(models.DIGITS, "--vs", "onnxruntime,torch", "--rounds", 2, "--nodes", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    ours, theirs, absent = (report["engines"][name] for name in ("relume", "onnxruntime", "torch"))
    assert report["clock"] == "processor" and report["threads"] == 1 and len(report["cpus"]) == 1
    assert 0 < ours["seconds"]["low"] <= ours["seconds"]["median"] <= ours["seconds"]["high"]
    assert theirs["difference"] < 1e-4 and ours["facts"]["memory_bytes"] > 0
    assert "not installed" in absent["absent"] or "--torch" in absent["absent"]
    assert report["best"] == "onnxruntime" and report["ratio"]["median"] > 0
    assert 0 < report["share"]["median"] < 1.2
    assert report["cold_s"] > report["cached_s"] > 0
    assert ours["facts"]["arena_bytes"] >= ours["facts"]["live_bytes"] > 0
    assert len(report["nodes"]) > 3


def test_a_peer_that_cannot_run_the_model_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "text.rlm"
    path.write_text("func @main(%x : f32[4]) {\n  %y = relu(%x)\n  return %y\n}\n")
    done = bench(path, "--vs", "onnxruntime", "--rounds", 1)
    assert done.exit_code == 0, done.output
    assert "onnxruntime: not measured" in done.output and "best peer" not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vs", "tvm"], "--vs tvm"),
        (["--threads", "65"], "--threads 65"),
        (["--dim", "N"], "--dim N"),
        (["--torch", "nowhere.pt2"], "--torch nowhere.pt2"),
        (["--input", "wrong=x.npy", "--input", "y=x.npy"], "--input"),
    ],
)
def test_wrong_usage_is_refused(words: list[str], said: str) -> None:
    done = bench(models.DIGITS, *words)
    assert done.exit_code == 2 and said in done.output


def test_open_extents_of_drawn_inputs_must_be_given_but_for_the_first() -> None:
    fn = relume.parse("func @main(%x : f32[N,3,H], %k : i64[H]) {\n  %y = relu(%x)\n  return %y\n}\n").main
    with pytest.raises(UsageError, match="--dim H"):
        drawn(fn, {}, {})
    assert drawn(fn, {}, {"H": 5})["x"].shape == (1, 3, 5)
    given = np.ones((2, 3, 7), np.float32)
    arrays = drawn(fn, {"x": given}, {})
    assert arrays["x"] is given and arrays["k"].shape == (7,) and set(arrays["k"].tolist()) <= {0, 1}


def test_multiply_adds_are_those_of_convolutions_and_products() -> None:
    text = """func @main(%x : f32[N,4,H,H], %w : f32[6,2,3,3], %a : f32[N,5,7]) {
      %y = conv(%x, %w, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], groups=2)
      %b = transpose(%a, perm=[0,2,1])
      %z = matmul(%a, %b)
      return %y, %z
    }"""
    shapes = {"x": (3, 4, 8, 8), "w": (6, 2, 3, 3), "a": (3, 5, 7)}
    assert multiply_adds(relume.parse(text).main, shapes) == 3 * 6 * 64 * 2 * 9 + 3 * 5 * 5 * 7


def test_the_peak_is_what_the_registers_say() -> None:
    _, narrow = peak.peak(targets.AVX2)
    _, wide = peak.peak(targets.AVX512)
    assert wide == 2 * narrow == 2 * 8 * peak.CHAINS * peak.UNROLLED


def test_engines_say_why_they_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    job = engines.Job("m.onnx", 1)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name)
    assert "--torch" in str(engines.ENGINES["torch"].absent(job))
    assert engines.ENGINES["torch"].absent(engines.Job("m.onnx", 1, program="m.pt2")) is None
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert engines.ENGINES["openvino"].absent(job) == "openvino is not installed"


def test_a_spread_is_median_and_percentiles() -> None:
    assert Spread.of([1.0, 2.0, 3.0]) == Spread(2.0, pytest.approx(1.2), pytest.approx(2.8))


def test_the_chart_shows_every_model_and_number() -> None:
    text = chart({"a<b": {1: 2.0, 2: 0.5}, "c": {1: 9.0}}, {1: 4.2}, [1, 2])
    assert "a&lt;b" in text and text.count(">2.00<") == 1 and ">9.00<" in text and ">4.20<" in text
    assert text.startswith("<svg") and text.endswith("</svg>\n")
