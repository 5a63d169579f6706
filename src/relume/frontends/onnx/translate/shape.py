"""Shapes as values, constants, and what is made from shapes."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from relume.base import dims, dtypes
from relume.base.dims import Expr, not_negative
from relume.base.dtypes import i64
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.tensors import dtype_of
from relume.graph.types import Value

_SINCE_13 = (13, 19, 21, 23, 24, 25)


@translates("Constant", versions=(1, 9, 11, 12, *_SINCE_13))
def constant(call: Call) -> Value:
    if call.has("value"):
        return call.emitter.constant(call.emitter.array(call.attr("value", TensorProto)))
    for name, dtype in (
        ("value_float", dtypes.f32),
        ("value_floats", dtypes.f32),
        ("value_int", i64),
        ("value_ints", i64),
    ):
        if call.has(name):
            return call.constant(call.attrs[name], dtype)
    return call.unsupported(f"a constant given as {', '.join(sorted(call.attrs)) or 'nothing'}")
    return None


@translates("Shape", versions=(1, 13, 15, 19, 21, 23, 24, 25))
def shape(call: Call) -> Value:
    x = call.input(0)
    start = call.integer("start") if call.has("start") else 0
    end = call.integer("end") if call.has("end") else None
    return call.extents(x.dims[slice(start, end)])


@translates("Size", versions=(1, *_SINCE_13))
def size(call: Call) -> Value:
    return call.reshape(call.extents([call.input(0).tensor.elements]), ())


@translates("ConstantOfShape", versions=(9, 20, 21, 23, 24, 25))
def constant_of_shape(call: Call) -> Value:
    wanted = call.dims(call.input(0), "the shape")
    if any(isinstance(dim, int) and dim < 0 for dim in wanted):
        call.wrong("a shape has no negative extents", "extents of at least 0", list(wanted))
    if call.has("value"):
        data = call.emitter.array(call.attr("value", TensorProto))
        if data.size != 1:
            call.wrong("ConstantOfShape repeats one element", "one element", f"{data.size} elements")
    else:
        data = np.zeros(1, np.float32)
    return call.apply("broadcast", call.emitter.constant(data.reshape(())), dims=wanted)


@translates("EyeLike", versions=(9, 22))
def eye_like(call: Call) -> Value:
    """1 where column - row is k, else 0, in the shape of the input."""
    x = call.input(0)
    if x.tensor.rank != 2:
        call.wrong("EyeLike takes a matrix", "rank 2", x.type)
    to = dtype_of(call.integer("dtype")) if call.has("dtype") else x.dtype
    rows = call.apply("add", call.iota(2, 0, x.dims[0]), call.integer("k"))
    return call.cast(call.apply("equal", rows, call.iota(2, 1, x.dims[1])), to)


@translates("Range", versions=(11, 27))
def range_(call: Call) -> Value:
    """start + i * step. Bounds that are integers may be symbolic; the length cannot depend on data."""
    operands = [call.input(index) for index in range(3)]
    dtype = operands[0].dtype
    start, limit, step = (call.dims(operand, "its length")[0] for operand in operands)
    if not isinstance(step, (int, float)):
        call.unsupported(f"its step {step} is symbolic")
    if step == 0 or not all(math.isfinite(bound) for bound in (start, limit, step) if not isinstance(bound, Expr)):
        call.wrong("Range never ends", "finite bounds and a step other than 0", f"{start} to {limit} by {step}")
    if dtype.is_float:
        if isinstance(start, Expr) or isinstance(limit, Expr):
            call.unsupported("its length is a float made of symbolic extents")
        count = max(0, math.ceil((limit - start) / step))
        call.emitter.reserve(count)
        return call.constant(start + np.arange(count) * step, dtype)
    span = limit - start if step > 0 else start - limit
    length = dims.ceildiv(span, abs(int(step)))
    length = length if not_negative(length) else dims.maximum(length, 0)
    places = call.cast(call.iota(1, 0, length), dtype)
    first = call.value_of(np.array(start, object), dtype)
    return call.apply("add", call.apply("mul", places, call.constant(step, dtype)), first)


@translates("NonZero", versions=(9, 13))
def non_zero(call: Call) -> Value:
    """Only of what is known: the number of elements that are not 0 is else known when the model runs."""
    known = call.numbers(call.input(0))
    if known is None:
        call.unsupported("the shape of its result depends on data")
    return call.constant(np.array(np.nonzero(known)), i64)
