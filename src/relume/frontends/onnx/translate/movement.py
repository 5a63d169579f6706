"""Operators that move elements: other shapes, other orders, parts, repetitions. Extents may be symbolic."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from relume.base import dims, dtypes
from relume.base.dims import Dim, not_negative
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value

_UNBOUNDED = 2**31 - 1
"""From here on a bound of Slice means "to the end": exporters write INT32_MAX or INT64_MAX."""


# --- other shapes ---------------------------------------------------------------------------------------------------


@translates("Reshape", versions=(5, 13, 14, 19, 21, 23, 24, 25))
def reshape(call: Call) -> Value:
    """0 copies the extent at its place (unless `allowzero`), one -1 stands for what is left."""
    x = call.input(0)
    wanted = list(call.dims(call.input(1), "the shape"))
    if not (call.has("allowzero") and call.integer("allowzero")):
        for axis, dim in enumerate(wanted):
            if dim == 0:
                if axis >= x.tensor.rank:
                    call.wrong(f"the 0 at place {axis} of the shape copies an axis that is not there", x.type, wanted)
                wanted[axis] = x.dims[axis]
    free = [axis for axis, dim in enumerate(wanted) if dim == -1]
    if len(free) > 1 or any(isinstance(dim, int) and dim < -1 for dim in wanted):
        call.wrong("the shape of Reshape is wrong", "extents, at most one of them -1", wanted)
    if free:
        rest = dims.product(dim for dim in wanted if dim != -1)
        if rest == 0:
            call.wrong("-1 beside an extent of 0 says nothing", "extents that determine the rest", wanted)
        wanted[free[0]] = _quotient(x.dims, [dim for dim in wanted if dim != -1])
    return call.reshape(x, wanted)


def _quotient(all_: Sequence[Dim], known: Sequence[Dim]) -> Dim:
    """product(all_) / product(known), with extents that stand on both sides cancelled first."""
    numerator, denominator = list(all_), []
    for dim in known:
        if not isinstance(dim, int) and dim in numerator:
            numerator.remove(dim)
        else:
            denominator.append(dim)
    return dims.floordiv(dims.product(numerator), dims.product(denominator))


@translates("Flatten", versions=(1, 9, 11, 13, 21, 23, 24, 25))
def flatten(call: Call) -> Value:
    x = call.input(0)
    cut = call.integer("axis")
    cut = cut if cut == x.tensor.rank else call.normal_axis(cut, x.tensor.rank)
    return call.reshape(x, (dims.product(x.dims[:cut]), dims.product(x.dims[cut:])))


def _listed_axes(call: Call) -> tuple[int, ...] | None:
    """Axes as an attribute (below version 13) or as an operand."""
    if call.version < 13:
        return call.integers("axes", ()) if call.has("axes") else None
    operand = call.optional(1)
    return None if operand is None else call.ints(operand, "axes")


@translates("Squeeze", versions=(1, 11, 13, 21, 23, 24, 25))
def squeeze(call: Call) -> Value:
    x = call.input(0)
    axes = _listed_axes(call)
    if axes is None:
        if not x.tensor.is_static:
            call.unsupported(f"which axes of {x.type} are 1 depends on symbolic extents; name them")
        axes = tuple(axis for axis, dim in enumerate(x.dims) if dim == 1)
    normal = call.normal_axes(axes, x.tensor.rank)
    for axis in normal:
        if isinstance(x.dims[axis], int) and x.dims[axis] != 1:
            call.wrong(f"axis {axis} cannot be squeezed", "an extent of 1", x.type)
    return call.reshape(x, [dim for axis, dim in enumerate(x.dims) if axis not in normal])


@translates("Unsqueeze", versions=(1, 11, 13, 21, 23, 24, 25))
def unsqueeze(call: Call) -> Value:
    x = call.input(0)
    axes = _listed_axes(call)
    if axes is None:
        call.wrong("Unsqueeze needs axes", "a list", None)
    rank = x.tensor.rank + len(axes)
    shape = list(x.dims)
    for axis in call.normal_axes(axes, rank):
        shape.insert(axis, 1)
    return call.reshape(x, shape)


@translates("Transpose", versions=(1, 13, 21, 23, 24, 25))
def transpose(call: Call) -> Value:
    x = call.input(0)
    perm = call.integers("perm", range(x.tensor.rank)[::-1])
    if sorted(perm) != list(range(x.tensor.rank)):
        call.wrong("perm is not a permutation", f"of 0 to {x.tensor.rank - 1}", list(perm))
    return call.transpose(x, perm)


@translates("DepthToSpace", versions=(1, 11, 13, 28))
def depth_to_space(call: Call) -> Value:
    x, block = call.input(0), call.integer("blocksize")
    n, c, h, w = _image(call, x)
    inner = dims.floordiv(c, block * block)
    if call.has("mode") and call.attr("mode", str) == "CRD":
        y = call.transpose(call.reshape(x, (n, inner, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        y = call.transpose(call.reshape(x, (n, block, block, inner, h, w)), (0, 3, 4, 1, 5, 2))
    return call.reshape(y, (n, inner, h * block, w * block))


@translates("SpaceToDepth", versions=(1, 13))
def space_to_depth(call: Call) -> Value:
    x, block = call.input(0), call.integer("blocksize")
    n, c, h, w = _image(call, x)
    rows, columns = dims.floordiv(h, block), dims.floordiv(w, block)
    y = call.transpose(call.reshape(x, (n, c, rows, block, columns, block)), (0, 3, 5, 1, 2, 4))
    return call.reshape(y, (n, c * block * block, rows, columns))


def _image(call: Call, x: Value) -> tuple[Dim, Dim, Dim, Dim]:
    if x.tensor.rank != 4 or call.integer("blocksize") < 1:
        call.wrong(f"{call.node.op} takes an image and a blocksize of at least 1", "rank 4", x.type)
    n, c, h, w = x.dims
    return n, c, h, w


# --- joining and cutting --------------------------------------------------------------------------------------------


@translates("Concat", versions=(1, 4, 11, 13))
def concat(call: Call) -> Value:
    xs = [call.input(index) for index in range(len(call.inputs))]
    axis = call.axis(xs[0].tensor.rank) if call.has("axis") else 1
    return xs[0] if len(xs) == 1 else call.apply("concat", *xs, axis=axis)


@translates("Split", versions=(2, 11, 13, 18))
def split(call: Call) -> tuple[Value, ...]:
    """Parts of given sizes along an axis, else equal ones (from version 18 on the last may be smaller)."""
    x = call.input(0)
    axis = call.axis(x.tensor.rank)
    extent, count = x.dims[axis], len(call.node.outputs)
    operand = call.optional(1)
    sizes: tuple[Dim, ...]
    if operand is not None:
        sizes = call.dims(operand, "the sizes of the parts")
    elif call.has("split"):
        sizes = call.integers("split", ())
    else:
        if call.has("num_outputs") and call.integer("num_outputs") != count:
            call.wrong("Split.num_outputs is not the number of outputs", count, call.integer("num_outputs"))
        each = dims.floordiv(extent + count - 1, count)
        if call.version < 18 and isinstance(extent, int) and extent % count:
            call.wrong(f"axis {axis} cannot be split into equal parts", f"a multiple of {count}", x.type)
        sizes = (*(each,) * (count - 1), extent - each * (count - 1))
    if len(sizes) != count:
        call.wrong("Split has another number of outputs than parts", f"{len(sizes)} outputs", count)
    total = sum(sizes)
    if isinstance(total - extent, int) and total != extent:
        call.wrong(f"the parts do not add up to axis {axis}", f"a sum of {extent}", list(sizes))
    x = call.reshape(x, (*x.dims[:axis], total, *x.dims[axis + 1 :]))  # Requires a symbolic extent to be the sum.
    parts: list[Value] = []
    start: Dim = 0
    for size in sizes:
        stop = start + size
        parts.append(cut(call, x, {axis: (start, stop, 1)}))
        start = stop
    return tuple(parts)


def cut(call: Call, x: Value, ranges: dict[int, tuple[Dim, Dim, int]]) -> Value:
    """`slice` on some axes, the others whole; bounds are normalised already."""
    every = [ranges.get(axis, (0, dim, 1)) for axis, dim in enumerate(x.dims)]
    if all((start, step) == (0, 1) and stop == dim for (start, stop, step), dim in zip(every, x.dims)):
        return x
    starts, stops, steps = zip(*every)
    return call.apply("slice", x, starts=starts, stops=stops, steps=steps)


@translates("Slice", versions=(1, 10, 11, 13))
def slice_(call: Call) -> Value:
    """As NumPy: negative bounds count from the end, bounds beyond an end mean that end."""
    x = call.input(0)
    if call.version < 10:
        starts: tuple[Dim, ...] = call.integers("starts", ())
        stops: tuple[Dim, ...] = call.integers("ends", ())
        axes, steps = call.integers("axes", range(len(starts))), (1,) * len(starts)
    else:
        axes_operand, steps_operand = call.optional(3), call.optional(4)
        starts = call.dims(call.input(1), "the start")
        stops = call.dims(call.input(2), "the end")
        axes = tuple(range(len(starts))) if axes_operand is None else call.ints(axes_operand, "axes")
        steps = (1,) * len(starts) if steps_operand is None else call.ints(steps_operand, "steps")
    if not len(starts) == len(stops) == len(axes) == len(steps):
        counts = f"{len(starts)} starts, {len(stops)} ends, {len(axes)} axes, {len(steps)} steps"
        call.wrong("the bounds of Slice do not fit together", "as many ends, axes and steps as starts", counts)
    call.normal_axes(axes, x.tensor.rank)
    ranges = {}
    for axis, start, stop, step in zip(axes, starts, stops, steps):
        place = call.normal_axis(axis, x.tensor.rank)
        if step == 0:
            call.wrong(f"the step along axis {place} is 0", "a step other than 0", 0)
        # No extent is longer than this, so that a longer step takes one element as well.
        step = max(-_UNBOUNDED, min(step, _UNBOUNDED))
        extent = x.dims[place]
        ranges[place] = (_bound(start, extent, step), _bound(stop, extent, step), step)
    return cut(call, x, ranges)


def _bound(bound: Dim, extent: Dim, step: int) -> Dim:
    """A bound of Slice between the ends: 0 to extent going forward, -1 to extent - 1 going backward."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    if isinstance(bound, int) and bound >= _UNBOUNDED:
        return high
    if isinstance(bound, int) and bound <= -_UNBOUNDED:
        return low
    if not_negative(bound * -1 - 1):
        return dims.maximum(extent + bound, low)
    if not not_negative(bound):
        # From the end where it is negative: the last factor is 1 there, else 0.
        bound = bound + extent * dims.minimum(dims.maximum(bound * -1, 0), 1)
    inside = dims.minimum(bound, high)
    return inside if not_negative(inside - low) else dims.maximum(inside, low)


