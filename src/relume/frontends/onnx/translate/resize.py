"""Resize, one axis after another, made of gathers by tables.

Where an output element looks, and how much each place counts, are vectors along the axis. They are made by the graph
itself, in f64, from counted positions: so extents may be symbolic, and where they are known all of it is folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.frontends.onnx.calls import Call, Operand, translates
from relume.graph.types import Value


class _Reals:
    """Arithmetic in f64 on numbers, which stay numbers, and values."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, op: str, a: Operand, b: Operand) -> Operand:
        if isinstance(a, Value) or isinstance(b, Value):
            return self._call.apply(op, a, b)
        return _ON_NUMBERS[op](a, b)

    def of(self, dim: Dim) -> Operand:
        """An extent."""
        if isinstance(dim, int):
            return float(dim)
        return self._call.cast(self._call.reshape(self._call.extents([dim]), ()), dtypes.f64)


_ON_NUMBERS: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.nan,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class _Axis:
    """What happens to one axis: `size` elements become `extent`. `begin` and `end` are the part that is looked at."""

    size: Dim
    extent: Dim
    scale: Operand
    begin: Operand = 0.0
    end: Operand = 1.0


# --- where an element looks -----------------------------------------------------------------------------------------


def _half_pixel(real: _Reals, x: Value, axis: _Axis) -> Operand:
    return real("sub", real("div", real("add", x, 0.5), axis.scale), 0.5)


def _symmetric(real: _Reals, x: Value, axis: _Axis) -> Operand:
    """As half_pixel, but the middles stay together where the extent is not all of scale * size."""
    size = real.of(axis.size)
    share = real("div", real.of(axis.extent), real("mul", axis.scale, size))
    offset = real("mul", real("div", size, 2.0), real("sub", 1.0, share))
    return real("sub", real("add", offset, real("div", real("add", x, 0.5), axis.scale)), 0.5)


def _align_corners(real: _Reals, x: Value, axis: _Axis) -> Operand:
    """It speaks of scale * size without the floor that gives the extent, as the specification's tests do."""
    size = real.of(axis.size)
    last = real("sub", real("mul", axis.scale, size), 1.0)
    return real("div", real("mul", x, real("sub", size, 1.0)), last)


def _crop(real: _Reals, x: Value, axis: _Axis) -> Operand:
    last = real("sub", real.of(axis.size), 1.0)
    width = real("mul", real("sub", axis.end, axis.begin), last)
    step = real("div", width, real("sub", real.of(axis.extent), 1.0))
    return real("add", real("mul", axis.begin, last), real("mul", x, step))


def _crop_of_one(real: _Reals, axis: _Axis) -> Operand:
    return real("mul", real("mul", 0.5, real("add", axis.begin, axis.end)), real("sub", real.of(axis.size), 1.0))


_COORDINATES: Mapping[str, Callable[[_Reals, Value, _Axis], Operand]] = {
    "half_pixel": _half_pixel,
    "asymmetric": lambda real, x, axis: real("div", x, axis.scale),
    "pytorch_half_pixel": _half_pixel,
    "align_corners": _align_corners,
    "half_pixel_symmetric": _symmetric,
    "tf_half_pixel_for_nn": lambda real, x, axis: real("div", real("add", x, 0.5), axis.scale),
    "tf_crop_and_resize": _crop,
}
_OF_ONE: Mapping[str, Callable[[_Reals, _Axis], Operand]] = {
    "pytorch_half_pixel": lambda real, axis: 0.0,
    "align_corners": lambda real, axis: 0.0,
    "tf_crop_and_resize": _crop_of_one,
}
"""Where the only element of an output looks, in the modes that say so."""


def _positions(call: Call, mode: str, axis: _Axis) -> Value:
    """The place in the input that each output element looks at: f64 [extent]."""
    real = _Reals(call)
    x = call.cast(call.iota(1, 0, axis.extent), dtypes.f64)
    at = _COORDINATES[mode](real, x, axis)
    if mode in _OF_ONE and not (isinstance(axis.extent, int) and axis.extent > 1):
        single = real("add", call.apply("mul", x, 0.0), _OF_ONE[mode](real, axis))
        many = call.apply("greater", call.extents([axis.extent]), 1)
        at = call.apply("select", many, at, single)
    assert isinstance(at, Value)
    return at


# --- what it sees there ---------------------------------------------------------------------------------------------

_ROUNDINGS: Mapping[str, Callable[[Call, Value], Value]] = {
    "round_prefer_floor": lambda call, x: call.apply("ceil", call.apply("sub", x, 0.5)),
    "round_prefer_ceil": lambda call, x: call.apply("floor", call.apply("add", x, 0.5)),
    "floor": lambda call, x: call.apply("floor", x),
    "ceil": lambda call, x: call.apply("ceil", x),
}


