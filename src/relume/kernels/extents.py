"""`extents`: integers that are known to the compiler or to the driver, as a vector of data."""

from __future__ import annotations

from relume.base.dims import Dim
from relume.base.dtypes import i64
from relume.base.errors import CompileError
from relume.base.targets import Target
from relume.kernels.ir import Kernel, Reg
from relume.program.types import ConstReader, KernelDef, KernelSpec


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    (result,) = spec.operands
    if result.dtype is not i64 or (isinstance(result.dims[0], int) and result.dims != (len(spec.scalars),)):
        raise CompileError("extents fill a vector", expected=f"i64[{len(spec.scalars)}]", got=result)
    f = Kernel(symbol, spec.extents)
    pointer, stride = f.operand(0), f.dim(result.strides[0], f.extents)
    with f.loop(f.begin, f.end):
        for index, scalar in enumerate(spec.scalars):
            value = Reg(str(f.dim(scalar, f.extents)), "i64")
            f.store(value, f.address(pointer, f.mul(index, stride), 8), 8)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """One."""
    return 1


def work(spec: KernelSpec) -> Dim:
    """Elements written."""
    return len(spec.scalars)


EXTENTS = KernelDef("extents", "Writes the call's scalars into an i64 vector.", emit, tasks, work)
