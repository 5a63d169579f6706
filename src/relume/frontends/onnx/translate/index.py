"""Picking and placing elements by index."""

from __future__ import annotations

from collections.abc import Sequence

from relume.base import dtypes
from relume.base.dims import Dim, Expr
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.translate.movement import cut
from relume.graph.types import Value
from relume.ops.inference import exceeds


def from_front(call: Call, index: Value, extent: Dim) -> Value:
    """An index that may not be negative, for ops to which a negative one counts from the end: it becomes `extent`,
    which is out of range, and so an error of the run."""
    behind = call.cast(call.reshape(call.extents([extent]), ()), index.dtype)
    return call.apply("select", call.apply("less", index, 0), behind, index)


@translates("Gather", versions=(1, 11, 13))
def gather(call: Call) -> Value:
    x = call.input(0)
    return call.apply("gather", x, call.input(1), axis=call.axis(x.tensor.rank))


# --- along one axis -------------------------------------------------------------------------------------------------


def _along(call: Call, x: Value, indices: Value, axis: int) -> list[Value]:
    """The indices of GatherElements for the axes of x from `axis` on: behind it each element has its own place. The
    axes before it are shared."""
    if indices.tensor.rank != x.tensor.rank:
        call.wrong("the indices have another rank than the data", x.type, indices.type)
    for other, (dim, most) in enumerate(zip(indices.dims, x.dims)):
        if other != axis and exceeds(dim, most):
            call.wrong(f"axis {other} of the indices is longer than that of the data", x.type, indices.type)
    rank = x.tensor.rank
    own = (call.iota(rank, other, indices.dims[other]) for other in range(axis + 1, rank))
    return [indices, *(call.apply("broadcast", place, dims=indices.dims) for place in own)]


@translates("GatherElements", versions=(11, 13))
def gather_elements(call: Call) -> Value:
    x, indices = call.input(0), call.input(1)
    axis = call.axis(x.tensor.rank)
    return call.apply("gather_nd", x, *_along(call, x, indices, axis), batch=axis)


@translates("Scatter", versions=(9,))
@translates("ScatterElements", versions=(11, 13, 16, 18))
def scatter_elements(call: Call) -> Value:
    x, indices, updates = (call.input(index) for index in range(3))
    axis = call.axis(x.tensor.rank)
    return _scatter(call, x, updates, _along(call, x, indices, axis), axis)


def _scatter(call: Call, x: Value, updates: Value, indices: Sequence[Value], batch: int) -> Value:
    """`scatter_nd` with the reduction of the node; truth values are combined as 0 and 1."""
    reduction = call.attr("reduction", str) if call.has("reduction") else "none"
    if x.dtype is dtypes.bool_ and reduction != "none":
        x, updates = call.cast(x, dtypes.u8), call.cast(updates, dtypes.u8)
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
        y = call.apply("scatter_nd", x, updates, *indices, batch=batch, reduction=reduction)
        return call.cast(y, dtypes.bool_)
    return call.apply("scatter_nd", x, updates, *indices, batch=batch, reduction=reduction)


# --- several axes: the last axis of the indices says where ----------------------------------------------------------


def _components(call: Call, indices: Value, count: int) -> list[Value]:
    """The indices for each of `count` axes: what stands side by side along the last axis of `indices`."""
    rank = indices.tensor.rank
    indices = call.reshape(indices, (*indices.dims[:-1], count))  # Requires a symbolic extent to be the count.
    return [
        call.reshape(cut(call, indices, {rank - 1: (place, place + 1, 1)}), indices.dims[:-1]) for place in range(count)
    ]


@translates("GatherND", versions=(11, 12, 13))
def gather_nd(call: Call) -> Value:
    x, indices = call.input(0), call.input(1)
    batch = call.integer("batch_dims") if call.has("batch_dims") else 0
    count = indices.dims[-1] if indices.dims else 0
    if not isinstance(count, int):
        call.unsupported(f"the rank of its result depends on the symbolic extent {count}")
    if not 0 <= batch < min(x.tensor.rank, indices.tensor.rank):
        call.wrong("GatherND.batch_dims is out of range", "fewer axes than the data and the indices have", batch)
    if not 1 <= count <= x.tensor.rank - batch:  # Before a slice is made of each.
        most = x.tensor.rank - batch
        call.wrong("the indices address another number of axes", f"a last extent of 1 to {most}", indices.type)
    return call.apply("gather_nd", x, *_components(call, indices, count), batch=batch)