# --- around and again -----------------------------------------------------------------------------------------------


@translates("Pad", versions=(1, 2, 11, 13, 18, 19, 21, 23, 24, 25))
def pad(call: Call) -> Value:
    """Negative pads cut. Pads and value are attributes before version 11."""
    x = call.input(0)
    rank = x.tensor.rank
    mode = call.attr("mode", str)
    value, fill, axes = 0.0, None, tuple(range(rank))
    if call.version < 11:
        pads: tuple[Dim, ...] = call.integers("paddings" if call.version == 1 else "pads", ())
        value = call.number("value")
    else:
        pads = call.dims(call.input(1), "the padding")
        fill, listed = call.optional(2), call.optional(3)
        if listed is not None:
            axes = tuple(call.normal_axis(axis, rank) for axis in call.ints(listed, "axes"))
    if len(pads) != 2 * len(axes):
        call.wrong("the number of pads does not fit", 2 * len(axes), len(pads))
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[len(axes) + place]
    if mode == "constant":
        return padded(call, x, before, after, value) if fill is None else _filled(call, x, before, after, fill)
    if mode not in ("reflect", "edge", "wrap"):
        call.wrong("Pad.mode is wrong", "constant, reflect, edge or wrap", mode)
    for axis in range(rank):
        x = _continued(call, x, axis, before[axis], after[axis], mode)
    return x