def _picked(call: Call, x: Value, axis: int, at: Value) -> Value:
    """The elements at `at`, whole f64 numbers; beyond an end, the element there."""
    last = _Reals(call)("sub", _Reals(call).of(x.dims[axis]), 1.0)
    inside = call.apply("max", call.apply("min", at, last), 0.0)
    return call.apply("gather", x, call.cast(inside, dtypes.i64), axis=axis)


def _triangle(call: Call, distance: Value, a: float) -> Value:
    return call.apply("relu", call.apply("sub", 1.0, distance))


def cubic(call: Call, distance: Value, a: float) -> Value:
    """Keys' kernel: Keys, "Cubic convolution interpolation for digital image processing", 1981."""

    def polynomial(*coefficients: float) -> Value:
        total: Operand = coefficients[0]
        for coefficient in coefficients[1:]:
            total = call.apply("add", call.apply("mul", total, distance), coefficient)
        assert isinstance(total, Value)
        return total

    near, far = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = call.apply("select", call.apply("less", distance, 2.0), far, 0.0)
    return call.apply("select", call.apply("greater", distance, 1.0), outer, near)


_KERNELS: Mapping[str, tuple[int, Callable[[Call, Value, float], Value]]] = {
    "linear": (1, _triangle),
    "cubic": (2, cubic),
}
"""How far a kernel reaches, and what an element at a distance counts."""


def _interpolated(call: Call, x: Value, number: int, axis: _Axis, at: Value, mode: str) -> Value:
    """The sum of the elements around each position, weighted by their distance from it."""
    if not x.dtype.is_float:
        call.unsupported(f"{mode} interpolation of {x.dtype}")
    reach, kernel = _KERNELS[mode]
    squeeze = 1.0
    if call.has("antialias") and call.integer("antialias"):
        if isinstance(axis.scale, Value):
            call.unsupported("antialiasing by a scale that is symbolic")
        squeeze = min(float(axis.scale), 1.0)
    first = math.floor(-reach / squeeze) + 1
    call.emitter.reserve(2 - 2 * first)
    outside = call.has("exclude_outside") and bool(call.integer("exclude_outside"))
    a = call.number("cubic_coeff_a") if call.has("cubic_coeff_a") else -0.75
    low = call.apply("floor", at)
    share = call.apply("sub", at, low)
    places, weights = [], []
    for step in range(first, 2 - first):
        place = call.apply("add", low, float(step))
        distance = call.apply("abs", call.apply("mul", call.apply("sub", float(step), share), squeeze))
        weight = kernel(call, distance, a)
        if outside:
            size = _Reals(call).of(axis.size)
            within = call.apply("and", call.apply("less", -1.0, place), call.apply("less", place, size))
            weight = call.apply("select", within, weight, 0.0)
        places.append(place)
        weights.append(weight)
    if outside or squeeze < 1.0:
        total = weights[0]
        for weight in weights[1:]:
            total = call.apply("add", total, weight)
        weights = [call.apply("div", weight, total) for weight in weights]
    column = (axis.extent, *(1,) * (x.tensor.rank - number - 1))
    terms = [
        call.apply("mul", _picked(call, x, number, place), call.cast(call.reshape(weight, column), x.dtype))
        for place, weight in zip(places, weights)
    ]
    y = terms[0]
    for term in terms[1:]:
        y = call.apply("add", y, term)
    return y


def _extrapolated(call: Call, y: Value, number: int, axis: _Axis, at: Value) -> Value:
    """A given value where a position lies outside the input."""
    last = _Reals(call)("sub", _Reals(call).of(axis.size), 1.0)
    beyond = call.apply("or", call.apply("less", at, 0.0), call.apply("greater", at, last))
    column = call.reshape(beyond, (axis.extent, *(1,) * (y.tensor.rank - number - 1)))
    return call.apply("select", column, call.constant(call.number("extrapolation_value"), y.dtype), y)


# --- the operator ---------------------------------------------------------------------------------------------------


@translates("Upsample", versions=(7, 9))
@translates("Resize", versions=(10, 11, 13, 18, 19))
def resize(call: Call) -> Value:
    x = call.input(0)
    mode = call.attr("mode", str)
    simple = call.node.op == "Upsample" or call.version < 11
    coordinates = "asymmetric" if simple else call.attr("coordinate_transformation_mode", str)
    rounding = "floor" if simple else call.attr("nearest_mode", str)
    if coordinates not in _COORDINATES or rounding not in _ROUNDINGS or mode not in ("nearest", *_KERNELS):
        call.wrong("Resize has no such mode", "one of the specification", f"{mode}, {coordinates}, {rounding}")
    crops = coordinates == "tf_crop_and_resize"
    outside = []
    for number, axis in _targets(call, x, crops).items():
        if axis.size == axis.extent and not isinstance(axis.scale, Value) and axis.scale == 1 and not crops:
            continue
        if isinstance(axis.size, int) and isinstance(axis.extent, int):
            if axis.extent < 0 or (axis.size == 0) != (axis.extent == 0):
                got = f"{axis.size} to {axis.extent}"
                call.wrong(f"axis {number} cannot be resized", "extents of at least 1", got)
            call.emitter.reserve(axis.extent)
        at = _positions(call, coordinates, axis)
        if mode == "nearest":
            x = _picked(call, x, number, _ROUNDINGS[rounding](call, at))
        else:
            x = _interpolated(call, x, number, axis, at, mode)
        if crops:
            outside.append((number, axis, at))
    for number, axis, at in outside:
        x = _extrapolated(call, x, number, axis, at)
    return x