@translates("ScatterND", versions=(11, 13, 16, 18))
def scatter_nd(call: Call) -> Value:
    x, indices, updates = (call.input(index) for index in range(3))
    count = x.tensor.rank - (updates.tensor.rank - (indices.tensor.rank - 1))
    if not indices.dims or not 1 <= count <= x.tensor.rank:
        call.wrong("the ranks of ScatterND do not fit", "updates [i, r] for data [a, r], indices [i, a]", updates.type)
    if isinstance(indices.dims[-1], int) and indices.dims[-1] != count:
        call.wrong("the indices address another number of axes", f"a last extent of {count}", indices.type)
    return _scatter(call, x, updates, _components(call, indices, count), 0)


@translates("TensorScatter", versions=(24,))
def tensor_scatter(call: Call) -> Value:
    """Writes rows of a cache [B, .., T, ..] from a place of each sequence on, around its end in mode circular."""
    cache, update, first = call.input(0), call.input(1), call.optional(2)
    rank = cache.tensor.rank
    axis = call.axis(rank)
    if axis == 0 or update.tensor.rank != rank:
        call.wrong("TensorScatter takes updates along an axis that is not the batch", cache.type, update.type)
    order = (0, axis, *(other for other in range(1, rank) if other != axis))
    data, values = call.transpose(cache, order), call.transpose(update, order)
    batch, count = values.dims[:2]
    places = call.apply("broadcast", call.iota(2, 1, count), dims=(batch, count))
    if first is not None:
        places = call.apply("add", places, call.reshape(call.cast(first, dtypes.i64), (batch, 1)))
    if call.attr("mode", str) == "circular":
        size = call.reshape(call.extents([data.dims[1]]), ())
        rounds = call.apply("mul", call.apply("div", places, size), size)
        places = call.apply("sub", places, rounds)
    y = call.apply("scatter_nd", data, values, places, batch=1, reduction="none")
    return call.transpose(y, (0, *(n + 1 if n < axis else n for n in range(1, axis)), 1, *range(axis + 1, rank)))


@translates("ReverseSequence", versions=(10, 28))
def reverse_sequence(call: Call) -> Value:
    """The first lengths[b] elements along time in reverse, the rest as they are."""
    x, lengths = call.input(0), call.input(1)
    time, batch = call.integer("time_axis"), call.integer("batch_axis")
    if x.tensor.rank < 2 or sorted((time, batch)) != [0, 1]:
        call.wrong("the first two axes are time and batch", "time_axis and batch_axis 0 and 1", f"{time} and {batch}")
    swap = (batch, time, *range(2, x.tensor.rank))
    data = call.transpose(x, swap)
    lengths = from_front(call, lengths, data.dims[1] + 1)
    place, length = call.iota(2, 1, data.dims[1]), call.reshape(lengths, (data.dims[0], 1))
    mirrored = call.apply("sub", call.apply("sub", length, 1), place)
    source = call.apply("select", call.apply("less", place, length), mirrored, place)
    return call.transpose(call.apply("gather_nd", data, source, batch=1), swap)


@translates("OneHot", versions=(9, 11, 28))
def one_hot(call: Call) -> Value:
    """values[1] where the index along a new axis is the one given, else values[0]; negative ones count from the end."""
    indices, values = call.input(0), call.input(2)
    if values.tensor.rank != 1:
        call.wrong("the values of OneHot are a vector", "[2]", values.type)
    values = call.reshape(values, (2,))
    depth = call.dims(call.input(1), "the depth")[0]
    if not isinstance(depth, Expr):
        if not 1 <= depth < 2**31:
            call.wrong("the depth of OneHot is out of range", "at least 1", depth)
        depth = int(depth)
    rank = indices.tensor.rank + 1
    axis = call.axis(rank)
    index = call.cast(indices, dtypes.i64)
    from_end = call.apply("add", index, call.reshape(call.extents([depth]), ()))
    wrapped = call.apply("select", call.apply("less", index, 0), from_end, index)
    spread = call.reshape(wrapped, (*indices.dims[:axis], 1, *indices.dims[axis:]))
    off, on = (call.apply("gather", values, call.constant(place, dtypes.i64), axis=0) for place in (0, 1))
    return call.apply("select", call.apply("equal", spread, call.iota(rank, axis, depth)), on, off)
