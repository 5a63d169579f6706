"""Operators that look between the elements of an image, or put windows back into one: gathers and scatters by places
that are computed."""

from __future__ import annotations

import math
from itertools import product

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.translate.index import from_front
from relume.frontends.onnx.translate.movement import cut, padded
from relume.frontends.onnx.translate.resize import cubic
from relume.graph.types import Value

# --- GridSample -----------------------------------------------------------------------------------------------------


@translates("GridSample", versions=(16, 20, 22))
def grid_sample(call: Call) -> Value:
    """x [N, C, *S] at the places grid [N, *T, len(S)], whose coordinates go from -1 to 1, the last axis first."""
    x, grid = call.input(0), call.input(1)
    spatial = x.tensor.rank - 2
    if spatial < 1 or grid.tensor.rank != x.tensor.rank:
        call.wrong("GridSample takes [N,C,*S] and a grid [N,*T,len(S)]", x.type, grid.type)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(call.attr("mode", str), call.attr("mode", str))
    padding, corners = call.attr("padding_mode", str), bool(call.integer("align_corners"))
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        call.wrong("GridSample has no such mode", "one of the specification", f"{mode}, {padding}")
    if mode == "cubic" and spatial != 2:
        call.wrong("bicubic sampling is for images", "two spatial axes", x.type)
    grid = _precise(call, call.reshape(grid, (*grid.dims[:-1], spatial)))
    data = call.transpose(x, (0, *range(2, x.tensor.rank), 1))  # The channels of one place stand side by side.
    axes = []
    for number in range(spatial):
        share = call.reshape(_last(call, grid, spatial - 1 - number), grid.dims[:-1])
        axes.append(_Sampled(call, share, x.dims[2 + number], padding, corners))
    taps = [axis.taps(mode) for axis in axes]
    y: Value | None = None
    for each in product(*taps):
        part = call.apply("gather_nd", data, *(place for place, _ in each), batch=1)
        for _, weight in each:
            if weight is not None:
                column = call.cast(call.reshape(weight, (*weight.dims, 1)), x.dtype)
                part = call.apply("mul", part, column)
        y = part if y is None else call.apply("add", y, part)
    assert y is not None
    return call.transpose(y, (0, y.tensor.rank - 1, *range(1, y.tensor.rank - 1)))


def _precise(call: Call, places: Value) -> Value:
    """Places in at least f32: f16 does not tell the pixels of a larger image apart."""
    return call.cast(places, dtypes.f32) if places.dtype.bytes < 4 else places


def _last(call: Call, x: Value, place: int) -> Value:
    return cut(call, x, {x.tensor.rank - 1: (place, place + 1, 1)})


class _Sampled:
    """One spatial axis of GridSample: coordinates from -1 to 1, of any shape."""

    def __init__(self, call: Call, share: Value, size: Dim, padding: str, corners: bool) -> None:
        self.call, self.padding, self.corners = call, padding, corners
        self.size = call.cast(call.reshape(call.extents([size]), ()), share.dtype)
        moved = call.apply("add", share, 1.0)
        if corners:
            at = call.apply("mul", call.apply("div", moved, 2.0), call.apply("sub", self.size, 1.0))
        else:
            at = call.apply("div", call.apply("sub", call.apply("mul", moved, self.size), 1.0), 2.0)
        self.at = at

    def taps(self, mode: str) -> list[tuple[Value, Value | None]]:
        """(indices, weights) whose sum over all is the result along this axis; None: a weight of 1."""
        call = self.call
        at = self.at
        if mode == "nearest":
            # Mirrored first, as others do: it shows where a place is half way between two elements.
            at = self._reflected(at) if self.padding == "reflection" else at
            return [self._tap(call.apply("round", at), None)]
        low = call.apply("floor", at)
        share = call.apply("sub", at, low)
        out = []
        for step in (0, 1) if mode == "linear" else (-1, 0, 1, 2):
            distance = call.apply("abs", call.apply("sub", float(step), share))
            weight = call.apply("sub", 1.0, distance) if mode == "linear" else cubic(call, distance, -0.75)
            out.append(self._tap(call.apply("add", low, float(step)), weight))
        return out

    def _tap(self, place: Value, weight: Value | None) -> tuple[Value, Value | None]:
        call = self.call
        if self.padding == "reflection":
            place = self._reflected(place)
        # What is no number (or was infinite) reads the first element.
        inside = self._clipped(call.apply("select", call.apply("equal", place, place), place, 0.0))
        if self.padding == "zeros":
            there = call.apply("equal", inside, place)
            weight = call.apply("select", there, weight if weight is not None else call.constant(1, place.dtype), 0.0)
        return call.cast(inside, dtypes.i64), weight

    def _clipped(self, at: Value) -> Value:
        return self.call.apply("max", self.call.apply("min", at, self.call.apply("sub", self.size, 1.0)), 0.0)

    def _reflected(self, at: Value) -> Value:
        """Mirrored at the first and the last element (`align_corners`), or half a step beyond them, until inside."""
        call = self.call
        low = 0.0 if self.corners else -0.5
        span = call.apply("sub", self.size, 1.0) if self.corners else self.size
        span = call.apply("max", span, 1.0)
        distance = call.apply("abs", call.apply("sub", at, low))
        rounds = call.apply("floor", call.apply("div", distance, span))
        rest = call.apply("sub", distance, call.apply("mul", rounds, span))
        half = call.apply("div", rounds, 2.0)
        even = call.apply("equal", half, call.apply("floor", half))
        return call.apply("add", call.apply("select", even, rest, call.apply("sub", span, rest)), low)


