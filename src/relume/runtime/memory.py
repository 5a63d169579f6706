"""Raw memory: the address of an array's data, and blocks that generated code may use."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate

import numpy as np

from relume.base.errors import LimitError

ALIGN = 64
"""Bytes: a cache line, and the widest vector. Every block and every constant starts at a multiple of it."""

_HUGE_PAGE = 2 << 20
_DATA = object.__basicsize__
"""Offset of the data pointer in an array object: the first field after the object's head (`PyArrayObject_fields`, a
part of NumPy's binary interface that extension modules compile in)."""


_word_at = ctypes.c_uint64.from_address


def _address_by_field(array: np.ndarray) -> int:
    return _word_at(id(array) + _DATA).value


def _address_by_interface(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _fastest_address() -> Callable[[np.ndarray], int]:
    """The field read (0.15 us against 1 to 2.5 us), if it agrees with the interface on this interpreter."""
    sample: np.ndarray = np.zeros(2, np.uint8)
    views = (sample, sample[1:])
    agree = all(_address_by_field(view) == _address_by_interface(view) for view in views)
    return _address_by_field if agree else _address_by_interface


address_of: Callable[[np.ndarray], int] = _fastest_address()
"""The address of an array's first element. Valid for as long as the array is."""


def machine_memory() -> int:
    """Bytes of physical memory in this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Block:
    """Zeroed private memory at a multiple of `ALIGN`, given back when the block and all its arrays are gone.

    Its whole multiples of 2 MB sit on huge pages where the kernel has them, unless `huge` is false; the rest on small
    ones, so that nothing is rounded up. Raises `LimitError` where there is not enough.
    """

    def __init__(self, size: int, *, huge: bool = True) -> None:
        self.size = size
        huge = huge and size >= _HUGE_PAGE
        try:
            # Private: the default of `mmap` is shared, and a forked child would write into its parent's tensors.
            self._memory = mmap.mmap(
                -1, max(size, 1) + (_HUGE_PAGE if huge else 0), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError, ValueError) as error:
            raise LimitError(
                "there is not enough memory", expected=f"{size:,} bytes", got=str(error), hint="use smaller inputs"
            ) from None
        self._hold = ctypes.c_char.from_buffer(self._memory)
        base = ctypes.addressof(self._hold)
        self._start = -base % _HUGE_PAGE if huge else 0
        self.address = base + self._start
        if huge:
            with suppress(OSError):  # A kernel without huge pages: slower, not wrong.
                self._memory.madvise(mmap.MADV_HUGEPAGE, self._start, size // _HUGE_PAGE * _HUGE_PAGE)

    def array(self, shape: Sequence[int], dtype: np.dtype, offset: int = 0) -> np.ndarray:
        """The bytes from `offset` as an array; it keeps the memory alive."""
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(self._memory, dtype, count, self._start + offset).reshape(shape)


def round_up(size: int) -> int:
    """The next multiple of `ALIGN`."""
    return -(-size // ALIGN) * ALIGN


def rooms(wanted: Sequence[tuple[Sequence[int], np.dtype]]) -> list[np.ndarray]:
    """Arrays of these shapes and types in one block, each at a multiple of `ALIGN`, of native byte order. Zeroed."""
    types = [dtype.newbyteorder("=") for _, dtype in wanted]
    sizes = [round_up(math.prod(shape) * dtype.itemsize) for (shape, _), dtype in zip(wanted, types)]
    if not sizes:
        return []
    block = Block(sum(sizes))
    starts = accumulate(sizes, initial=0)
    return [block.array(shape, dtype, start) for (shape, _), dtype, start in zip(wanted, types, starts)]


def place(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """C-order copies in one block, each at a multiple of `ALIGN`."""
    copies = rooms([(array.shape, array.dtype) for array in arrays])
    for copy, array in zip(copies, arrays):
        copy[...] = array
    return copies


def is_placed(array: np.ndarray) -> bool:
    """Whether generated code can use an array where it is: C order, native bytes, at a multiple of `ALIGN`."""
    return array.flags.c_contiguous and array.dtype.isnative and address_of(array) % ALIGN == 0
