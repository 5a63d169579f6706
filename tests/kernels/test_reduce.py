"""`reduce` and `argmax` against NumPy, and against the order of additions that they promise."""

from __future__ import annotations

import numpy as np
import pytest
from harness import compile_kernel, emit
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import run_all

from relume.base.errors import CompileError
from relume.kernels.argmax import ARGMAX
from relume.kernels.reduce import REDUCE

RNG = np.random.default_rng(11)


def promised(x: np.ndarray, kept: int, combine: np.ufunc, start: float) -> np.ndarray:
    """Sixteen accumulators in ascending order, then 8 + 8, 4 + 4, 2 + 2, 1 + 1; in the dtype of `x`."""
    rows = x.reshape(*x.shape[:kept], int(np.prod(x.shape[kept:])))
    sums = np.full((*x.shape[:kept], 16), start, x.dtype)
    for i in range(rows.shape[-1]):
        sums[..., i % 16] = combine(sums[..., i % 16], rows[..., i])
    for half in (8, 4, 2, 1):
        sums = combine(sums[..., :half], sums[..., half : 2 * half])
    return sums[..., 0]


def reduce(x: np.ndarray, kept: int, kind: str) -> np.ndarray:
    result = np.zeros(x.shape[:kept], x.dtype)
    return run_all(REDUCE, [("in", x), ("out", result)], {"kind": kind, "kept": kept})[0]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """A view in any axis order, some axes reversed or with gaps, and how many of its axes are kept."""
    shape = [draw(st.sampled_from((0, 1, 2, 5, 15, 16, 17, 40))) for _ in range(draw(st.integers(0, 4)))]
    while np.prod(shape) > 20000:
        shape.pop()
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, -1, 3))) for _ in shape]
    memory = RNG.standard_normal([shape[axis] * abs(steps[axis]) for axis in order]).astype(np.float32)
    view = memory.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    return np.asarray(view), draw(st.integers(0, len(shape)))


@given(layouts(), st.sampled_from(("sum", "mean")))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_sums_add_in_the_promised_order_whatever_the_layout(layout: tuple[np.ndarray, int], kind: str) -> None:
    x, kept = layout
    want = promised(x, kept, np.add, 0)
    if kind == "mean":
        with np.errstate(all="ignore"):
            want = want / np.float32(np.prod(x.shape[kept:]))
    np.testing.assert_array_equal(reduce(x, kept, kind), want)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "i4", "i8", "u1", "u8"])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_every_type(dtype: str, kind: str) -> None:
    x = (RNG.standard_normal((3, 41)) * 1e3).astype(np.int64).astype(np.dtype(dtype))
    combine, start = {
        "sum": (np.add, 0),
        "max": (np.maximum, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min),
        "min": (np.minimum, np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max),
    }[kind]
    np.testing.assert_array_equal(reduce(x, 1, kind), promised(x, 1, combine, start))
    np.testing.assert_array_equal(reduce(x.T, 1, kind), promised(x.T, 1, combine, start))


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_over_nothing(kept: int) -> None:
    x = np.zeros((20, 3, 0)[-kept - 1 :], np.float32)
    for kind, want in (("sum", 0), ("mean", np.nan), ("max", -np.inf), ("min", np.inf)):
        np.testing.assert_array_equal(reduce(x, kept, kind), np.full(x.shape[:kept], want, np.float32))
    assert (reduce(x.astype(np.int8), kept, "max") == -128).all()
    assert (reduce(x.astype(np.uint8), kept, "min") == 255).all()


@pytest.mark.parametrize("place", [0, 7, 16, 35])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_a_nan_anywhere_is_the_extreme(kind: str, place: int) -> None:
    x = RNG.standard_normal((18, 36)).astype(np.float32)
    x[3, place] = np.nan
    for view in (x, np.asfortranarray(x)):
        got = reduce(view, 1, kind)
        assert np.isnan(got[3]) and np.isfinite(np.delete(got, 3)).all()


def test_a_long_row_polls_and_a_short_one_does_not() -> None:
    def polls(x: np.ndarray) -> int:
        _, _, text = emit(REDUCE, [("in", x), ("out", x[..., 0])], {"kind": "sum", "kept": 1})
        return text.count("call i32 @relume_poll")

    assert polls(np.zeros((4, 128), np.float32)) == 1
    assert polls(np.zeros((4, 10**6), np.float32)) == 2
    x = np.ones((1, 10**6 + 5), np.float32)
    np.testing.assert_array_equal(reduce(x, 1, "sum"), np.float32(10**6 + 5))


def test_many_outputs_become_several_tasks() -> None:
    x = np.zeros((4096, 4096), np.float32)
    for view in (x, x.T):
        compiled = compile_kernel(REDUCE, [("in", view), ("out", x[0])], {"kind": "sum", "kept": 1})
        assert compiled.tasks >= 64


def test_the_mean_of_integers_is_refused() -> None:
    x = np.zeros((2, 2), np.int32)
    with pytest.raises(CompileError, match="mean"):
        emit(REDUCE, [("in", x), ("out", x[0])], {"kind": "mean", "kept": 1})


@given(layouts(), st.sampled_from(("f4", "i4", "u1", "f8")))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_argmax_is_the_first_of_equals_and_nan_before_numbers(layout: tuple[np.ndarray, int], dtype: str) -> None:
    view, kept = layout
    x = np.round(np.abs(view) * 2).astype(dtype) if dtype != "f4" else np.where(view > 2, np.nan, np.round(view))
    x = np.asarray(x, order="K")
    if 0 in x.shape[kept:]:
        return
    result = np.zeros(x.shape[:kept], np.int64)
    (got,) = run_all(ARGMAX, [("in", x), ("out", result)], {"kept": kept})
    np.testing.assert_array_equal(got, x.reshape(*x.shape[:kept], int(np.prod(x.shape[kept:]))).argmax(axis=-1))


def test_argmax_of_nothing_larger_than_the_least_is_the_first() -> None:
    for x in (np.full((3, 20), -np.inf, np.float32), np.full((3, 20), -128, np.int8)):
        (got,) = run_all(ARGMAX, [("in", x), ("out", np.zeros(3, np.int64))], {"kept": 1})
        assert (got == 0).all()
