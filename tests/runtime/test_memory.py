"""Blocks of memory and the addresses of arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.base.errors import LimitError
from relume.runtime.memory import Block, address_of, is_placed, place


@pytest.mark.parametrize("size", [0, 1, 4096, (2 << 20) - 1, 2 << 20, 5_000_000])
def test_blocks_are_zeroed_and_aligned(size: int) -> None:
    block = Block(size)
    assert block.address % 4096 == 0 and (size < 2 << 20 or block.address % (2 << 20) == 0)
    array = block.array((size,), np.dtype(np.uint8))
    assert not array.any() and (not size or address_of(array) == block.address)
    array[...] = 1


def test_an_array_keeps_its_block_alive() -> None:
    array = Block(4096).array((8,), np.dtype(np.float64), 64)
    array[...] = 3
    assert (array == 3).all()


def test_more_than_the_address_space_is_an_error() -> None:
    for size in (1 << 62, 1 << 70):
        with pytest.raises(LimitError, match="not enough memory"):
            Block(size)


@given(st.integers(0, 20), st.integers(0, 5), st.sampled_from([1, -1, 2]))
def test_the_address_is_the_one_that_the_array_interface_gives(size: int, start: int, step: int) -> None:
    array = np.zeros(size, np.int16)[start::step]
    assert address_of(array) == array.__array_interface__["data"][0]


def test_placed_arrays_have_the_same_values_where_code_can_read_them() -> None:
    arrays = [
        np.arange(7).astype(">i2"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3), np.float32),
        np.array(5, np.int8),
        np.arange(3).astype(ml_dtypes.bfloat16),
    ]
    for array, copy in zip(arrays, place(arrays)):
        assert (copy == array).all() and copy.shape == array.shape and copy.dtype == array.dtype.newbyteorder("=")
        assert not copy.size or is_placed(copy)
