"""`argmax`: the index of the largest element over the trailing axes of a view [kept..., reduced...].

The first of equals; a NaN counts as larger than every number. Elements are met in ascending order. Where a kept axis
is contiguous, sixteen outputs are made at once.
"""

from __future__ import annotations

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import DType, i64
from relume.base.errors import CompileError
from relume.base.targets import Target
from relume.kernels import elementwise
from relume.kernels.ir import Function, Int, Kernel, Reg, vector
from relume.kernels.nest import fold
from relume.kernels.reduce import Outputs, neutral
from relume.program.types import ConstReader, KernelDef, KernelSpec


def exceeds(f: Function, dtype: DType, value: Reg, best: Reg) -> Reg:
    """Whether `value` comes before `best`, found earlier: larger, or the first NaN."""
    if dtype.is_float:
        return f.binary("and", f.fcompare("ugt", value, best), f.fcompare("ord", best, best))
    return f.icompare("sgt" if dtype.is_signed else "ugt", value, best)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    dtype = spec.operands[0].dtype
    if dtype.name in ("bool", "f16", "bf16") or spec.operands[-1].dtype is not i64:
        raise CompileError("argmax has no code for this", expected="numbers to i64", got=str(spec))
    f = Kernel(symbol, spec.extents)
    outputs = Outputs.of(spec, rows=False)

    def output(x: Reg, y: Reg, count: int) -> None:
        indices = vector("i64", count)
        start = [neutral(f, "max", dtype, count), f.int_constant(0, indices)]

        def look(pointer: Reg, index: Int, carried: list[Reg]) -> list[Reg]:
            best, where = carried
            value = f.load(best.type, pointer, dtype.bytes)
            here = f.int_constant(index, indices) if isinstance(index, int) else f.splat(index, count)
            larger = exceeds(f, dtype, value, best)
            return [f.select(larger, value, best), f.select(larger, here, where)]

        elementwise.store(f, i64, fold(f, outputs.reduced, x, dtype.bytes, start, look)[1], y)

    if not any(extent == 0 for extent in spec.operands[-1].dims):
        outputs.emit(f, spec, output)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of outputs."""
    return Outputs.of(spec, rows=False).tasks.count


def work(spec: KernelSpec) -> Dim:
    """Three operations per element read."""
    return dims.product(spec.operands[0].dims) * 3


ARGMAX = KernelDef(
    "argmax",
    "The index (i64) of the largest element over the trailing axes: the first of equals, NaN before every number.",
    emit,
    tasks,
    work,
)
