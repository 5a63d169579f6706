"""Pieces of code that the tiled kernels share: tile loops and addresses that fold into instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from relume.base.targets import BLOCK
from relume.kernels.ir import Function, Int, Kernel, Loop, Reg, vector
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


@dataclass(frozen=True)
class Product:
    """The innermost product of a tile: rows of scalars by panels of 16 columns, one chain of fma ascending in k from 0
    for each element."""

    type: str
    """Of an element, in bytes `size`."""
    size: int
    k: Int
    left_step: Int
    """Elements between neighbours along k in a row."""
    right_step: Int
    unroll: int
    """Steps of k per trip of the loop."""
    ahead: int
    """Elements by which panels are fetched ahead; 0 for panels that stay in the cache."""

    def emit(self, f: Kernel, rows: Sequence[Place], panels: Sequence[Place]) -> list[list[Reg]]:
        """The sums: registers of 16 lanes, [panel][row]."""
        wide, many = vector(self.type, BLOCK), len(rows)

        def steps(k: Int, count: int, sums: Sequence[Reg]) -> list[Reg]:
            out = list(sums)
            xs = Moved(f, f.mul(k, self.left_step), self.size)
            ws = Moved(f, f.mul(k, self.right_step), self.size)
            for u in range(count):
                f.barrier()
                at: Int = f.mul(u, self.right_step)
                if self.ahead:
                    for panel in panels:
                        prefetch(f, ws.at(panel, f.add(at, self.ahead)))
                right = [f.load(wide, ws.at(panel, at), self.size) for panel in panels]
                for row, line in enumerate(rows):
                    left = f.splat(f.load(self.type, xs.at(line, f.mul(u, self.left_step)), self.size), BLOCK)
                    for number, factor in enumerate(right):
                        out[number * many + row] = f.fma(left, factor, out[number * many + row])
            return out

        sums: list[Reg] = [f.zero(wide)] * (many * len(panels))
        whole = f.mul(f.div(self.k, self.unroll), self.unroll)
        if not (isinstance(whole, int) and whole == 0):
            with f.loop(0, whole, self.unroll, carry=sums) as loop:
                loop.next = steps(loop.i, self.unroll, loop.carried)
            sums = loop.results
        if not (isinstance(self.k, int) and self.k == whole):
            with f.loop(whole, self.k, 1, carry=sums) as loop:
                loop.next = steps(loop.i, 1, loop.carried)
            sums = loop.results
        return [sums[number * many : (number + 1) * many] for number in range(len(panels))]
