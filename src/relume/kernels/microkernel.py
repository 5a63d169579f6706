"""Pieces of code that the tiled kernels share: tile loops and addresses that fold into instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from relume.kernels.ir import Function, Int, Kernel, Loop, Reg
from relume.kernels.tiles import Segment

Place = tuple[Reg, int]
"""A pointer and a known number of elements beyond it."""


def split(f: Function, place: Place, offset: Int, size: int) -> Place:
    """`offset` elements beyond a place: what is known stays apart, to become an instruction's displacement."""
    base, known = place
    return (base, known + offset) if isinstance(offset, int) else (f.address(base, offset, size), known)


class Moved:
    """Places moved by one common offset (that of a loop index): each pointer is moved once."""

    def __init__(self, f: Function, offset: Int, size: int) -> None:
        self._f, self._offset, self._size = f, offset, size
        self._pointers: dict[Reg, Reg] = {}

    def at(self, place: Place, more: Int = 0) -> Reg:
        """The moved place, `more` elements further."""
        pointer, offset = place
        if pointer not in self._pointers:
            self._pointers[pointer] = self._f.address(pointer, self._offset, self._size)
        return self._f.address(self._pointers[pointer], self._f.add(offset, more), self._size)


@contextmanager
def tile_loop(f: Kernel, segment: Segment, begin: Int, group: Int) -> Iterator[Loop]:
    """The segment's tiles that lie in begin..begin+group-1; the index is a tile's first element."""
    start, stop = (f.dim(bound, f.extents) for bound in (segment.start, segment.stop))
    with f.loop(f.max(start, begin), f.min(stop, f.add(begin, group)), segment.size) as loop:
        yield loop


def unravel(f: Function, flat: Int, extents: Sequence[Int]) -> tuple[Int, ...]:
    """The index along each extent, the last one fastest."""
    out: list[Int] = []
    for place, extent in reversed(list(enumerate(extents))):
        out.append(f.rem(flat, extent) if place else flat)
        flat = f.div(flat, extent) if place else flat
    return tuple(reversed(out))


def prefetch(f: Function, address: Reg, level: int = 1) -> None:
    """Asks for the cache line at `address`, to be read soon, into the first- or second-level cache. Any address will
    do."""
    f.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    f.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 {4 - level}, i32 1)")