def _targets(call: Call, x: Value, crops: bool) -> dict[int, _Axis]:
    """What happens to each axis that is named, from the operand `scales` or `sizes`."""
    rank = x.tensor.rank
    axes = call.integers("axes", range(rank)) if call.has("axes") else tuple(range(rank))
    axes = tuple(call.normal_axis(axis, rank) for axis in axes)
    parts = _parts(call, len(axes)) if crops else ((0.0, 1.0),) * len(axes)
    sizes = call.optional(3)
    if sizes is None or sizes.tensor.elements == 0:
        factors = _factors(call, len(axes))
        out = {}
        for axis, factor, part in zip(axes, factors, parts):
            extent = dims.scale(x.dims[axis], *factor.as_integer_ratio())
            out[axis] = _Axis(x.dims[axis], extent, factor, *part)
        return out
    wanted = call.dims(sizes, "the size")
    if len(wanted) != len(axes):
        call.wrong("Resize needs one size for each axis", len(axes), len(wanted))
    policy = call.attr("keep_aspect_ratio_policy", str) if call.has("keep_aspect_ratio_policy") else "stretch"
    if policy != "stretch":
        return _in_proportion(call, x, axes, wanted, parts, policy)
    real = _Reals(call)
    return {
        axis: _Axis(x.dims[axis], size, real("div", real.of(size), real.of(x.dims[axis])), *part)
        for axis, size, part in zip(axes, wanted, parts)
    }


def _in_proportion(
    call: Call,
    x: Value,
    axes: tuple[int, ...],
    wanted: tuple[Dim, ...],
    parts: Sequence[tuple[Operand, Operand]],
    policy: str,
) -> dict[int, _Axis]:
    """One scale for all axes: the largest that fits into the sizes, or the smallest that covers them."""
    if policy not in ("not_larger", "not_smaller"):
        call.wrong("Resize.keep_aspect_ratio_policy is wrong", "stretch, not_larger or not_smaller", policy)
    real = _Reals(call)
    larger = policy == "not_smaller"
    scale, *others = (real("div", real.of(size), real.of(x.dims[axis])) for axis, size in zip(axes, wanted))
    for other in others:
        scale = real("max" if larger else "min", scale, other)
    out: dict[int, _Axis] = {}
    for axis, part in zip(axes, parts):
        # scale * extent, rounded half up, exactly: that of the one scale is the least (largest) of all.
        extent, *rest = (
            dims.floordiv(2 * size * x.dims[axis] + x.dims[of], 2 * x.dims[of]) for of, size in zip(axes, wanted)
        )
        for dim in rest:
            extent = dims.maximum(extent, dim) if larger else dims.minimum(extent, dim)
        out[axis] = _Axis(x.dims[axis], extent, scale, *part)
    return out


def _factors(call: Call, count: int) -> list[float]:
    """The scales: an attribute of the first Upsample, else an operand."""
    if call.node.op == "Upsample" and call.version == 7:
        known = np.array(call.attr("scales", tuple))
    else:
        scales = call.optional(2 if call.node.op == "Resize" and call.version > 10 else 1)
        if scales is None:
            call.wrong("Resize needs scales or sizes", "one of them", "neither")
        numbers = call.numbers(scales)
        if numbers is None:
            call.unsupported("its scales depend on data, or on symbolic extents")
        known = numbers.reshape(-1)
    if known.size != count:
        call.wrong("Resize needs one scale for each axis", count, known.size)
    if not (np.isfinite(known).all() and (known > 0).all()):
        call.wrong("a scale of Resize is out of range", "finite numbers above 0", known.tolist())
    return [float(factor) for factor in known]


def _parts(call: Call, count: int) -> tuple[tuple[Operand, Operand], ...]:
    """For each axis the begin and the end of what is looked at, as shares of the input."""
    roi = call.input(1)
    if roi.tensor.rank != 1 or roi.dims[0] not in (2 * count, *(() if isinstance(roi.dims[0], int) else roi.dims)):
        call.wrong("the region of interest has a begin and an end for each axis", 2 * count, roi.type)
    bounds = call.cast(call.reshape(roi, (2 * count,)), dtypes.f64)
    each = [call.apply("gather", bounds, call.constant(n, dtypes.i64), axis=0) for n in range(2 * count)]
    return tuple(zip(each[:count], each[count:]))
