"""The iteration space of a kernel: axes with one stride per operand, merged where memory allows, split into tasks.

Everything here is decided from the spec alone, so `tasks`, `work` and `emit` of a kernel agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim
from relume.kernels.ir import Int, Kernel, Loop, Reg
from relume.program.types import OperandSpec

CHUNK = 16384
"""Elements that one task of a large call should handle: tens of microseconds, well under the time between polls."""

GUESS = 64
"""What a run-time extent is taken for when loops are weighed against each other."""


Leaf = Callable[[list[Reg], list[Int], Int, Int], None]
"""(pointers, indices, low, high): the innermost axis from low to high-1. The indices are those of the axes outside,
where the pointers stand already."""


@dataclass(frozen=True)
class Axis:
    """One loop: its extent, and by how many elements each operand moves along it."""

    extent: Dim
    strides: tuple[Dim, ...]


def axes_of(operands: Sequence[OperandSpec]) -> list[Axis]:
    """The axes of operands that all have the same dims."""
    extents = operands[0].dims
    return [Axis(extent, tuple(operand.strides[n] for operand in operands)) for n, extent in enumerate(extents)]


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same iteration in the same order with fewer axes: extents of 1 go, neighbours merge that all operands walk
    as one."""
    out: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        if out and all(before == stride * axis.extent for before, stride in zip(out[-1].strides, axis.strides)):
            out[-1] = Axis(out[-1].extent * axis.extent, axis.strides)
        else:
            out.append(axis)
    return out


def is_empty(low: Int, high: Int) -> bool:
    """Whether a loop is known to have no trip at all, so that its body need not be laid out."""
    return low is high or (isinstance(low, int) and isinstance(high, int) and low >= high)


def estimate(extents: Sequence[Dim]) -> int:
    """The product, run-time extents guessed."""
    total = 1
    for extent in extents:
        total *= extent if isinstance(extent, int) else GUESS
    return total


def unravel(f: Kernel, index: Int, extents: Sequence[Dim]) -> list[Int]:
    """The C-order index of each axis. All extents are at least 1 when this runs."""
    out: list[Int] = []
    for extent in reversed(extents[1:]):
        size = f.dim(extent, f.extents)
        out.append(f.rem(index, size))
        index = f.div(index, size)
    return [index, *reversed(out)] if extents else []


def advance(f: Kernel, pointers: Sequence[Reg], sizes: Sequence[int], axis: Axis, index: Int) -> list[Reg]:
    """The pointers after `index` steps along `axis`; `sizes` are bytes per element."""
    return [
        f.address(pointer, f.mul(index, f.dim(stride, f.extents)), size)
        for pointer, size, stride in zip(pointers, sizes, axis.strides)
    ]


