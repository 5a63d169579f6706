"""Shape arithmetic: extents that a model computes with tensors are attributes of the graph, symbols and all."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_cases import assert_agrees, make, op_names, run, value

import relume
from relume.base import dims
from relume.base.errors import InputError, ModelError, UnsupportedError
from relume.frontends.onnx import load
from relume.frontends.onnx.shapes import is_equal, is_less, truncated_quotient
from relume.frontends.onnx.translate.movement import _bound

node = helper.make_node


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_shape_gather_concat_reshape_chain_resolves() -> None:
    """Shape -> Gather -> Unsqueeze -> Concat -> Reshape, with -1, products and quotients, leaves one reshape."""
    model = make(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Gather", ["s", "one"], ["t"]),
            node("Mul", ["n", "t"], ["nt"]),
            node("Unsqueeze", ["nt", "axis"], ["nt1"]),
            node("Div", ["nt1", "four"], ["quarter"]),
            node("Concat", ["quarter", "minus", "two"], ["shape"], axis=0),
            node("Reshape", ["x", "shape"], ["y"]),
        ],
        [value("x", ["N", "T", 8])],
        ["y"],
        {"zero": np.array(0), "one": np.array(1), "axis": i64(0), "four": i64(4), "minus": i64(-1), "two": i64(2)},
    )
    module = assert_agrees(model, [np.arange(4 * 3 * 8, dtype=np.float32).reshape(4, 3, 8)])
    assert op_names(module) == ["reshape"]
    n, t = dims.symbol("N"), dims.symbol("T")
    assert module.main.outputs[0].dims[0] == dims.floordiv(n * t, 4)


def test_a_symbol_cancels_in_a_minus_one() -> None:
    model = make(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "start", "end"], ["head"]),
            node("Concat", ["head", "minus"], ["shape"], axis=0),
            node("Reshape", ["x", "shape"], ["y"]),
        ],
        [value("x", ["N", 3, "H", "W"])],
        ["y"],
        {"start": i64(0), "end": i64(1), "minus": i64(-1)},
    )
    module = assert_agrees(model, [np.ones((2, 3, 4, 5), np.float32)])
    assert module.main.outputs[0].dims == (dims.symbol("N"), dims.parse("3*H*W"))


def test_the_expand_idiom_of_pytorch_resolves() -> None:
    """Where(Equal(shape, -1), ones, shape): an extent is never -1."""
    model = make(
        [
            node("Shape", ["x"], ["s"]),
            node("ConstantOfShape", ["rank"], ["ones"], value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
            node("Mul", ["ones", "minus"], ["negative"]),
            node("Equal", ["s", "negative"], ["mask"]),
            node("Where", ["mask", "ones", "s"], ["shape"]),
            node("Expand", ["k", "shape"], ["y"]),
        ],
        [value("x", ["N", 4])],
        ["y"],
        {"rank": i64(2), "minus": i64(-1), "k": np.arange(4, dtype=np.float32)},
    )
    module = assert_agrees(model, [np.ones((3, 4), np.float32)])
    assert op_names(module) == ["broadcast"]


def test_a_shape_used_as_data_is_an_extents_op() -> None:
    model = make(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
            node("ReduceProd", ["s"], ["p"], keepdims=0),
            node("Cast", ["p"], ["pf"], to=TensorProto.FLOAT),
            node("Mul", ["f", "pf"], ["y"]),
        ],
        [value("x", ["N", 3])],
        ["y"],
    )
    module = assert_agrees(model, [np.zeros((5, 3), np.float32)])
    assert "extents" in op_names(module)


def test_static_shape_arithmetic_leaves_nothing() -> None:
    """Also in floats: the sizes of a Resize are often computed as floor(extent * scale)."""
    model = make(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["f", "scale"], ["g"]),
            node("Floor", ["g"], ["h"]),
            node("Cast", ["h"], ["sizes"], to=TensorProto.INT64),
            node("Range", ["zero", "count", "one"], ["r"]),
            node("Reshape", ["r", "sizes"], ["y"]),
        ],
        [value("x", [4, 6])],
        ["y"],
        {
            "scale": np.array([0.5, 1.5], np.float32),
            "zero": np.array(0.0, np.float32),
            "count": np.array(18.0, np.float32),
            "one": np.array(1.0, np.float32),
        },
    )
    assert_agrees(model, [np.zeros((4, 6), np.float32)])


def test_a_shape_that_is_data_is_reported_with_its_reason() -> None:
    model = make(
        [node("Reshape", ["x", "s"], ["y"], name="r")], [value("x", [4]), value("s", [2], TensorProto.INT64)], ["y"]
    )
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert caught.value.nodes == (("r", "Reshape (ai.onnx 14)", "the shape: only known when the model runs"),)


def test_symbols_are_named_after_what_the_file_says() -> None:
    """Equal names are one symbol; without a name (or with `?`) an extent is named after input and axis."""
    inputs = [value("in put", ["batch size", None, "?", 3]), value("k", ["batch size", "in", "2x", "batch_size"])]
    module = load(make([node("Identity", ["in put"], ["y"]), node("Identity", ["k"], ["z"])], inputs, ["y", "z"]))
    first, second = module.main.inputs
    assert [str(dim) for dim in first.dims] == ["batch_size", "in_put_1", "in_put_2", "3"]
    assert [str(dim) for dim in second.dims] == ["batch_size", "in_", "d2x", "batch_size_2"]
    assert (first.name, module.main.output_names) == ("in put", ("y", "z"))


def test_a_negative_extent_is_unknown_and_warned_about() -> None:
    with pytest.warns(UserWarning, match="input 'x' declares the extent -1 for axis 0"):
        module = load(make([node("Relu", ["x"], ["y"])], [value("x", [-1, 4])], ["y"]))
    assert str(module.main.inputs[0].dims[0]) == "x_0"


def test_an_input_without_a_shape_is_unsupported_and_named() -> None:
    with pytest.raises(UnsupportedError, match="input 'x': tensor without a shape"):
        load(make([node("Relu", ["x"], ["y"])], [value("x", None)], ["y"]))


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9])
def test_one_module_serves_every_width(width: int) -> None:
    """Convolution, pooling with ceil, slices and a flatten on symbolic extents."""
    rng = np.random.default_rng(0)
    model = make(
        [
            node("Conv", ["x", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
            node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("Slice", ["m", "start", "end", "axes"], ["t"]),
            node("Flatten", ["t"], ["y"]),
        ],
        [value("x", ["N", 2, "H", "W"])],
        ["y"],
        {"w": rng.standard_normal((3, 2, 3, 3)).astype(np.float32), "start": i64(-2), "end": i64(99), "axes": i64(3)},
    )
    assert_agrees(model, [rng.standard_normal((2, 2, 9, 4 * width)).astype(np.float32)])


# --- algebra --------------------------------------------------------------------------------------------------------

AFFINE = st.tuples(st.integers(-3, 3), st.integers(-4, 4)).map(lambda pair: dims.symbol("N") * pair[0] + pair[1])


@given(AFFINE, st.integers(-5, 5), st.integers(0, 40))
def test_a_quotient_is_truncated_whatever_the_sign(a: dims.Dim, b: int, n: int) -> None:
    try:
        quotient = truncated_quotient(a, b)
    except Exception as error:
        assert type(error).__name__ == "_Unknown" and b < 0
        return
    number = dims.evaluate(a, {"N": n})
    assert dims.evaluate(quotient, {"N": n}) == (int(number / b) if b else 0)


@given(AFFINE, AFFINE, st.integers(0, 40))
def test_a_comparison_that_is_decided_holds_for_every_extent(a: dims.Dim, b: dims.Dim, n: int) -> None:
    for compare, truth in ((is_less, lambda x, y: x < y), (is_equal, lambda x, y: x == y)):
        try:
            decided = compare(a, b)
        except Exception as error:
            assert type(error).__name__ == "_Unknown"
            continue
        assert decided == truth(dims.evaluate(a, {"N": n}), dims.evaluate(b, {"N": n}))


@given(st.integers(-12, 12), st.integers(-12, 12), st.sampled_from([-3, -1, 1, 2]), st.integers(1, 9), st.booleans())
def test_slice_bounds_are_numpys(start: int, stop: int, step: int, extent: int, symbolic: bool) -> None:
    size = dims.symbol("N") if symbolic else extent
    low, high = (dims.evaluate(_bound(bound, size, step), {"N": extent}) for bound in (start, stop))
    data = np.arange(extent)
    np.testing.assert_array_equal(data[np.arange(low, high, step)], data[start:stop:step])


@given(AFFINE, AFFINE, st.sampled_from([-2, -1, 1, 3]), st.integers(0, 9), st.integers(0, 9))
def test_symbolic_slice_bounds_count_from_the_end_where_they_are_negative(
    start: dims.Dim, stop: dims.Dim, step: int, n: int, extent: int
) -> None:
    binding = {"N": n, "T": extent}
    low, high = (dims.evaluate(_bound(bound, dims.symbol("T"), step), binding) for bound in (start, stop))
    data = np.arange(extent)
    expected = data[dims.evaluate(start, binding) : dims.evaluate(stop, binding) : step]
    np.testing.assert_array_equal(data[np.arange(low, high, step)], expected)


def test_symbolic_bounds_of_slice_are_clamped() -> None:
    """x[:, n:n+3] of an axis that is symbolic too."""
    model = make(
        [
            node("Shape", ["k"], ["n"]),
            node("Add", ["n", "three"], ["m"]),
            node("Slice", ["x", "n", "m", "axis"], ["y"]),
        ],
        [value("x", [2, "T"]), value("k", ["N"])],
        ["y"],
        {"three": i64(3), "axis": i64(1)},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = load(model)
    for n, t in ((1, 9), (4, 5), (6, 5), (0, 2)):
        x = np.arange(2 * t, dtype=np.float32).reshape(2, t)
        np.testing.assert_array_equal(run(module, [x, np.zeros(n, np.float32)])[0], x[:, n : n + 3])


def test_an_impossible_shape_is_refused_with_the_nodes_around() -> None:
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"r{i}") for i in range(8)]
    bad = node("Reshape", ["v8", "s"], ["y"], name="bad")
    with pytest.raises(ModelError) as caught:
        load(make([*nodes, bad], [value("v0", [4])], ["y"], {"s": i64(3)}))
    message = str(caught.value)
    for part in (
        "node bad (Reshape)",
        "expected: 4 elements",
        "got: [3]",
        "> bad: y = Reshape(v8, s)",
        "r7: v8 = Relu(v7)",
    ):
        assert part in message


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "Conv"])
@pytest.mark.parametrize("extent", range(5))
def test_as_many_windows_stand_on_a_known_extent_as_on_a_symbolic_one(op: str, extent: int) -> None:
    """Also where none fits: none then, as long as the number that ONNX defines is not negative."""
    x = np.ones((1, 1, extent, 2), np.float32)
    for size, stride, ceil in ((4, 1, 0), (3, 3, 1), (3, 3, 0), (5, 2, 1), (5, 2, 0)):
        if op == "Conv" and ceil:
            continue
        count = (-((size - extent) // stride) if ceil else (extent - size) // stride) + 1
        if ceil:
            count = min(count, -(-extent // stride))
        more = {} if op == "Conv" else {"ceil_mode": ceil}
        inputs, held = (["x", "w"], {"w": np.ones((1, 1, size, 1), np.float32)}) if op == "Conv" else (["x"], {})
        nodes = [node(op, inputs, ["y"], kernel_shape=[size, 1], strides=[stride, 1], **more)]
        results = []
        for dims_of_x in ([1, 1, extent, 2], [1, 1, "H", 2]):
            model = make(nodes, [value("x", dims_of_x)], ["y"], held, opset=22)
            if count < 0:
                with pytest.raises((ModelError, InputError)):
                    relume.compile(relume.load(model), threads=1)(x)
            else:
                results.append(relume.compile(relume.load(model), threads=1)(x))
                assert results[-1].shape == (1, 1, count, 2)
        assert all(np.array_equal(y, results[0], equal_nan=True) for y in results)
