"""`cumulative`: running sums or products along the last axis of x [kept..., n], into y of the same extents.

Floats are combined in f64, one after the other, and each total is rounded once. Parameters: `kept` (the number of axes
before the last), `kind` (sum, prod), `exclusive`. Where a kept axis is contiguous, sixteen rows go at once.
"""

from __future__ import annotations

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import Target
from relume.kernels import elementwise
from relume.kernels.ir import Kernel, Reg
from relume.kernels.nest import polled
from relume.kernels.reduce import Outputs
from relume.program.types import ConstReader, KernelDef, KernelSpec

_STEPS = {"sum": ("add", 0), "prod": ("mul", 1)}


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    x, y = spec.operands
    dtype, wide = x.dtype, dtypes.f64 if x.dtype.is_float else x.dtype
    if dtype.kind == "bool" or y.dtype is not dtype:
        raise CompileError("running totals are of numbers", got=str(spec))
    op, neutral = _STEPS[str(spec["kind"])]
    f = Kernel(symbol, spec.extents)
    count_of, from_, to = (f.dim(dim, f.extents) for dim in (x.dims[-1], x.strides[-1], y.strides[-1]))

    def output(source: Reg, result: Reg, count: int) -> None:
        with polled(f, 0, count_of, count, carry=[elementwise.constant(f, neutral, wide, count)]) as loop:
            (before,) = loop.carried
            value = elementwise.load(f, dtype, f.address(source, f.mul(loop.i, from_), dtype.bytes), count)
            value = elementwise.emit_step(f, "cast", [value], {}, wide, [dtype])
            after = elementwise.emit_step(f, op, [before, value], {}, wide, [wide, wide])
            total = elementwise.emit_step(f, "cast", [before if spec["exclusive"] else after], {}, dtype, [wide])
            elementwise.store(f, dtype, total, f.address(result, f.mul(loop.i, to), dtype.bytes))
            loop.next = [after]

    if not any(extent == 0 for extent in y.dims):
        Outputs.of(spec, rows=False).emit(f, spec, output)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of rows."""
    return Outputs.of(spec, rows=False).tasks.count


def work(spec: KernelSpec) -> Dim:
    """Four operations per element: they wait for each other."""
    return dims.product(spec.operands[0].dims) * 4


CUMULATIVE = KernelDef(
    "cumulative", "Running sums or products along the last axis, in f64 for floats.", emit, tasks, work
)
