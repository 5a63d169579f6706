"""`scatter_nd`: updates into the rows of y that indices name, in place.

Operands: updates [batch..., n..., row...], one tensor of indices [batch..., n...] for each indexed axis, and y (inout)
[batch..., indexed..., row...]; the parameter `batch` counts the axes that all share (y may have more places there),
`reduction` says what becomes of what is there before: none (overwritten), add, mul, max, min.

Tasks share out the batch and the elements of a row, never the n points of one place of the batch, and walk these in
order: so of equal indices the last one wins, or all are combined in order, whatever the split. Negative indices count
from the end. An index out of range ends the run: status INDEX, detail0 the index as it was given, detail1 the extent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.gather import checked, given
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.nest import Axis, Tasks, advance, estimate, is_empty, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec

REDUCTIONS = ("none", "add", "mul", "max", "min")


@dataclass(frozen=True)
class _Geometry:
    """Which axes are which. The strides are those of the updates, of each tensor of indices, and of y."""

    tasks: Tasks
    """The batch, then the row."""
    by_row: bool
    """Whether the innermost axis of the tasks is one along which the indices stay the same."""
    points: tuple[Axis, ...]
    indexed: tuple[Axis, ...]
    """The extents of y that are indexed, and its strides there."""

    @staticmethod
    def of(spec: KernelSpec) -> _Geometry:
        updates, *indices, y = spec.operands
        batch, rank = spec["batch"], len(indices[0].dims)
        assert isinstance(batch, int)
        behind = batch + len(indices)
        shared = [
            Axis(updates.dims[n], (updates.strides[n], *(i.strides[n] for i in indices), y.strides[n]))
            for n in range(batch)
        ]
        still = (0,) * len(indices)
        row = [
            Axis(extent, (ours, *still, theirs))
            for extent, ours, theirs in zip(updates.dims[rank:], updates.strides[rank:], y.strides[behind:])
        ]
        points = [
            Axis(updates.dims[n], (updates.strides[n], *(i.strides[n] for i in indices), 0)) for n in range(batch, rank)
        ]
        axes = merged([*shared, *row]) or [Axis(1, (1, *still, 1))]
        return _Geometry(
            Tasks.of(axes, estimate([axis.extent for axis in points]), BLOCK),
            axes[-1].strides[1:-1] == still,
            tuple(merged(points)),
            tuple(Axis(y.dims[n], (y.strides[n],)) for n in range(batch, behind)),
        )


class _Emitter:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, symbol: str) -> None:
        self.updates, *self.indices, self.y = spec.operands
        self.reduction = str(spec["reduction"])
        self.dtype = self.y.dtype
        if not self.indices or not all(index.dtype.is_integer for index in self.indices):
            raise CompileError("scatter_nd addresses by integers", got=str(spec))
        if self.y.access != "inout" or self.updates.dtype is not self.dtype or self.reduction not in REDUCTIONS:
            raise CompileError("scatter_nd combines updates with what is there", got=str(spec))
        self.f, self.geometry = Kernel(symbol, spec.extents), _Geometry.of(spec)
        self.sizes = [operand.dtype.bytes for operand in spec.operands]

    def emit(self) -> str:
        f = self.f
        if not any(extent == 0 for extent in (*self.updates.dims, *self.y.dims)):
            self.geometry.tasks.emit(f, [f.operand(n) for n in range(len(self.sizes))], self.sizes, self._leaf)
        return f.finish()

    def _leaf(self, at: list[Reg], outer: list[Int], low: Int, high: Int) -> None:
        f, axis = self.f, self.geometry.tasks.axes[-1]
        if not self.geometry.by_row:
            with self.geometry.tasks.innermost(f, low, high) as loop:
                here = advance(f, at, self.sizes, axis, loop.i)
                self._points(here, lambda source, target: self._write(source, target, 1))
            return
        wide = axis.strides[0] == axis.strides[-1] == 1
        middle = f.sub(high, f.rem(f.sub(high, low), BLOCK)) if wide else low

        def row(source: Reg, target: Reg) -> None:
            for first, last, count in ((low, middle, BLOCK), (middle, high, 1)):
                if is_empty(first, last):
                    continue
                with f.loop(first, last, count) as loop:
                    there, *_, here = advance(f, [source, *at[1:-1], target], self.sizes, axis, loop.i)
                    self._write(there, here, count)

        self._points(at, row)

    def _points(self, at: list[Reg], write: Callable[[Reg, Reg], None]) -> None:
        """Runs `write(update, target)` for each point, in order."""
        self._walk(0, at, write)

    def _walk(self, depth: int, at: list[Reg], write: Callable[[Reg, Reg], None]) -> None:
        f, axes = self.f, self.geometry.points
        if depth < len(axes):
            inside = estimate([axis.extent for axis in axes[depth + 1 :]])
            unit = inside * (self.geometry.tasks.group if self.geometry.by_row else 1)
            with polled(f, 0, f.dim(axes[depth].extent, f.extents), unit) as loop:
                self._walk(depth + 1, advance(f, at, self.sizes, axes[depth], loop.i), write)
            return
        source, *tables, target = at
        for table, index, axis in zip(tables, self.indices, self.geometry.indexed):
            place = checked(f, given(f, index, table), f.dim(axis.extent, f.extents))
            target = f.address(target, f.mul(place, f.dim(axis.strides[0], f.extents)), self.dtype.bytes)
        write(source, target)

    def _write(self, source: Reg, target: Reg, count: int) -> None:
        f, dtype = self.f, self.dtype
        value = elementwise.load(f, dtype, source, count)
        if self.reduction != "none":
            before = elementwise.load(f, dtype, target, count)
            value = elementwise.emit_step(f, self.reduction, [before, value], {}, dtype, [dtype, dtype])
        elementwise.store(f, dtype, value, target)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    return _Emitter(spec, symbol).emit()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of the batch and of elements of a row."""
    return _Geometry.of(spec).tasks.count


def work(spec: KernelSpec) -> Dim:
    """Elements read and written."""
    return dims.product(spec.operands[0].dims) * 2


SCATTER_ND = KernelDef(
    "scatter_nd",
    "Updates into the rows that indices name, in place and in order; out of range ends the run.",
    emit,
    tasks,
    work,
)
