"""The command line: what it prints, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

import models
from relume import api, pipeline
from relume.cli import app


def relume(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


PICTURE = sorted((models.DIGITS.parent / "images").glob("*.png"))[0]


@pytest.fixture
def picture_file(tmp_path: Path) -> Path:
    path = tmp_path / "digit.npy"
    np.save(path, models.digits()[:1])
    return path


@pytest.fixture
def unsupported(tmp_path: Path) -> Path:
    """A model with two nodes that nobody can compile."""
    nodes = [
        helper.make_node(op, [a], [b], name) for op, a, b, name in (("Foo", "x", "y", "f"), ("Bar", "y", "z", "b"))
    ]
    for node in nodes:
        node.domain = "acme"
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xz"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
    path = tmp_path / "unsupported.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return path


def test_the_demo_reads_digits() -> None:
    done = relume("demo", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["accuracy"] >= 0.98 and found["pictures"] == len(found["labels"]) == 360
    assert found["difference"] <= 1e-5
    assert "accuracy" in relume("demo").stdout


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_run_gives_outputs_and_the_best_classes(engine: str, picture_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = relume(
        "run",
        models.DIGITS,
        "--input",
        f"image={picture_file}",
        "--engine",
        engine,
        "--top",
        3,
        "--output",
        out,
        "--json",
    )
    assert done.exit_code == 0, done.output
    best = json.loads(done.stdout)["outputs"]["probabilities"]["top"]
    assert len(best) == 3 and best[0]["index"] == int(PICTURE.stem[-1])
    written = np.load(out / "probabilities.npy")
    assert written.shape == (1, 10) and written.argmax() == best[0]["index"]
    plain = relume("run", models.DIGITS, "--input", f"image={PICTURE}", "--engine", engine)
    assert plain.exit_code == 0 and "probabilities" in plain.stdout


def test_check_says_what_a_model_takes(unsupported: Path) -> None:
    done = relume("check", models.DIGITS, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["inputs"] == {"image": "f32[batch,1,8,8]"}
    refused = relume("check", unsupported, "--json")
    assert refused.exit_code == 1
    found = json.loads(refused.stdout)
    assert found["error"] == "UnsupportedError" and len(found["nodes"]) == 2, "every unsupported node at once"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "conv("),
        (("--after", "layout"), "conv_blocked("),
        (("--program",), "#0 "),
        (("--program", "--order", "memory"), "#0 "),
        (("--llvm",), "define i32 @relume_run"),
        (("--asm",), "vfmadd"),
    ],
)
def test_dump_shows_each_stage(words: tuple[str, ...], expected: str) -> None:
    done = relume("dump", models.DIGITS, "--target", "x86-64-avx2", *words)
    assert done.exit_code == 0, done.output
    assert expected in done.stdout
    assert (
        expected
        in json.loads(relume("dump", models.DIGITS, "--target", "x86-64-avx2", "--json", *words).stdout)["text"]
    )


def test_dump_shows_what_is_derived_from_states_too(tmp_path: Path) -> None:
    model = tmp_path / "m.rlm"
    model.write_text(
        "func @main(%x : f32[N,2]) states(%w : f32[2,16]) {\n  %m = state_read(%w)\n  %y = matmul(%x, %m)\n"
        "  return %y states(%w)\n}\n"
    )
    shown = relume("dump", model, "--program", "--target", "x86-64-avx2").stdout
    assert shown.count("program ") == 2 and 'program "main.derived"' in shown
    assert "in %derived0 [1,2,16]" in shown and "out %derived0 [1,2,16]" in shown
    plain = relume("dump", model, "--program", "--target", "x86-64-avx2", "--optimize", "0").stdout
    assert plain.count("program ") == 1
    assert 'kind="derived"' in relume("dump", model, "--after", "derive").stdout


@pytest.mark.parametrize("name", list(pipeline.PASSES))
def test_dump_after_every_pass(name: str) -> None:
    assert relume("dump", models.DIGITS, "--after", name).exit_code == 0


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("run", "no-such-file.onnx"), 1, "no-such-file"),
        (("run", models.DIGITS), 2, "image"),
        (("run", models.DIGITS, "--input", "picture=x.npy"), 2, "picture"),
        (("run", models.DIGITS, "--input", "image=no-such.npy"), 1, "no-such.npy"),
        (("run", models.DIGITS, "--input", f"image={PICTURE}", "--engine", "magic"), 2, "magic"),
        (("dump", models.DIGITS, "--after", "nothing"), 2, "nothing"),
        (("dump", models.DIGITS, "--llvm", "--asm"), 2, "choose one"),
        (("dump", models.DIGITS, "--program", "--order", "random"), 2, "--order random"),
        (("dump", models.DIGITS, "--program", "--target", "z80"), 1, "z80"),
        (("check", PICTURE), 1, "not"),
        (("dance",), 2, "dance"),
    ],
)
def test_what_is_wrong_is_said_and_decides_the_exit_status(words: tuple[object, ...], status: int, text: str) -> None:
    done = relume(*words)
    assert done.exit_code == status, done.output
    assert text in done.output
    assert "Traceback" not in done.output


def test_a_compiled_file_is_run_and_is_no_model(picture_file: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "digits.rlx"
    api.save(api.compile(api.load(models.DIGITS), threads=1), compiled)
    args = ("--input", picture_file, "--top", 1, "--json")
    plain, again = (json.loads(relume("run", file, *args).stdout) for file in (models.DIGITS, compiled))
    assert again["outputs"] == plain["outputs"] and again["compile_s"] is None
    assert relume("run", compiled, "--input", picture_file).exit_code == 0
    for more in (("--engine", "reference"), ("--state", "a=b")):
        done = relume("run", compiled, "--input", picture_file, *more)
        assert done.exit_code == 2 and "is compiled" in done.stderr
    for command in ("check", "dump"):
        done = relume(command, compiled)
        assert done.exit_code == 1 and "load_executable" in done.stderr


def test_a_compiled_file_with_states_starts_at_zero(tmp_path: Path) -> None:
    text = "func @main(%x : f32[N]) states(%h : f32[N]) {\n%v = state_read(%h)\n%y = add(%x, %v)\n"
    module = api.parse(text + '%n = state_write(%h, %y)\nreturn %y as "y" states(%n)\n}')
    api.save(api.compile(module, threads=1), tmp_path / "m.rlx")
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    done = relume("run", tmp_path / "m.rlx", "--input", tmp_path / "x.npy", "--json")
    assert json.loads(done.stdout)["outputs"]["y"]["values"] == [1, 1, 1]
