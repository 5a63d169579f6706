"""Quantising and dequantising, per tensor or per axis."""

from __future__ import annotations

from relume.base import dtypes
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value

_VERSIONS = (10, 13, 19, 21, 23, 24, 25)


def _parameters(call: Call, x: Value, zero_dtype: dtypes.DType) -> tuple[Value, Value, int]:
    """Scale, zero point and the axis they belong to (-1: scalars)."""
    scale, zero = call.input(1), call.optional(2)
    if call.has("block_size") and call.integer("block_size"):
        call.unsupported("quantisation in blocks")
    if zero is None:
        zero = (
            call.apply("broadcast", call.constant(0, zero_dtype), dims=scale.dims)
            if scale.dims
            else call.constant(0, zero_dtype)
        )
    if scale.tensor.elements == 1 and zero.tensor.elements == 1:
        return call.reshape(scale, ()), call.reshape(zero, ()), -1
    if scale.tensor.rank != 1:
        call.wrong("scales are a scalar or a vector", "rank 0 or 1", scale.type)
    return scale, zero, call.axis(x.tensor.rank) if call.has("axis") else 1


@translates("QuantizeLinear", versions=_VERSIONS)
def quantize_linear(call: Call) -> Value:
    x = call.input(0)
    if call.has("output_dtype") and call.integer("output_dtype"):
        call.unsupported("an output type other than that of the zero point")
    scale, zero, axis = _parameters(call, x, dtypes.u8)
    if x.dtype is dtypes.i32:
        x = call.cast(x, scale.dtype)
    if x.dtype is not scale.dtype:
        call.unsupported(f"data of {x.dtype} with scales of {scale.dtype}")
    return call.apply("quantize", x, scale, zero, axis=axis)


@translates("DequantizeLinear", versions=_VERSIONS)
def dequantize_linear(call: Call) -> Value:
    x = call.input(0)
    scale, zero, axis = _parameters(call, x, x.dtype)
    return call.apply("dequantize", x, scale, zero, axis=axis)
