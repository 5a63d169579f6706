"""Matrix product of integers, which is exact: y[.., m, n] = sum over k of a[.., m, k] * b[.., k, n], wrapping around.

A task is one row of the result; sixteen neighbouring columns are made at once where they are contiguous.
"""

from __future__ import annotations

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels.epilogue import Epilogue, reuse
from relume.kernels.ir import Int, Kernel, Reg, llvm_type, vector
from relume.kernels.microkernel import unravel
from relume.program.types import IN, ConstReader, KernelDef, KernelSpec, Reuse


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    a, b, y = spec.operands[0], spec.operands[1], spec.operands[-1]
    if a.dtype is not b.dtype or a.dtype.is_float or a.dtype.kind == "bool" or y.access == IN:
        raise CompileError("dot multiplies integers", got=str(spec))
    f = Kernel(symbol, spec.extents)
    size, type_ = a.dtype.bytes, llvm_type(a.dtype)
    *rows, columns = (f.dim(extent, f.extents) for extent in y.dims)
    depth = f.dim(a.dims[-1], f.extents)
    a_strides, b_strides = ([f.dim(stride, f.extents) for stride in operand.strides] for operand in (a, b))
    contiguous = b.strides[-1] == 1
    epilogue = Epilogue.of(f, spec, 2)

    def cell(left: Reg, right: Reg, here: Epilogue, lanes: int) -> None:
        with f.loop(0, depth, carry=[f.zero(vector(type_, lanes))]) as loop:
            f.poll()
            factor = f.load(type_, f.address(left, f.mul(loop.i, a_strides[-1]), size), size)
            other = f.load(vector(type_, lanes), f.address(right, f.mul(loop.i, b_strides[-2]), size), size)
            product = f.binary("mul", f.splat(factor, lanes), other)
            loop.next = [f.binary("add", loop.carried[0], product)]
        here.apply(loop.results[0])

    with f.loop(f.begin, f.end) as task:
        index = unravel(f, task.i, rows)
        left = f.address(f.operand(0), f.total(list(zip(index, a_strides))), size)
        right = f.address(f.operand(1), f.total(list(zip(index[:-1], b_strides))), size)
        low: Int = 0
        for lanes in (BLOCK, 1):
            if lanes > 1 and not (contiguous and epilogue.vectorises):
                continue
            high = f.add(low, f.mul(f.div(f.sub(columns, low), lanes), lanes))
            with f.loop(low, high, lanes) as column:
                there = f.address(right, f.mul(column.i, b_strides[-1]), size)
                cell(left, there, epilogue.at(*index, column.i), lanes)
            low = high
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Rows of the result."""
    return dims.product(spec.operands[-1].dims[:-1])


def work(spec: KernelSpec) -> Dim:
    """A product and a sum for each element of the result and of k."""
    return dims.product(spec.operands[-1].dims) * spec.operands[0].dims[-1] * 2


def _may_reuse(spec: KernelSpec) -> Reuse:
    return reuse(spec, 2)


DOT = KernelDef(
    "dot",
    "The product of integer matrices [B..,M,K] by [B..,K,N]; params body, outs.",
    emit,
    tasks,
    work,
    may_reuse=_may_reuse,
)