def _filled(call: Call, x: Value, before: Sequence[Dim], after: Sequence[Dim], fill: Value) -> Value:
    """`padded` with a value that may be data, or no exact float64."""
    known = call.numbers(fill)
    if known is not None:
        number = known.reshape(-1)[0]
        if not x.dtype.is_integer or int(float(number)) == int(number):
            return padded(call, x, before, after, float(number))
    inside = call.apply("broadcast", call.constant(True, dtypes.bool_), dims=x.dims)
    inside = padded(call, inside, before, after, 0.0)
    return call.apply("select", inside, padded(call, x, before, after, 0.0), call.reshape(fill, ()))


def _continued(call: Call, x: Value, axis: int, before: Dim, after: Dim, mode: str) -> Value:
    """x with elements of its own before and after it: mirrored, the ends repeated, or those of the other end. Amounts
    may be of any size; negative ones cut."""
    extent, wanted = x.dims[axis], x.dims[axis] + before + after
    if before == after == 0:
        return x
    if isinstance(wanted, int) and (wanted < 0 or (extent == 0 and wanted)):
        call.wrong(f"axis {axis} cannot be padded with its own elements", "elements", f"{extent} to {wanted}")
    size, first = (call.reshape(call.extents([dim]), ()) for dim in (extent, before))
    place = call.apply("sub", call.iota(1, 0, wanted), first)
    last = call.apply("sub", size, 1)
    if mode == "edge":
        place = call.apply("max", call.apply("min", place, last), 0)
    elif mode == "wrap":
        place = _remainder(call, place, size)
    else:
        period = call.apply("max", call.apply("mul", last, 2), 1)
        place = _remainder(call, place, period)
        place = call.apply("min", place, call.apply("sub", period, place))
    return call.apply("gather", x, place, axis=axis)


