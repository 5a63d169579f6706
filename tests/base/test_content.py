"""Arrays by content: equal where every byte is, whatever the sample says."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.base.content import Content


@given(arrays.arrays(st.sampled_from([np.float32, np.int64, np.uint8]), arrays.array_shapes(min_dims=0, min_side=0)))
def test_equal_arrays_are_one_key(array: np.ndarray) -> None:
    copy = array.copy()
    assert Content(copy) == Content(array)
    assert {Content(array): 1}[Content(copy)] == 1
    assert Content(array[..., ::-1] if array.ndim else array) == Content(
        array[..., ::-1].copy() if array.ndim else array
    )


@given(st.integers(0, (3 << 20) - 1), st.integers(1, 255))
def test_any_byte_of_a_large_array_tells_them_apart(place: int, change: int) -> None:
    one = np.zeros(3 << 20, np.uint8)
    other = one.copy()
    other[place] ^= change
    assert Content(one) != Content(other)


@pytest.mark.parametrize(
    "other",
    [np.zeros((2, 3), np.int32), np.zeros((3, 2), np.float32), np.zeros(6, np.float32), -np.zeros((2, 3), np.float32)],
)
def test_type_shape_and_sign_of_zero_count(other: np.ndarray) -> None:
    assert Content(np.zeros((2, 3), np.float32)) != Content(other)


def test_nans_of_the_same_bits_are_equal() -> None:
    assert Content(np.full(5, np.nan)) == Content(np.full(5, np.nan))
