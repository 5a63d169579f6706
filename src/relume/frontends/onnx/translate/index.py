"""Picking elements by index."""

from __future__ import annotations

from relume.base import dtypes
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value


@translates("Gather", versions=(1, 11, 13))
def gather(call: Call) -> Value:
    x = call.input(0)
    return call.apply("gather", x, call.input(1), axis=call.axis(x.tensor.rank))


@translates("OneHot", versions=(9, 11, 28))
def one_hot(call: Call) -> Value:
    """values[1] where the index along a new axis is the one given, else values[0]; negative ones count from the end."""
    indices, depth, values = call.input(0), call.input(1), call.input(2)
    known = call.numbers(depth)
    if known is None:
        call.unsupported("the depth: only known when the model runs")
    number = known.reshape(-1)[0]
    if not number >= 1 or number >= 2**31:
        call.wrong("the depth of OneHot is out of range", "at least 1", number)
    size = int(number)
    rank = indices.tensor.rank + 1
    axis = call.axis(rank)
    index = call.cast(indices, dtypes.i64)
    wrapped = call.apply("select", call.apply("less", index, 0), call.apply("add", index, size), index)
    spread = call.reshape(wrapped, (*indices.dims[:axis], 1, *indices.dims[axis:]))
    places = call.reshape(call.count_up(0, size), (size, *(1,) * (rank - axis - 1)))
    off, on = (call.apply("gather", values, call.constant(place, dtypes.i64), axis=0) for place in (0, 1))
    return call.apply("select", call.apply("equal", spread, places), on, off)
