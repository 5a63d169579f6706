"""Traced runs: the same bits, a time for every instruction, and nothing of it in code that is not traced."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import models
import relume
from relume import codegen, pipeline
from relume.base import targets
from relume.cli import app
from relume.cli.trace import compile_traced, node_times
from relume.codegen import Cache
from relume.runtime import Executable
from relume.runtime.trace import record, recorder


@pytest.mark.parametrize("threads", [1, 2])
def test_a_traced_run_gives_the_same_bits_and_a_time_per_instruction(threads: int) -> None:
    module = relume.load(models.classifier())
    traced, plain = compile_traced(module.main, threads=threads), relume.compile(module, threads=threads)
    context = recorder(traced.exe)
    for width in (96, 192):
        x = models.text_lines(width)
        outputs, spans = record(traced.exe, {"x": x}, context=context)
        assert [out.tobytes() for out in outputs.values()] == [plain(x).tobytes()]
        assert [span.id for span in spans] == [instr.id for instr in traced.program.instrs]
        assert all(one.end == two.start for one, two in pairwise(spans))
        assert all(span.nanoseconds >= 0 for span in spans) and spans[-1].end > spans[0].start


def test_code_that_is_not_traced_notes_nothing_and_is_refused() -> None:
    exe = relume.compile(models.DIGITS)
    with pytest.raises(relume.RunError, match="notes no times"):
        record(exe, {exe.inputs[0].name: models.digits()[:1]})
    program = pipeline.to_program(pipeline.optimize(relume.load(models.DIGITS).main), targets.AVX2)
    assert "clock" not in codegen.emit_llvm(program, targets.AVX2).split("; ---- ")[1], "the driver comes first"


def test_traced_code_runs_without_a_recorder() -> None:
    x = models.digits()[:3]
    traced = compile_traced(relume.load(models.DIGITS).main, threads=1)
    assert traced.exe(x).tobytes() == relume.compile(models.DIGITS)(x).tobytes()


def test_the_cache_tells_traced_code_from_other_code_and_shares_the_kernels(tmp_path: Path) -> None:
    program = pipeline.to_program(pipeline.optimize(relume.load(models.DIGITS).main), targets.AVX2)
    cache = Cache(tmp_path)
    plain = codegen.build(program, targets.AVX2, cache=cache)
    before = codegen.llvm_calls()
    traced = codegen.build(program, targets.AVX2, cache=cache, traced=True)
    assert codegen.llvm_calls() == before + 1, "only the driver is another"
    assert codegen.build(program, targets.AVX2, cache=cache).image == plain.image != traced.image
    assert codegen.build(program, targets.AVX2, cache=cache, traced=True).image == traced.image
    assert codegen.llvm_calls() == before + 1


def test_a_run_that_fails_while_it_is_traced_says_where() -> None:
    text = "func @main(%x : f32[N,2], %i : i64[3]) {\n  %y = gather(%x, %i, axis=0)\n  return %y\n}\n"
    traced = compile_traced(relume.parse(text).main, threads=1)
    x = np.ones((2, 2), np.float32)
    with pytest.raises(relume.RunError, match="out of range"):
        record(traced.exe, {"x": x, "i": np.array([0, 1, 7])})
    outputs, spans = record(traced.exe, {"x": x, "i": np.array([0, 1, 1])})
    assert len(spans) == len(traced.program.instrs) and next(iter(outputs.values())).shape == (3, 2)


def test_node_times_name_kernel_place_and_result() -> None:
    x = models.digits()[:2]
    module = relume.load(models.DIGITS)
    traced = compile_traced(module.main, threads=1)
    rows = node_times(traced, {module.main.inputs[0].name: x}, 3)
    assert [row["id"] for row in rows] == [instr.id for instr in traced.program.instrs]
    assert all(row["seconds"] >= 0 and row["writes"] for row in rows)
    assert any("digits.onnx:" in row["where"] for row in rows)
    assert isinstance(traced.exe, Executable)


def test_relume_run_writes_a_chrome_trace(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", models.digits()[:2])
    words = ["run", str(models.DIGITS), "--input", str(tmp_path / "x.npy"), "--trace", str(tmp_path / "t.json")]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert complete and {"name", "ts", "dur", "pid", "tid"} <= complete[0].keys()
    assert complete[0]["ts"] == 0 and all(one["ts"] <= two["ts"] for one, two in pairwise(complete))
    refused = CliRunner().invoke(app, [*words, "--engine", "reference"])
    assert refused.exit_code == 2 and "--trace" in refused.output
    lost = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "no" / "t.json")])
    assert lost.exit_code == 2 and "--trace" in lost.output
