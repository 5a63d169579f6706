"""Arrays by what is in them, without reading all of it: the key under which equal constants are one."""

from __future__ import annotations

import numpy as np

_WINDOW = 128
"""Bytes of one look."""

_WINDOWS = 32
"""Looks at an array for its hash: a few kilobytes, however large it is."""

_CHUNK = 1 << 20
"""Bytes that are compared at once."""


class Content:
    """An array as a dictionary key: equal to another of the same dtype, shape and bytes.

    The hash is of a sample, so it costs microseconds; equality, which is exact, reads the arrays. A digest
    (`base.digests`) reads them too, and nobody needs it to tell constants apart inside a process. The array must not
    change.
    """

    __slots__ = ("_array", "_hash")

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._hash = hash((array.dtype.str, array.shape, _sample(array)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content):
            return NotImplemented
        a, b = self._array, other._array
        if a is b:
            return True
        if self._hash != other._hash or a.dtype != b.dtype or a.shape != b.shape:
            return False
        left, right = _bytes(a), _bytes(b)
        return all(np.array_equal(left[at : at + _CHUNK], right[at : at + _CHUNK]) for at in range(0, a.nbytes, _CHUNK))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _sample(array: np.ndarray) -> bytes:
    """Windows from the beginning to the end, evenly spaced; all of a small array."""
    if array.nbytes <= _WINDOW * _WINDOWS or not array.flags.c_contiguous:
        return _bytes(array).tobytes()
    data = _bytes(array)
    last = array.nbytes - _WINDOW
    starts = (last * index // (_WINDOWS - 1) for index in range(_WINDOWS))
    return b"".join(data[start : start + _WINDOW].tobytes() for start in starts)
