"""dot: integer products wrap around, whatever the layout of the factors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.harness import TARGETS, run_kernel

from relume.base.targets import AVX2, Target
from relume.kernels.dot import DOT

PLAIN = {"body": (), "outs": (0,)}
DTYPES = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64)


def numbers(seed: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def product(a: np.ndarray, b: np.ndarray, target: Target = AVX2) -> np.ndarray:
    """a @ b through the kernel, inside a larger array whose rest must stay as it was."""
    shape = (*a.shape[:-1], b.shape[-1])
    room = np.full((*shape[:-1], shape[-1] + 3), 77, a.dtype)
    y = room[..., : shape[-1]]
    run_kernel(DOT, [("in", a), ("in", b), ("out", y)], PLAIN, target=target)
    assert (room[..., shape[-1] :] == 77).all(), "written beyond the last column"
    return y.copy()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(DTYPES), st.integers(1, 3), st.integers(1, 6), st.integers(0, 40), st.integers(1, 40), st.booleans()
)
def test_a_product_wraps_around_like_numpy(dtype: type, batch: int, m: int, k: int, n: int, turned: bool) -> None:
    a = numbers(1, (batch, m, k), dtype)
    b = numbers(2, (batch, n, k), dtype).swapaxes(1, 2) if turned else numbers(2, (batch, k, n), dtype)
    assert np.array_equal(product(a, b), a @ b)


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_every_target_gives_the_same(target: Target) -> None:
    a, b = numbers(1, (5, 33), np.int8), numbers(2, (33, 50), np.int8)
    assert np.array_equal(product(a, b, target), a @ b)