@translates("AffineGrid", versions=(20,))
def affine_grid(call: Call) -> Value:
    """The places [N, *S, len(S)] where theta [N, len(S), len(S) + 1] moves those of an image of the size [N, C, *S].

    With `align_corners` the only place of an extent of 1 is -1, as the function of the schema has it for the depth
    (and divides by 0 for the others).
    """
    extents = call.dims(call.input(1), "the size of the image")
    if len(extents) not in (4, 5):
        call.wrong("AffineGrid is for images and volumes", "a size of 4 or 5 extents", len(extents))
    batch, _, *spatial = extents
    count = len(spatial)
    theta = call.shaped(call.input(0), (batch, count, count + 1))
    moved = _precise(call, theta)
    around = (1,) * count
    y = call.reshape(_last(call, moved, count), (batch, *around, count))
    for number, size in enumerate(spatial):
        steps = call.cast(call.iota(count + 2, 1 + number, size), moved.dtype)
        extent = call.cast(call.reshape(call.extents([size]), ()), moved.dtype)
        double = call.apply("mul", steps, 2.0)
        if call.integer("align_corners"):
            share = call.apply("div", double, call.apply("max", call.apply("sub", extent, 1.0), 1.0))
        else:
            share = call.apply("div", call.apply("add", double, 1.0), extent)
        column = call.reshape(_last(call, moved, count - 1 - number), (batch, *around, count))
        y = call.apply("add", y, call.apply("mul", column, call.apply("sub", share, 1.0)))
    return call.cast(y, theta.dtype)


# --- RoiAlign -------------------------------------------------------------------------------------------------------


@translates("RoiAlign", versions=(10, 16, 22))
def roi_align(call: Call) -> Value:
    """The mean (the largest) over `sampling_ratio` times as many places in each bin of each region, interpolated."""
    x, rois, batch = call.input(0), call.input(1), call.input(2)
    if x.tensor.rank != 4:
        call.wrong("RoiAlign takes images", "[N,C,H,W]", x.type)
    ratio = call.integer("sampling_ratio")
    if ratio < 1:
        call.unsupported("a sampling_ratio of 0: the number of samples depends on the regions")
    half = 0.0
    if call.version >= 16 and call.attr("coordinate_transformation_mode", str) == "half_pixel":
        half = 0.5
    count, scale = rois.dims[0], call.number("spatial_scale")
    rois = _precise(call, call.reshape(rois, (count, 4)))
    scaled = call.apply("sub", call.apply("mul", rois, scale), half)
    axes = []
    for place, bins, size in ((1, "output_height", x.dims[2]), (0, "output_width", x.dims[3])):
        begin, end = (call.reshape(_last(call, scaled, place + 2 * n), (count, 1)) for n in (0, 1))
        length = call.apply("sub", end, begin)
        if not half:
            length = call.apply("max", length, 1.0)  # As the version before half_pixel: no region is smaller.
        samples = call.integer(bins) * ratio
        call.emitter.reserve(samples)
        offsets = call.constant([(n + 0.5) / samples for n in range(samples)], rois.dtype)
        axes.append(_Bins(call, call.apply("add", begin, call.apply("mul", length, offsets)), size))
    rows, columns = axes
    data = call.transpose(x, (0, 2, 3, 1))
    shape = (count, rows.samples, columns.samples)
    batch = from_front(call, call.cast(batch, dtypes.i64), x.dims[0])
    image = call.apply("broadcast", call.reshape(batch, (count, 1, 1)), dims=shape)
    parts = []
    for (row, tall), (column, wide) in product(rows.taps, columns.taps):
        down = call.apply("broadcast", call.reshape(row, (count, rows.samples, 1)), dims=shape)
        right = call.apply("broadcast", call.reshape(column, (count, 1, columns.samples)), dims=shape)
        weight = call.apply(
            "mul",
            call.reshape(tall, (count, rows.samples, 1, 1)),
            call.reshape(wide, (count, 1, columns.samples, 1)),
        )
        seen = call.apply("gather_nd", data, image, down, right, batch=0)
        parts.append(call.apply("mul", seen, call.cast(weight, x.dtype)))
    largest = call.attr("mode", str) == "max"
    y = parts[0]
    for part in parts[1:]:
        y = call.apply("max" if largest else "add", y, part)  # In mode max also over the four neighbours.
    high, wide_ = call.integer("output_height"), call.integer("output_width")
    y = call.reshape(y, (count, high, ratio, wide_, ratio, x.dims[1]))
    y = call.apply("reduce_max" if largest else "reduce_mean", y, axes=(2, 4), keep=False)
    return call.transpose(y, (0, 3, 1, 2))


