"""Products of matrices."""

from __future__ import annotations

from relume.base.dtypes import i32
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value


@translates("MatMul", versions=(1, 9, 13))
def matmul(call: Call) -> Value:
    return _product(call, call.input(0), call.input(1))


def _product(call: Call, a: Value, b: Value) -> Value:
    """As NumPy: a vector on the left is a row, on the right a column; the axis that was added is dropped again."""
    for operand in (a, b):
        if not operand.tensor.rank:
            call.wrong(f"{call.node.op} takes no scalars", "operands of rank 1 or more", operand.type)
    left = call.reshape(a, (1, *a.dims)) if a.tensor.rank == 1 else a
    right = call.reshape(b, (*b.dims, 1)) if b.tensor.rank == 1 else b
    y = call.apply("matmul", left, right)
    shape = list(y.dims)
    if b.tensor.rank == 1:
        del shape[-1]
    if a.tensor.rank == 1:
        del shape[len(y.dims) - 2]
    return call.reshape(y, shape)


@translates("Gemm", versions=(1, 6, 7, 9, 11, 13))
def gemm(call: Call) -> Value:
    """alpha * A' * B' + beta * C. Factors of 1 are left out."""
    a, b, c = call.input(0), call.input(1), call.optional(2)
    for matrix in (a, b):
        if matrix.tensor.rank != 2:
            call.wrong("Gemm multiplies matrices", "rank 2", matrix.type)
    if call.integer("transA"):
        a = call.transpose(a, (1, 0))
    if call.integer("transB"):
        b = call.transpose(b, (1, 0))
    y = _scaled(call, call.apply("matmul", a, b), call.number("alpha"))
    if c is None:
        return y
    if call.version < 7 and not call.integer("broadcast") and c.tensor.rank != 2:
        call.wrong("C needs broadcast=1 to have another shape", y.type, c.type)
    c = call.fitted("C", c, y.dims)
    beta = call.number("beta")
    return y if beta == 0 else call.apply("add", y, _scaled(call, c, beta))


@translates("MatMulInteger", versions=(10,))
def matmul_integer(call: Call) -> Value:
    """i32 product of (a - zero point of a) by (b - zero point of b); zero points of a go by rows, of b by columns."""
    a, b = (call.cast(call.input(index), i32) for index in (0, 1))
    for index, axis in ((2, -1), (3, -2)):
        zero = call.optional(index)
        if zero is None:
            continue
        offset = call.cast(zero, i32)
        if offset.tensor.rank == 1:
            offset = call.reshape(offset, (*offset.dims, 1) if axis == -1 else (1, *offset.dims))
        a, b = (call.apply("sub", a, offset), b) if index == 2 else (a, call.apply("sub", b, offset))
    return _product(call, a, b)


def _scaled(call: Call, x: Value, factor: float) -> Value:
    if factor == 1:
        return x
    if not x.dtype.is_float and factor != int(factor):
        call.unsupported(f"an integer matrix is scaled by {factor}")
    return call.apply("mul", x, factor)
