"""`gather` and `gather_nd`: rows of x by indices that are data.

`gather_nd` takes x [batch..., indexed..., row...], one tensor of indices [batch..., n...] for each indexed axis, and
y [batch..., n..., row...]; the parameter `batch` counts the axes that x and the indices share (x may have more places
there). `gather` is the case of one indexed axis between one outer axis and the row, where the indices [n] are the same
for every outer place: x [outer, axis, row...], y [outer, n, row...].

Negative indices count from the end. An index out of range ends the run: status INDEX, detail0 the index as it was
given, detail1 the extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relume.base import dims
from relume.base.abi import Status
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg, vector
from relume.kernels.nest import Axis, Tasks, advance, estimate, is_empty, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec, OperandSpec


@dataclass(frozen=True)
class _Geometry:
    """Which axes are which. The strides of `points` are those of x, of each tensor of indices, and of y."""

    points: tuple[Axis, ...]
    indexed: tuple[Axis, ...]
    """The extents of x that are indexed, and its strides there."""
    row: tuple[Axis, ...]
    """What is copied for each point, in x and y."""

    @staticmethod
    def of(spec: KernelSpec) -> _Geometry:
        x, *indices, y = spec.operands
        if spec.kernel == "gather":
            (index,) = indices
            outer = Axis(y.dims[0], (x.strides[0], 0, y.strides[0]))
            along = Axis(y.dims[1], (0, index.strides[0], y.strides[1]))
            return _Geometry.made([outer, along], x, 1, 1, y, 2)
        batch = spec["batch"]
        assert isinstance(batch, int)
        rank = len(indices[0].dims)
        points = [
            Axis(y.dims[n], (x.strides[n] if n < batch else 0, *(i.strides[n] for i in indices), y.strides[n]))
            for n in range(rank)
        ]
        return _Geometry.made(points, x, batch, len(indices), y, rank)

    @staticmethod
    def made(points: Sequence[Axis], x: OperandSpec, first: int, count: int, y: OperandSpec, rank: int) -> _Geometry:
        """x is indexed along `count` axes from `first` on; y has `rank` axes before its rows."""
        if all(isinstance(axis.strides[-1], int) for axis in points):
            # Any order of the points will do: the one in which y lies.
            points = sorted(points, key=lambda axis: -abs(axis.strides[-1]))  # type: ignore[arg-type]
        behind = first + count
        row = [Axis(e, (s, t)) for e, s, t in zip(y.dims[rank:], x.strides[behind:], y.strides[rank:])]
        still = Axis(1, (0,) * (count + 2))
        return _Geometry(
            tuple(merged(points) or [still]),
            tuple(Axis(x.dims[n], (x.strides[n],)) for n in range(first, behind)),
            tuple(merged(row)),
        )

    @property
    def tasks(self) -> Tasks:
        return Tasks.of(self.points, estimate([axis.extent for axis in self.row]))


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    x, *indices, y = spec.operands
    if not indices or not all(index.dtype.is_integer for index in indices):
        raise CompileError("gather addresses by integers", got=", ".join(str(index.dtype) for index in indices))
    f = Kernel(symbol, spec.extents)
    if any(extent == 0 for extent in y.dims):
        return f.finish()
    geometry = _Geometry.of(spec)
    plan, size = geometry.tasks, x.dtype.bytes
    sizes = [size, *(index.dtype.bytes for index in indices), size]

    def leaf(at: list[Reg], outer: list[Int], low: Int, high: Int) -> None:
        with plan.innermost(f, low, high) as loop:
            source, *tables, result = advance(f, at, sizes, plan.axes[-1], loop.i)
            for table, index, axis in zip(tables, indices, geometry.indexed):
                extent, stride = f.dim(axis.extent, f.extents), f.dim(axis.strides[0], f.extents)
                source = f.address(source, f.mul(checked(f, given(f, index, table), extent), stride), size)
            _copy(f, list(geometry.row), source, result, size)

    plan.emit(f, [f.operand(n) for n in range(len(spec.operands))], sizes, leaf)
    return f.finish()


def given(f: Kernel, index: OperandSpec, pointer: Reg) -> Reg:
    """The index at `pointer`, as i64."""
    value = elementwise.load(f, index.dtype, pointer)
    return value if value.type == "i64" else f.convert("sext" if index.dtype.is_signed else "zext", value, "i64")


def from_front(f: Kernel, index: Reg, extent: Int) -> Reg:
    """A negative index counted from the end."""
    return f.select(f.compare("slt", index, 0), f.assign("i64", f"add i64 {index}, {extent}"), index)


def checked(f: Kernel, index: Reg, extent: Int) -> Reg:
    """The index from the front; the run ends where it is out of range."""
    place = from_front(f, index, extent)
    with f.when(f.assign("i1", f"icmp uge i64 {place}, {extent}")):
        f.fail(Status.INDEX, index, extent)
    return place


def _copy(f: Kernel, axes: list[Axis], source: Reg, result: Reg, size: int) -> None:
    """One row, by vectors along its last axis where that is contiguous."""
    if not axes:
        f.store(f.load(f"i{size * 8}", source, size), result, size)
        return
    length = f.dim(axes[0].extent, f.extents)
    if len(axes) > 1:
        with polled(f, 0, length, estimate([axis.extent for axis in axes[1:]])) as loop:
            there, here = advance(f, [source, result], [size, size], axes[0], loop.i)
            _copy(f, axes[1:], there, here, size)
        return
    whole = f.sub(length, f.rem(length, BLOCK)) if axes[0].strides == (1, 1) else 0
    for low, high, count in ((0, whole, BLOCK), (whole, length, 1)):
        if is_empty(low, high):
            continue
        with polled(f, low, high, 1, count) as loop:
            there, here = advance(f, [source, result], [size, size], axes[0], loop.i)
            f.store(f.load(vector(f"i{size * 8}", count), there, size), here, size)


def tasks(spec: KernelSpec) -> Dim:
    """Groups of points."""
    return _Geometry.of(spec).tasks.count


def work(spec: KernelSpec) -> Dim:
    """Elements moved."""
    return dims.product(spec.operands[-1].dims)


GATHER = KernelDef(
    "gather",
    "Rows of one axis by indices that are data; out of range ends the run with the index and the extent.",
    emit,
    tasks,
    work,
)
GATHER_ND = KernelDef(
    "gather_nd",
    "Rows by as many indices as there are indexed axes, along shared axes; out of range ends the run.",
    emit,
    tasks,
    work,
)