def _remainder(call: Call, a: Value, b: Value) -> Value:
    """a - b * floor(a / b) for b > 0."""
    rest = call.apply("sub", a, call.apply("mul", call.apply("div", a, b), b))
    return call.apply("select", call.apply("less", rest, 0), call.apply("add", rest, b), rest)


def padded(call: Call, x: Value, before: Sequence[Dim], after: Sequence[Dim], value: float) -> Value:
    """`pad` along every axis; negative amounts cut instead, symbolic ones that may be negative too."""

    def split_sign(amounts: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
        grow = [amount if not_negative(amount) else dims.maximum(amount, 0) for amount in amounts]
        return grow, [0 if not_negative(amount) else dims.maximum(0 - amount, 0) for amount in amounts]

    (front, cut_front), (back, cut_back) = split_sign(before), split_sign(after)
    if any(amount != 0 for amount in (*cut_front, *cut_back)):
        if any(
            isinstance(dim, int) and isinstance(total, int) and dim < total
            for dim, total in zip(x.dims, map(operator.add, cut_front, cut_back))
        ):
            call.wrong("negative pads cut more than there is", x.type, [*before, *after])
        x = cut(call, x, {i: (cut_front[i], dim - cut_back[i], 1) for i, dim in enumerate(x.dims)})
    if all(amount == 0 for amount in (*front, *back)):
        return x
    return call.apply("pad", x, pads=(*front, *back), value=value)


@translates("Expand", versions=(8, 13))
def expand(call: Call) -> Value:
    """Broadcast both ways: an extent of 1 in the wanted shape keeps that of x."""
    x = call.input(0)
    wanted = call.dims(call.input(1), "the shape")
    rank = max(x.tensor.rank, len(wanted))
    own, other = (1,) * (rank - x.tensor.rank) + x.dims, (1,) * (rank - len(wanted)) + wanted
    for mine, theirs in zip(own, other):
        if isinstance(mine, int) and isinstance(theirs, int) and mine != theirs and 1 not in (mine, theirs):
            call.wrong("Expand cannot reach its shape", list(wanted), x.type)
    target = tuple(dims.select(mine, theirs) for mine, theirs in zip(own, other))
    return x if target == x.dims else call.apply("broadcast", x, dims=target)


@translates("Tile", versions=(6, 13))
def tile(call: Call) -> Value:
    """Each axis of extent d, repeated r times: [1, d] is broadcast to [r, d] and read as r * d."""
    x = call.input(0)
    repeats = call.dims(call.input(1), "the number of repetitions")
    if len(repeats) != x.tensor.rank:
        call.wrong("Tile needs one number for each axis", x.tensor.rank, len(repeats))
    if all(count == 1 for count in repeats):
        return x
    narrow = [dim for extent in x.dims for dim in (1, extent)]
    wide = [dim for count, extent in zip(repeats, x.dims) for dim in (count, extent)]
    y = call.apply("broadcast", call.reshape(x, narrow), dims=tuple(wide))
    return call.reshape(y, [count * extent for count, extent in zip(repeats, x.dims)])


@translates("Trilu", versions=(14,))
def trilu(call: Call) -> Value:
    """The upper or lower triangle, the rest 0."""
    x, diagonal = call.input(0), call.optional(1)
    if x.tensor.rank < 2:
        call.wrong("Trilu takes matrices", "rank 2 or more", x.type)
    column = call.iota(2, 1, x.dims[-1])
    row = call.iota(2, 0, x.dims[-2])
    if diagonal is not None:
        row = call.apply("add", row, call.reshape(diagonal, ()))
    outside = call.apply("less" if call.integer("upper") else "greater", column, row)
    if x.dtype is dtypes.bool_:
        return call.apply("and", call.apply("not", outside), x)
    return call.apply("select", outside, call.constant(0, x.dtype), x)
