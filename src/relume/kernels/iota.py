"""`iota`: 0, 1, 2 ... into a vector."""

from __future__ import annotations

from relume.base.dims import Dim
from relume.base.dtypes import i64
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg, vector
from relume.kernels.nest import Axis, Tasks, advance, is_empty
from relume.program.types import ConstReader, KernelDef, KernelSpec


def _plan(spec: KernelSpec) -> Tasks:
    (y,) = spec.operands
    return Tasks.of([Axis(y.dims[0], y.strides)], 1, BLOCK)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    (y,) = spec.operands
    f, plan, dtype = Kernel(symbol, spec.extents), _plan(spec), y.dtype

    def write(at: list[Reg], low: Int, high: Int, count: int) -> None:
        if is_empty(low, high):
            return
        with plan.innermost(f, low, high, count) as loop:
            (here,) = advance(f, at, [dtype.bytes], plan.axes[-1], loop.i)
            places = f.splat(Reg(str(loop.i), "i64"), count)
            if count > 1:
                lanes = ", ".join(f"i64 {lane}" for lane in range(count))
                places = f.binary("add", places, Reg(f"<{lanes}>", vector("i64", count)))
            elementwise.store(f, dtype, elementwise.emit_step(f, "cast", [places], {}, dtype, [i64]), here)

    def leaf(at: list[Reg], outer: list[Int], low: Int, high: Int) -> None:
        middle = f.sub(high, f.rem(f.sub(high, low), BLOCK)) if y.strides == (1,) else low
        write(at, low, middle, BLOCK)
        write(at, middle, high, 1)

    if y.dims[0] != 0:
        plan.emit(f, [f.operand(0)], [dtype.bytes], leaf)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Pieces of the vector."""
    return _plan(spec).count


def work(spec: KernelSpec) -> Dim:
    """Elements written."""
    return spec.operands[0].dims[0]


IOTA = KernelDef("iota", "Counts 0, 1, 2 ... into a vector of numbers.", emit, tasks, work)
