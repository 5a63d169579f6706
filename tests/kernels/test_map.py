"""`map` against NumPy: every layout, extent and way of running it."""

from __future__ import annotations

import numpy as np
import pytest
from harness import AVX2, CONST, compile_kernel, emit, run_kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import like, run_all

from relume.base import dtypes
from relume.kernels.map import MAP
from relume.program.types import ConstReader

RNG = np.random.default_rng(7)
ADD_MUL = (("add", (0, 1), (), "f32"), ("mul", (2, 0), (), "f32"))


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


EXTENTS = (0, 1, 2, 3, 15, 16, 17, 33)


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """An f32 view of `shape`: permuted, with gaps, reversed or broadcast along some axes."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2, -1, 0))) for _ in shape]
    memory = floats(*(1 if steps[axis] == 0 else shape[axis] * abs(steps[axis]) for axis in order))
    view = memory.transpose(np.argsort(order))
    view = view[tuple(slice(None, None, step or 1) for step in steps)]
    return np.broadcast_to(view, shape)


@st.composite
def calls(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = tuple(draw(st.sampled_from(EXTENTS)) for _ in range(draw(st.integers(0, 3))))
    order = draw(st.permutations(range(len(shape))))
    result = np.zeros([shape[axis] for axis in order], np.float32).transpose(np.argsort(order))
    return draw(views(shape)), draw(views(shape)), result


@given(calls())
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_layout_gives_numpys_result_with_the_same_bits_every_way(call: tuple[np.ndarray, ...]) -> None:
    a, b, result = call
    (got,) = run_all(MAP, [("in", a), ("in", b), ("out", result)], {"body": ADD_MUL, "outs": (3,)})
    np.testing.assert_array_equal(got, (a + b) * a)


@given(st.sampled_from([(17, 19), (3, 16, 5), (2, 3, 4, 16), (1, 40, 8), (600, 9)]), st.data())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_copy_between_any_two_axis_orders(shape: tuple[int, ...], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int8, np.float16]))
    source = (RNG.standard_normal(shape) * 50).astype(dtype).transpose(order)
    (got,) = run_all(MAP, [("in", source), ("out", np.zeros(source.shape, dtype))], {"body": (), "outs": (0,)})
    np.testing.assert_array_equal(got, source)


def test_blocked_channels_of_an_image_go_by_tiles() -> None:
    image = floats(1, 32, 28, 28)
    blocked = image.reshape(1, 2, 16, 28, 28).transpose(0, 1, 3, 4, 2)
    result = np.zeros(blocked.shape, np.float32)
    operands = [("in", blocked), ("out", result)]
    assert "shufflevector <8 x float>" in emit(MAP, operands, {"body": (), "outs": (0,)})[2]
    (got,) = run_all(MAP, operands, {"body": (), "outs": (0,)})
    np.testing.assert_array_equal(got, blocked)


def test_a_long_row_is_split_into_tasks() -> None:
    x = floats(100_001)
    operands = [("in", x), ("out", np.zeros_like(x))]
    body = (("neg", (0,), (), "f32"),)
    assert compile_kernel(MAP, operands, {"body": body, "outs": (1,)}).tasks == 7
    (got,) = run_all(MAP, operands, {"body": body, "outs": (1,)})
    np.testing.assert_array_equal(got, -x)


def test_a_fill_reads_nothing() -> None:
    body = (("constant", (), (("value", 2.5),), "f32"),)
    (got,) = run_all(MAP, [("out", np.zeros((3, 21), np.float32))], {"body": body, "outs": (0,)})
    np.testing.assert_array_equal(got, np.full((3, 21), 2.5, np.float32))


@pytest.mark.parametrize("value", [1.5, -0.0, np.inf, np.uint32(0x7FA00001).view(np.float32)])
def test_a_constant_of_one_element_is_baked_with_its_exact_bits(value: float) -> None:
    constant = np.broadcast_to(np.full(1, value, np.float32), (5, 9))
    operands = [(CONST, constant), ("out", np.zeros((5, 9), np.float32))]
    (got,) = run_all(MAP, operands, {"body": (), "outs": (0,)})
    assert got.tobytes() == np.ascontiguousarray(constant).tobytes()
    spec, _, text = emit(MAP, operands, {"body": (), "outs": (0,)})
    assert "load float" not in text
    reader = ConstReader({0: constant})
    MAP.emit(spec, AVX2, reader, "kernel")
    assert [entry[:2] for entry in reader.log] == [(0, "splat")]


def test_a_larger_constant_is_not_looked_at() -> None:
    spec, _, _ = emit(MAP, [(CONST, floats(5)), ("out", np.zeros(5, np.float32))], {"body": (), "outs": (0,)})
    reader = ConstReader({0: floats(5)})
    MAP.emit(spec, AVX2, reader, "kernel")
    assert reader.log == []


def test_several_results_of_several_types() -> None:
    x = RNG.integers(-5, 5, (4, 37)).astype(np.int32)
    body = (
        ("constant", (), (("value", 0),), "i32"),
        ("less", (0, 1), (), "bool"),
        ("cast", (0,), (("to", dtypes.f32),), "f32"),
        ("select", (2, 1, 0), (), "i32"),
    )
    outs = [("out", np.zeros(x.shape, dtype)) for dtype in (bool, np.float32, np.int32)]
    less, as_float, clamped = run_all(MAP, [("in", x), *outs], {"body": body, "outs": (2, 3, 4)})
    np.testing.assert_array_equal(less, x < 0)
    np.testing.assert_array_equal(as_float, x.astype(np.float32))
    np.testing.assert_array_equal(clamped, np.maximum(x, 0))


@pytest.mark.parametrize("shape", [(70,), (3, 33), (2, 5, 16)])
def test_in_place_gives_what_separate_memory_gives(shape: tuple[int, ...]) -> None:
    a, b = floats(*shape), floats(*shape[-1:])
    wide = np.broadcast_to(b, shape)
    params = {"body": ADD_MUL, "outs": (3,)}
    apart, in_place = np.zeros(shape, np.float32), a.copy()
    run_kernel(MAP, [("in", a), ("in", wide), ("out", apart)], params)
    run_kernel(MAP, [("in", in_place), ("in", wide), ("out", in_place)], params)
    assert in_place.tobytes() == apart.tobytes()


def reusable(result: np.ndarray, *ins: np.ndarray) -> tuple[int, ...]:
    operands = [*(("in", array) for array in ins), ("out", result)]
    spec, _, _ = emit(MAP, operands, {"body": (), "outs": (0,)})
    return MAP.may_reuse(spec)[len(ins)]


def test_reuse_needs_equal_strides_equal_size_and_no_broadcast() -> None:
    x = np.zeros((4, 6), np.float32)
    assert reusable(x, x, like(x)) == (0, 1)
    assert reusable(x, x.astype(np.int32)) == (0,)
    assert reusable(x, x.astype(np.float64)) == ()
    assert reusable(x, np.zeros((6, 4), np.float32).T) == ()
    assert reusable(x, np.broadcast_to(x[:1], x.shape)) == ()
    assert reusable(x[:1], np.broadcast_to(x[0], (1, 6))) == (0,)  # a stride along one element says nothing
