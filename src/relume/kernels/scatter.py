"""`scatter_add` and `scatter_update`: updates [n, inner...] into a state [rows, inner...] by indices [n], in place.

All indices are checked before anything is written, by every task, so that all come to one answer: a run that an index
out of range ends (status INDEX, detail0 the index as it was given, detail1 the extent) has touched nothing.
Negative indices count from the end. Tasks share out the elements of a row, never the indices, and walk these in order:
so equal indices accumulate, or the last one wins, whatever the split. Only the rows named are read or written.
"""

from __future__ import annotations

from relume.base import dims
from relume.base.abi import Status
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.nest import Axis, Tasks, advance, estimate, is_empty, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec


def _plan(spec: KernelSpec) -> Tasks:
    """The axes of one row, of the state and the updates."""
    state, _, updates = spec.operands
    row = merged([Axis(e, (s, u)) for e, s, u in zip(state.dims[1:], state.strides[1:], updates.strides[1:])])
    return Tasks.of(row or [Axis(1, (1, 1))], estimate([updates.dims[0]]), BLOCK)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    state, indices, updates = spec.operands
    if not indices.dtype.is_integer or (state.access, state.dtype) != ("inout", updates.dtype):
        raise CompileError("a scatter takes inout rows, in integers, in rows", got=str(spec))
    f = Kernel(symbol, spec.extents)
    if updates.dims[0] == 0:
        return f.finish()
    size, plan, dtype = state.dtype.bytes, _plan(spec), state.dtype
    count, extent = f.dim(updates.dims[0], f.extents), f.dim(state.dims[0], f.extents)
    rows, table, source = (f.operand(n) for n in range(3))

    def given(i: Int) -> Reg:
        place = f.mul(i, f.dim(indices.strides[0], f.extents))
        value = elementwise.load(f, indices.dtype, f.address(table, place, indices.dtype.bytes))
        return value if value.type == "i64" else f.convert("sext" if indices.dtype.is_signed else "zext", value, "i64")

    def from_front(index: Reg) -> Reg:
        moved = f.assign("i64", f"add i64 {index}, {extent}")
        return f.select(f.compare("slt", index, 0), moved, index)

    with polled(f, 0, count, 1) as check:
        index = given(check.i)
        with f.when(f.assign("i1", f"icmp uge i64 {from_front(index)}, {extent}")):
            f.fail(Status.INDEX, index, extent)

    def write(at: list[Reg], row: Int, i: Int, low: Int, high: Int, lanes: int) -> None:
        if is_empty(low, high):
            return
        into = f.address(at[0], f.mul(row, f.dim(state.strides[0], f.extents)), size)
        of = f.address(at[1], f.mul(i, f.dim(updates.strides[0], f.extents)), size)
        with f.loop(low, high, lanes) as loop:
            here, there = advance(f, [into, of], [size, size], plan.axes[-1], loop.i)
            value = elementwise.load(f, dtype, there, lanes)
            if spec.kernel == "scatter_add":
                value = elementwise.emit_step(f, "add", [elementwise.load(f, dtype, here, lanes), value], {}, dtype)
            elementwise.store(f, dtype, value, here)

    def leaf(at: list[Reg], outer: list[Int], low: Int, high: Int) -> None:
        wide = plan.axes[-1].strides == (1, 1)
        middle = f.sub(high, f.rem(f.sub(high, low), BLOCK)) if wide else low
        with polled(f, 0, count, plan.group if len(plan.axes) == 1 else estimate([plan.axes[-1].extent])) as loop:
            row = from_front(given(loop.i))
            write(at, row, loop.i, low, middle, BLOCK)
            write(at, row, loop.i, middle, high, 1)

    if not any(dim == 0 for dim in state.dims):
        plan.emit(f, [rows, source], [size, size], leaf)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of elements of a row."""
    return _plan(spec).count


def work(spec: KernelSpec) -> Dim:
    """Elements read and written."""
    return dims.product(spec.operands[2].dims) * 2


SCATTER_ADD = KernelDef(
    "scatter_add", "Adds rows to the rows of a state by index, in place; equal indices in order.", emit, tasks, work
)
SCATTER_UPDATE = KernelDef(
    "scatter_update", "Overwrites rows of a state by index, in place; the last of equal indices.", emit, tasks, work
)
