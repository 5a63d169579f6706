"""Updates of the rows of a state by index, in place: the check of the indices, and then the writes.

`row_numbers` turns indices [n] into row numbers, i64 [n], of an axis whose extent is the call's scalar. Negative
indices count from the end; one out of range ends the run: status INDEX, detail0 the index as it was given, detail1 the
extent. It writes no state, so a program can check the indices of all its updates before the first write. It is one
task, so that the first index that is wrong is the one reported.

`scatter_add` and `scatter_update` put updates [n, inner...] into a state [rows, inner...] by row numbers [n], which are
in range: they cannot fail. Tasks share out the elements of a row, never the row numbers, and walk these in order: so
equal ones accumulate, or the last one wins, whatever the split. Only the rows named are read or written.
"""

from __future__ import annotations

from relume.base import dims
from relume.base.abi import Status
from relume.base.dims import Dim
from relume.base.dtypes import i64
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.nest import Axis, Tasks, advance, estimate, is_empty, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec


def emit_check(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    indices, result = spec.operands
    if not indices.dtype.is_integer or result.dtype is not i64 or len(spec.scalars) != 1:
        raise CompileError("row numbers are i64, of integers and one extent", got=str(spec))
    f = Kernel(symbol, spec.extents)
    count, extent = f.dim(indices.dims[0], f.extents), f.dim(spec.scalars[0], f.extents)
    table, numbers = f.operand(0), f.operand(1)
    with f.loop(f.begin, f.end), polled(f, 0, count, 1) as loop:
        at = f.address(table, f.mul(loop.i, f.dim(indices.strides[0], f.extents)), indices.dtype.bytes)
        given = elementwise.load(f, indices.dtype, at)
        if given.type != "i64":
            given = f.convert("sext" if indices.dtype.is_signed else "zext", given, "i64")
        row = f.select(f.compare("slt", given, 0), f.assign("i64", f"add i64 {given}, {extent}"), given)
        with f.when(f.assign("i1", f"icmp uge i64 {row}, {extent}")):
            f.fail(Status.INDEX, given, extent)
        f.store(row, f.address(numbers, f.mul(loop.i, f.dim(result.strides[0], f.extents)), 8), 8)
    return f.finish()


def _plan(spec: KernelSpec) -> Tasks:
    """The axes of one row, of the state and the updates."""
    state, _, updates = spec.operands
    row = merged([Axis(e, (s, u)) for e, s, u in zip(state.dims[1:], state.strides[1:], updates.strides[1:])])
    return Tasks.of(row or [Axis(1, (1, 1))], estimate([updates.dims[0]]), BLOCK)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    state, numbers, updates = spec.operands
    if numbers.dtype is not i64 or (state.access, state.dtype) != ("inout", updates.dtype):
        raise CompileError("a scatter takes inout rows, in row numbers (i64), in rows", got=str(spec))
    f = Kernel(symbol, spec.extents)
    if any(dim == 0 for dim in (*state.dims, updates.dims[0])):
        return f.finish()
    size, plan, dtype = state.dtype.bytes, _plan(spec), state.dtype
    count = f.dim(updates.dims[0], f.extents)
    rows, table, source = (f.operand(n) for n in range(3))

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
            row = f.load("i64", f.address(table, f.mul(loop.i, f.dim(numbers.strides[0], f.extents)), 8), 8)
            write(at, row, loop.i, low, middle, BLOCK)
            write(at, row, loop.i, middle, high, 1)

    plan.emit(f, [rows, source], [size, size], leaf)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of elements of a row."""
    return _plan(spec).count


def work(spec: KernelSpec) -> Dim:
    """Elements read and written."""
    return dims.product(spec.operands[2].dims) * 2


ROW_NUMBERS = KernelDef(
    "row_numbers",
    "Indices counted from the front; one out of range ends the run with the index and the extent.",
    emit_check,
    lambda spec: 1,
    lambda spec: spec.operands[0].dims[0],
)
SCATTER_ADD = KernelDef(
    "scatter_add", "Adds rows to the rows of a state by number, in place; equal numbers in order.", emit, tasks, work
)
SCATTER_UPDATE = KernelDef(
    "scatter_update", "Overwrites rows of a state by number, in place; the last of equal numbers.", emit, tasks, work
)
