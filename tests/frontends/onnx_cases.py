"""Small ONNX models for the tests of the front end, and the comparison of Relume's reference with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from relume.frontends.onnx import load
from relume.graph.types import Module
from relume.reference import evaluate

TOLERANCE = 1e-5
"""Relative to the largest absolute value of an output."""

Dims = Sequence[int | str | None]


def value(name: str, dims: Dims | None, elem_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A declared value."""
    return helper.make_tensor_value_info(name, elem_type, dims)


def make(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model. An output given by name is declared without a type."""
    infos = [onnx.ValueInfoProto(name=output) if isinstance(output, str) else output for output in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), infos, tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)


def one_node(
    op: str,
    arrays: Sequence[np.ndarray],
    constants: Mapping[int, np.ndarray] | None = None,
    *,
    outputs: int = 1,
    opset: int = 17,
    symbolic: bool = False,
    **attrs: object,
) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model of one node: `arrays` are its inputs, but at the places in `constants` stand those initializers.

    With `symbolic` every extent of 2 or more is a name of its own. Returns the model and what to feed it.
    """
    held = constants or {}
    names, infos, feeds, stored = [], [], [], {}
    waiting = list(arrays)
    for place in range(len(arrays) + len(held)):
        name = f"x{place}"
        names.append(name)
        if place in held:
            stored[name] = held[place]
            continue
        array = waiting.pop(0)
        dims: Dims = [f"{name}_d{axis}" if symbolic and dim > 1 else dim for axis, dim in enumerate(array.shape)]
        infos.append(value(name, dims, helper.np_dtype_to_tensor_dtype(array.dtype)))
        feeds.append(array)
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    return make([node], infos, results, stored, opset=opset), feeds


def run(module: Module, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of `main` by the reference."""
    return evaluate(module.main, feeds)[0]


def run_onnxruntime(model: onnx.ModelProto, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime gives. `feeds` are in the order of the inputs that are no initializers."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {entry.name: feed for entry, feed in zip(session.get_inputs(), feeds)})


def assert_close(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Same types and shapes; integers equal, floats within the tolerance, infinities and NaN at the same places."""
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, b))
        scale = max(1.0, float(np.abs(b[finite]).max(initial=0)))
        np.testing.assert_allclose(a[finite], b[finite], rtol=0, atol=TOLERANCE * scale)


def assert_agrees(model: onnx.ModelProto, feeds: Sequence[np.ndarray]) -> Module:
    """Loads the model and compares with ONNX Runtime."""
    module = load(model)
    assert_close(run(module, feeds), run_onnxruntime(model, feeds))
    return module


def op_names(module: Module) -> list[str]:
    """The ops of `main`, in order, regions included."""
    return [node.op.name for node in module.main.graph.walk()]
