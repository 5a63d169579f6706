"""Shapes as values, constants, and what is made from shapes."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from relume.base import dtypes
from relume.base.dtypes import i64
from relume.frontends.onnx.calls import Call, translates
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


@translates("Range", versions=(11, 27))
def range_(call: Call) -> Value:
    """Where start, limit and step are numbers; the length cannot depend on data, nor yet on symbols."""
    operands = [call.input(index) for index in range(3)]
    known = [call.numbers(operand) for operand in operands]
    if any(number is None for number in known):
        call.unsupported("its length depends on symbolic extents, or on data that is only known when the model runs")
    start, limit, step = (number.reshape(-1)[0].item() for number in known if number is not None)
    if step == 0 or not all(map(math.isfinite, (start, limit, step))):
        call.wrong("Range never ends", "finite bounds and a step other than 0", f"{start} to {limit} by {step}")
    count = max(0, math.ceil((limit - start) / step) if isinstance(step, float) else -((start - limit) // step))
    call.emitter.reserve(count)
    return call.constant(start + np.arange(count) * step, operands[0].dtype)


@translates("NonZero", versions=(9, 13))
def non_zero(call: Call) -> Value:
    """Only of what is known: the number of elements that are not 0 is else known when the model runs."""
    known = call.numbers(call.input(0))
    if known is None:
        call.unsupported("the shape of its result depends on data")
    return call.constant(np.array(np.nonzero(known)), i64)
