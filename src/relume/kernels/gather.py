"""`gather`: rows of x [outer, axis, inner...] by indices [n] into y [outer, n, inner...].

Negative indices count from the end. An index out of range ends the run: status INDEX, detail0 the index as it was
given, detail1 the extent.
"""

from __future__ import annotations

from relume.base import dims
from relume.base.abi import Status
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg, vector
from relume.kernels.nest import Axis, Tasks, advance, estimate, is_empty, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec


def _rows(spec: KernelSpec) -> list[Axis]:
    """The axes of one row, of x and y."""
    x, _, y = spec.operands
    return merged([Axis(e, (s, t)) for e, s, t in zip(y.dims[2:], x.strides[2:], y.strides[2:])])


def _plan(spec: KernelSpec) -> Tasks:
    """The outer axis and the indices, along which x does not move by itself."""
    x, _, y = spec.operands
    outer, along = Axis(y.dims[0], (x.strides[0], y.strides[0])), Axis(y.dims[1], (0, y.strides[1]))
    return Tasks.of([outer, along], estimate([axis.extent for axis in _rows(spec)]))


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    x, indices, y = spec.operands
    if not indices.dtype.is_integer:
        raise CompileError("gather addresses by integers", got=indices.dtype)
    f = Kernel(symbol, spec.extents)
    if any(extent == 0 for extent in y.dims):
        return f.finish()
    size, axes, plan = x.dtype.bytes, _rows(spec), _plan(spec)
    extent = f.dim(x.dims[1], f.extents)
    source, table, result = (f.operand(n) for n in range(3))

    def leaf(at: list[Reg], outer: list[Int], low: Int, high: Int) -> None:
        with plan.innermost(f, low, high) as loop:
            place = f.mul(loop.i, f.dim(indices.strides[0], f.extents))
            given = elementwise.load(f, indices.dtype, f.address(table, place, indices.dtype.bytes))
            index = _checked(f, _as_i64(f, given, indices.dtype.is_signed), extent)
            row = f.address(at[0], f.mul(index, f.dim(x.strides[1], f.extents)), size)
            into = f.address(at[1], f.mul(loop.i, f.dim(y.strides[1], f.extents)), size)
            _copy(f, axes, row, into, size)

    plan.emit(f, [source, result], [size, size], leaf)
    return f.finish()


def _as_i64(f: Kernel, value: Reg, signed: bool) -> Reg:
    return value if value.type == "i64" else f.convert("sext" if signed else "zext", value, "i64")


def _checked(f: Kernel, given: Reg, extent: Int) -> Reg:
    negative = f.compare("slt", given, 0)
    index = f.select(negative, f.assign("i64", f"add i64 {given}, {extent}"), given)
    outside = f.assign("i1", f"icmp uge i64 {index}, {extent}")
    with f.when(outside):
        f.fail(Status.INDEX, given, extent)
    return index


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
    """Groups of indices, for each outer index."""
    return _plan(spec).count


def work(spec: KernelSpec) -> Dim:
    """Elements moved."""
    return dims.product(spec.operands[2].dims)


GATHER = KernelDef(
    "gather",
    "Rows of one axis by indices that are data; out of range ends the run with the index and the extent.",
    emit,
    tasks,
    work,
)