class _Bins:
    """One axis of RoiAlign: places [regions, samples] as two neighbours each and their weights."""

    def __init__(self, call: Call, at: Value, size: Dim) -> None:
        self.samples = at.dims[1]
        extent = call.cast(call.reshape(call.extents([size]), ()), at.dtype)
        last = call.apply("sub", extent, 1.0)
        # Beyond a whole step outside nothing is seen; up to there the border is.
        seen = call.apply("not", call.apply("or", call.apply("less", at, -1.0), call.apply("greater", at, extent)))
        inside = call.apply("min", call.apply("max", at, 0.0), last)
        inside = call.apply("select", seen, inside, 0.0)
        low = call.apply("floor", inside)
        share = call.apply("sub", inside, low)
        self.taps = []
        for step, weight in ((0.0, call.apply("sub", 1.0, share)), (1.0, share)):
            place = call.apply("min", call.apply("add", low, step), last)
            self.taps.append((call.cast(place, dtypes.i64), call.apply("select", seen, weight, 0.0)))


# --- Col2Im ---------------------------------------------------------------------------------------------------------


@translates("Col2Im", versions=(18,))
def col2im(call: Call) -> Value:
    """Columns [N, C * window, places] added into images [N, C, *S] where the windows were taken."""
    x = call.input(0)
    shape = call.dims(call.input(1), "the shape of the image")
    window = call.ints(call.input(2), "the shape of the window")
    count = len(shape)
    strides, dilations = (call.integers(name, (1,) * count) for name in ("strides", "dilations"))
    pads = call.integers("pads", (0,) * (2 * count))
    if not len(window) == len(strides) == len(dilations) == count or len(pads) != 2 * count or x.tensor.rank != 3:
        call.wrong("Col2Im: the lists do not fit together", f"{count} entries, pads twice as many", x.type)
    full = [dim + pads[n] + pads[count + n] for n, dim in enumerate(shape)]
    steps = [
        dims.floordiv(dim - (size - 1) * dilation - 1, stride) + 1
        for dim, size, stride, dilation in zip(full, window, strides, dilations)
    ]
    batch, channels = x.dims[0], dims.floordiv(x.dims[1], math.prod(window))
    spread = (*window, *steps)
    columns = call.reshape(x, (batch, channels, *spread))
    updates = call.transpose(columns, (*range(2, 2 + 2 * count), 0, 1))
    places = []
    for n in range(count):
        inner = call.apply("mul", call.iota(2 * count, n, window[n]), dilations[n])
        outer = call.apply("mul", call.iota(2 * count, count + n, steps[n]), strides[n])
        places.append(call.apply("broadcast", call.apply("add", inner, outer), dims=spread))
    image = call.apply("broadcast", call.constant(0, x.dtype), dims=(*full, batch, channels))
    y = call.apply("scatter_nd", image, updates, *places, batch=0, reduction="add")
    y = call.transpose(y, (count, count + 1, *range(count)))
    return padded(call, y, [0, 0, *(-pad for pad in pads[:count])], [0, 0, *(-pad for pad in pads[count:])], 0.0)
