"""`window` against the references of `max_pool` and `avg_pool`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import run_all

from relume.kernels.window import WINDOW
from relume.ops import window as ops

RNG = np.random.default_rng(13)


def pool(x: np.ndarray, kind: str, attrs: Mapping[str, object]) -> tuple[np.ndarray, np.ndarray]:
    """(what the kernel gives, what the reference gives)"""
    op = ops.max_pool if kind == "max" else ops.avg_pool
    (want,) = op.reference(x, attrs=attrs, regions=())
    params = {name: value for name, value in attrs.items() if name != "ceil"} | {"kind": kind}
    (got,) = run_all(WINDOW, [("in", x), ("out", np.zeros(want.shape, x.dtype))], params)
    return got, want


@st.composite
def poolings(draw: st.DrawFn) -> tuple[np.ndarray, str, dict[str, object]]:
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    blocked = draw(st.booleans())
    few = st.lists(st.integers(1, 3), min_size=rank, max_size=rank).map(tuple)
    window, strides, dilations = draw(few), draw(few), draw(few)
    pads = tuple(draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank)))
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilations)]
    spatial = [max(1, r - pads[n] - pads[rank + n]) + draw(st.integers(0, 6)) for n, r in enumerate(reach)]
    shape = (draw(st.integers(0, 2)), draw(st.integers(1, 3)), *spatial, *([16] if blocked else []))
    x = RNG.standard_normal(shape).astype(np.float32)
    attrs = {
        "window": window,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "ceil": draw(st.booleans()),
        "blocked": blocked,
        "count_pads": draw(st.booleans()),
    }
    return x, draw(st.sampled_from(("max", "avg"))), attrs


@given(poolings())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_window_agrees_with_the_reference(pooling: tuple[np.ndarray, str, dict[str, object]]) -> None:
    got, want = pool(*pooling)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def attrs(window: int, blocked: bool, pad: int = 1) -> dict[str, object]:
    plain = {"window": (window,) * 2, "strides": (2, 2), "pads": (pad,) * 4, "dilations": (1, 1)}
    return plain | {"ceil": False, "blocked": blocked, "count_pads": False}


def test_blocked_and_plain_have_the_same_bits() -> None:
    x = RNG.standard_normal((2, 16, 11, 9)).astype(np.float32)
    blocked = np.ascontiguousarray(x[:, None].transpose(0, 1, 3, 4, 2))
    for kind in ("max", "avg"):
        one, many = pool(x, kind, attrs(3, False))[0], pool(blocked, kind, attrs(3, True))[0]
        assert one.tobytes() == np.ascontiguousarray(many[:, 0].transpose(0, 3, 1, 2)).tobytes()


def test_nan_under_a_window_is_its_maximum() -> None:
    x = RNG.standard_normal((1, 1, 6, 6)).astype(np.float32)
    x[0, 0, 2, 3] = np.nan
    got, want = pool(x, "max", attrs(2, False, 0))
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got).sum() == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float64])
def test_the_maximum_of_every_type(dtype: type) -> None:
    x = RNG.integers(-100, 100, (1, 2, 7, 8)).astype(dtype)
    got, want = pool(x, "max", attrs(3, False))
    np.testing.assert_array_equal(got, want)


def test_large_planes_are_split_by_rows_and_strided_views_are_read() -> None:
    wide = RNG.standard_normal((1, 2, 70, 300, 16)).astype(np.float32)
    got, want = pool(wide[:, :, 3:-3, 2:-4], "max", attrs(3, True))
    np.testing.assert_array_equal(got, want)
