"""The standard backend interface, and inputs whose elements decide extents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import relume
from relume import onnx_backend
from relume.base.errors import InputError, ModelError, UnsupportedError

node = helper.make_node


def model(nodes: list[onnx.NodeProto], outputs: list[str], **inputs: tuple[int, list[object]]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


RESHAPE = model(
    [node("Reshape", ["x", "s"], ["r"]), node("ReduceSum", ["r", "axes"], ["y"], keepdims=0)],
    ["y"],
    x=(TensorProto.FLOAT, ["N", 6]),
    s=(TensorProto.INT64, [2]),
    axes=(TensorProto.INT64, [1]),
)
X = np.arange(12, dtype=np.float32).reshape(2, 6)


def ints(*items: int) -> np.ndarray:
    return np.array(items, np.int64)


def test_a_shape_that_is_an_input_is_compiled_for_when_it_is_seen() -> None:
    prepared = onnx_backend.prepare(RESHAPE)
    for shape, axis in (((3, 4), 0), ((4, 3), 1), ((3, 4), 0), ((-1, 2), -1)):
        (y,) = prepared.run([X, ints(*shape), ints(axis)])
        assert np.array_equal(y, X.reshape(shape).sum(axis=axis))
    assert prepared.fixed == ("s", "axes")


def test_the_error_names_the_inputs_whose_values_would_help() -> None:
    with pytest.raises(UnsupportedError, match=r"values of s: relume.load\(\.\.\., values") as caught:
        relume.load(RESHAPE)
    assert caught.value.values == ("s",)
    with pytest.raises(UnsupportedError) as caught:
        relume.load(RESHAPE, values={"s": ints(3, 4)})
    assert caught.value.values == ("axes",)
    module = relume.load(RESHAPE, values={"s": ints(3, 4), "axes": ints(0)})
    assert [value.name for value in module.main.inputs] == ["x"]


def test_a_fixed_value_does_not_change_with_the_callers_array() -> None:
    shape = ints(3, 4)
    module = relume.load(RESHAPE, values={"s": shape, "axes": ints(0)})
    shape[:] = 1
    assert relume.compile(module)(X).shape == (4,)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"q": ints(1)}, "there is no input 'q' to fix"),
        ({"s": ints(1, 2, 3)}, "does not fit the input 's'"),
        ({"s": np.array([3, 4], np.int32)}, "does not fit the input 's'"),
        ({"s": 3}, "does not fit the input 's'"),
        ({"s": [[1], [2, 3]]}, "no array"),
        ([1], "the values to fix goes by name"),
        ({1: ints(3, 4)}, "a name that is no string"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        relume.load(RESHAPE, values=values)  # type: ignore[arg-type]


def test_data_is_never_taken_for_an_extent() -> None:
    """What depends on a matrix is not offered to be fixed: that would freeze the data of one run."""
    data = model(
        [node("NonZero", ["x"], ["n"]), node("Shape", ["n"], ["s"]), node("Expand", ["x", "s"], ["y"])],
        ["y"],
        x=(TensorProto.FLOAT, [2, 6]),
    )
    with pytest.raises(UnsupportedError) as caught:
        onnx_backend.prepare(data)
    assert caught.value.values == ()


def test_one_node_runs() -> None:
    (y,) = onnx_backend.run_node(node("Add", ["a", "b"], ["y"]), [X, X])
    assert np.array_equal(y, 2 * X)
    (y,) = onnx_backend.run_node(node("Clip", ["a", "", "high"], ["y"]), [X, np.float32(3)], opset_version=13)
    assert np.array_equal(y, np.minimum(X, 3))
    with pytest.raises(InputError, match="other inputs"):
        onnx_backend.run_node(node("Add", ["a", "b"], ["y"]), [X])


def test_inputs_go_by_position_or_by_name() -> None:
    add = model([node("Sub", ["a", "b"], ["y"])], ["y"], a=(TensorProto.FLOAT, [2]), b=(TensorProto.FLOAT, [2]))
    a, b = np.float32([1, 2]), np.float32([3, 5])
    assert onnx_backend.run_model(add, [a, b]).y.tolist() == [-2, -3]
    assert onnx_backend.run_model(add, {"b": b, "a": a}).y.tolist() == [-2, -3]
    with pytest.raises(InputError, match="too many inputs"):
        onnx_backend.run_model(add, [a, b, a])
    with pytest.raises(InputError, match="inputs are missing"):
        onnx_backend.run_model(add, {"a": a})


def test_there_is_one_device() -> None:
    assert onnx_backend.supports_device("CPU") and not onnx_backend.supports_device("CUDA")
    with pytest.raises(UnsupportedError, match="no device 'CUDA'"):
        onnx_backend.prepare(RESHAPE, "CUDA")


ADD = model([node("Add", ["a", "b"], ["y"])], ["y"], a=(TensorProto.FLOAT, [2]), b=(TensorProto.FLOAT, [2]))


def test_a_model_is_a_message_bytes_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(ADD.SerializeToString())
    for source in (ADD, path.read_bytes(), path, str(path)):
        assert onnx_backend.run_model(source, [np.float32([1, 2])] * 2).y.tolist() == [2, 4]
    with pytest.raises(InputError, match="a path, bytes or"):
        onnx_backend.prepare(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot read"):
        onnx_backend.prepare(tmp_path / "none.onnx")


def test_an_option_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"(?s)no option .thread.*target, threads, optimize, check, cache"):
        onnx_backend.prepare(ADD, thread=1)
    for version in ("x", 0, -1, 1.5):
        with pytest.raises(InputError, match="opset_version"):
            onnx_backend.run_node(ADD.graph.node[0], [X, X], opset_version=version)


def test_inputs_that_are_no_arrays_are_refused() -> None:
    ragged = [[1.0], [1.0, 2.0]]
    with pytest.raises(InputError, match="input 1 of Add is no array"):
        onnx_backend.run_node(ADD.graph.node[0], [X, ragged])
    with pytest.raises(InputError, match="input 'b' has no element type of ONNX"):
        onnx_backend.run_node(ADD.graph.node[0], [X, np.array(["2020-01-01"], "datetime64[s]")])
    with pytest.raises(InputError, match="no node to run"):
        onnx_backend.run_node(3, [X])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="input 'b' is no array"):
        onnx_backend.run_model(ADD, [X, ragged])


def test_an_initializer_that_is_also_an_input_is_a_constant() -> None:
    held = onnx.ModelProto()
    held.CopyFrom(ADD)
    held.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([3, 5]), "b"))
    a = np.float32([1, 2])
    assert onnx_backend.run_model(held, [a]).y.tolist() == [4, 7]
    for inputs in ([a, a], {"a": a, "b": a}):
        with pytest.raises(InputError, match="b: a constant"):
            onnx_backend.run_model(held, inputs)


def test_what_is_no_model_is_not_compatible() -> None:
    assert onnx_backend.RelumeBackend.is_compatible(ADD)
    assert not onnx_backend.RelumeBackend.is_compatible(onnx.ModelProto())
    assert not onnx_backend.RelumeBackend.is_compatible(b"junk")
    with pytest.raises(ModelError, match="holds no graph"):
        relume.load(onnx.ModelProto())
