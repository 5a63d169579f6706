"""The public functions: what they take, and what they say of what they do not take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import models
import relume

TWO = """
func @main(%x : f32[N]) { %y = neg(%x) return %y }
func @other(%x : f32[N]) { %y = abs(%x) return %y }
"""


def test_a_model_comes_from_a_path_bytes_or_a_message() -> None:
    data = models.DIGITS.read_bytes()
    one = relume.load(models.DIGITS)
    assert relume.load(str(models.DIGITS)) == one
    x = models.digits()[:2]
    want = relume.compile(models.DIGITS)(x)
    for source in (data, onnx.load_from_string(data)):
        assert relume.compile(relume.load(source))(x).tobytes() == want.tobytes()


def test_functions_are_reached_by_name() -> None:
    module = relume.parse(TWO)
    exe = relume.compile(module)
    x = np.array([1, -2], np.float32)
    assert exe(x).tolist() == exe["main"](x).tolist() == [-1, 2]
    assert exe["other"](x).tolist() == [1, 2]
    assert relume.evaluate(module["other"], {"x": x})["y"].tolist() == [1, 2]


def test_an_artifact_runs_without_the_compiler(tmp_path: Path) -> None:
    relume.save(relume.compile(relume.parse(TWO)), tmp_path / "two.rlx")
    loaded = relume.load_executable(tmp_path / "two.rlx")
    assert loaded["other"](np.array([-3], np.float32)).tolist() == [3]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: relume.parse(None), relume.ModelError),  # type: ignore[arg-type]
        (lambda: relume.parse(b"func"), relume.ModelError),  # type: ignore[arg-type]
        (lambda: relume.evaluate(None, {}), relume.ModelError),  # type: ignore[arg-type]
        (lambda: relume.compile(TWO_MODULE, threads="2"), relume.InputError),  # type: ignore[arg-type]
        (lambda: relume.compile(TWO_MODULE, threads=1.5), relume.InputError),  # type: ignore[arg-type]
        (lambda: relume.compile(TWO_MODULE, cache="no"), relume.CompileError),  # type: ignore[arg-type]
        (lambda: relume.compile(TWO_MODULE, optimize=7), relume.CompileError),
        (lambda: relume.compile(TWO_MODULE, target="z80"), relume.CompileError),
        (lambda: relume.compile(TWO_MODULE).run({0: 1, 1: 2}), relume.InputError),  # type: ignore[dict-item]
        (lambda: relume.compile(TWO_MODULE).run({"x": X}, time_limit="1"), relume.InputError),  # type: ignore[arg-type]
        (lambda: relume.compile(TWO_MODULE)["nope"], relume.InputError),
        (lambda: TWO_MODULE["nope"], relume.InputError),
        (lambda: relume.load("no-such.onnx"), relume.InputError),
        (lambda: relume.parse("func @f(%x : f32[-3]) { return %x }"), relume.ModelError),
    ],
)
def test_wrong_arguments_are_errors_for_people(call: Any, error: type[relume.RelumeError]) -> None:
    with pytest.raises(error):
        call()


TWO_MODULE = relume.parse(TWO)
X = np.zeros(2, np.float32)


def test_a_file_that_is_no_text_is_a_model_error(tmp_path: Path) -> None:
    (tmp_path / "bin.rlm").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(relume.ModelError, match="UTF-8"):
        relume.load(tmp_path / "bin.rlm")


def one_node(op: str, shapes: dict[str, list[Any]], out: list[Any], **attrs: Any) -> onnx.ModelProto:
    """A model of one ONNX node over float inputs."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)]
    graph = helper.make_graph([helper.make_node(op, list(shapes), ["y"], **attrs)], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_symbolic_extent_and_a_known_one_are_unified() -> None:
    """Normalisation of an open extent by a scale of known length compiles; another length is an input error."""
    exe = relume.compile(one_node("LayerNormalization", {"x": ["a", "b"], "s": [17]}, ["a", "b"]))
    x, s = np.random.default_rng(0).standard_normal((3, 17)).astype(np.float32), np.ones(17, np.float32)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    assert np.abs(exe(x, s) - want).max() < 1e-5
    with pytest.raises(relume.InputError):
        exe(x[:, :16], s)