@contextmanager
def polled(
    f: Kernel, low: Int, high: Int, unit: int, step: int = 1, carry: Sequence[Reg] = (), at_once: bool = True
) -> Iterator[Loop]:
    """A loop that polls every `CHUNK` elements where a trip handles `unit`; where it is known to be shorter, never.

    Not `at_once`: only from the second `CHUNK` on, where whoever is around it polls often enough for short loops.
    """
    every = max(step, CHUNK // max(unit, 1) // step * step)
    with f.loop(low, high, every, carry) as pieces:
        if not (isinstance(low, int) and isinstance(high, int) and high - low <= every):
            if at_once:
                f.poll()
            else:
                with f.when(f.compare("ne", pieces.i, low)):
                    f.poll()
        with f.loop(pieces.i, f.min(f.add(pieces.i, every), high), step, pieces.carried) as loop:
            yield loop
        pieces.next = loop.results
    loop.results = pieces.results


@dataclass(frozen=True)
class Tasks:
    """How the points of `axes` (at least one) become tasks: the axes before `cut` one by one, `axes[cut]` in groups.

    A task then walks its group and the axes inside. The innermost axis is never walked but given to the kernel as a
    range, to go through it as it likes.
    """

    axes: tuple[Axis, ...]
    cut: int
    group: int
    unit: int
    """Elements that one point stands for (about)."""

    @staticmethod
    def of(axes: Sequence[Axis], unit: int, multiple: int = 1) -> Tasks:
        """Groups of about `CHUNK` elements; of the innermost axis in multiples of `multiple`.

        Where an extent inside is known at run time only, a point is a group: tasks may be large, but are many.
        """
        cut = len(axes) - 1
        while cut and unit * estimate([axis.extent for axis in axes[cut:]]) <= CHUNK:
            cut -= 1
        inside = [axis.extent for axis in axes[cut + 1 :]]
        static = all(isinstance(extent, int) for extent in inside)
        group = max(1, CHUNK // max(1, unit * estimate(inside))) if static else 1
        if not inside:
            group = -(-group // multiple) * multiple
        return Tasks(tuple(axes), cut, group, max(1, unit))

    @property
    def groups(self) -> Dim:
        return dims.ceildiv(self.axes[self.cut].extent, self.group)

    @property
    def count(self) -> Dim:
        return dims.product(axis.extent for axis in self.axes[: self.cut]) * self.groups

    def emit(self, f: Kernel, pointers: Sequence[Reg], sizes: Sequence[int], leaf: Leaf) -> None:
        """The loop over the kernel's tasks, down to `leaf`. All extents are at least 1 where that runs."""
        groups = f.dim(self.groups, f.extents)
        axis = self.axes[self.cut]
        with f.loop(f.begin, f.end) as task:
            f.poll()
            at = list(pointers)
            indices = unravel(f, f.div(task.i, groups), [axis.extent for axis in self.axes[: self.cut]])
            for outer, index in zip(self.axes, indices):
                at = advance(f, at, sizes, outer, index)
            low = f.mul(f.rem(task.i, groups), self.group)
            high = f.min(f.add(low, self.group), f.dim(axis.extent, f.extents))
            self._walk(f, self.cut, at, sizes, indices, (low, high), leaf)

    @contextmanager
    def innermost(self, f: Kernel, low: Int, high: Int, step: int = 1) -> Iterator[Loop]:
        """A loop over the innermost axis for a `leaf`: it polls unless tasks are cut from that very axis."""
        bounded = self.cut + 1 == len(self.axes)
        with f.loop(low, high, step) if bounded else polled(f, low, high, self.unit, step) as loop:
            yield loop

    def _walk(
        self,
        f: Kernel,
        place: int,
        at: list[Reg],
        sizes: Sequence[int],
        indices: list[Int],
        bounds: tuple[Int, Int],
        leaf: Leaf,
    ) -> None:
        if place + 1 == len(self.axes):
            leaf(at, indices, *bounds)
            return
        inside = [axis.extent for axis in self.axes[place + 1 :]]
        with polled(f, *bounds, self.unit * estimate(inside)) as loop:
            there = advance(f, at, sizes, self.axes[place], loop.i)
            following = (0, f.dim(self.axes[place + 1].extent, f.extents))
            self._walk(f, place + 1, there, sizes, [*indices, loop.i], following, leaf)


def fold(
    f: Kernel,
    axes: Sequence[Axis],
    pointer: Reg,
    size: int,
    carry: Sequence[Reg],
    body: Callable[[Reg, Int, list[Reg]], list[Reg]],
    index: Int = 0,
) -> list[Reg]:
    """Runs `body(pointer, flat index, carried)` at each point of `axes` in C order; gives the last carried values."""
    if not axes:
        return body(pointer, index, list(carry))
    extent = f.dim(axes[0].extent, f.extents)
    with polled(f, 0, extent, estimate([axis.extent for axis in axes[1:]]), carry=carry) as loop:
        (here,) = advance(f, [pointer], [size], axes[0], loop.i)
        flat = f.add(f.mul(index, extent), loop.i)
        loop.next = fold(f, axes[1:], here, size, loop.carried, body, flat)
    return loop.results
