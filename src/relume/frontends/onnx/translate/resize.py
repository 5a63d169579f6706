"""Resize by nearest neighbour and (multi)linear interpolation, made of gathers along one axis after another.

Where each output element looks is worked out here, so the extents of resized axes must be known; one that grows by a
whole factor may be symbolic for the nearest neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from relume.base import dtypes
from relume.base.dims import Dim
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value

# (output positions, scale, input extent) -> positions in the input. There are floor(scale * input extent) outputs;
# align_corners speaks of scale * extent without the floor, as the specification's tests do.
_COORDINATES: dict[str, Callable[[np.ndarray, float, int], np.ndarray]] = {
    "half_pixel": lambda x, scale, size: (x + 0.5) / scale - 0.5,
    "asymmetric": lambda x, scale, size: x / scale,
    "pytorch_half_pixel": lambda x, scale, size: (x + 0.5) / scale - 0.5 if len(x) > 1 else np.zeros_like(x),
    "align_corners": lambda x, scale, size: x * (size - 1) / (scale * size - 1) if len(x) > 1 else np.zeros_like(x),
    "half_pixel_symmetric": lambda x, scale, size: size / 2 * (1 - len(x) / (scale * size)) + (x + 0.5) / scale - 0.5,
    "tf_half_pixel_for_nn": lambda x, scale, size: (x + 0.5) / scale,
}
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@translates("Resize", versions=(10, 11, 13, 18, 19))
def resize(call: Call) -> Value:
    x = call.input(0)
    mode = call.attr("mode", str)
    if mode not in ("nearest", "linear"):
        call.unsupported(f"mode {mode!r}")
    if call.has("antialias") and call.integer("antialias"):
        call.unsupported("antialiasing")
    if call.has("keep_aspect_ratio_policy") and call.attr("keep_aspect_ratio_policy", str) != "stretch":
        call.unsupported("keeping the aspect ratio")
    coordinates = call.attr("coordinate_transformation_mode", str) if call.version >= 11 else "asymmetric"
    if coordinates not in _COORDINATES:
        call.unsupported(f"coordinate_transformation_mode {coordinates!r}")
    rounding = call.attr("nearest_mode", str) if call.version >= 11 else "floor"
    for axis, (scale, extent) in _targets(call, x).items():
        size = x.dims[axis]
        if scale == 1 and extent == size:
            continue
        if not isinstance(size, int) or not isinstance(extent, int):
            x = _repeated(call, x, axis, scale, mode, coordinates, rounding)
            continue
        if extent < 0 or (size == 0) != (extent == 0):
            call.wrong(f"axis {axis} cannot be resized", "extents of at least 1", f"{size} to {extent}")
        call.emitter.reserve(extent)
        at = _COORDINATES[coordinates](np.arange(extent, dtype=np.float64), scale, size)
        if mode == "nearest":
            x = _picked(call, x, axis, _ROUNDINGS[rounding](at))
        else:
            x = _interpolated(call, x, axis, at)
    return x


def _targets(call: Call, x: Value) -> dict[int, tuple[float, Dim]]:
    """axis -> (scale, output extent) of each axis that is resized, from the operand `scales` or `sizes`."""
    rank = x.tensor.rank
    axes = call.integers("axes", range(rank)) if call.has("axes") else tuple(range(rank))
    axes = tuple(call.normal_axis(axis, rank) for axis in axes)
    scales, sizes = call.optional(1 if call.version == 10 else 2), call.optional(3)
    if sizes is not None and sizes.tensor.elements != 0:
        wanted = call.dims(sizes, "the size")
        if len(wanted) != len(axes):
            call.wrong("Resize needs one size for each axis", len(axes), len(wanted))
        return {axis: (_ratio(call, size, x.dims[axis]), size) for axis, size in zip(axes, wanted)}
    if scales is None:
        call.wrong("Resize needs scales or sizes", "one of them", "neither")
    factors = call.numbers(scales)
    if factors is None:
        call.unsupported("its scales depend on data, or on symbolic extents")
    if factors.size != len(axes):
        call.wrong("Resize needs one scale for each axis", len(axes), factors.size)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        call.wrong("a scale of Resize is out of range", "finite numbers above 0", factors.tolist())
    out: dict[int, tuple[float, Dim]] = {}
    for axis, factor in zip(axes, map(float, factors.reshape(-1))):
        size = x.dims[axis]
        if isinstance(size, int):
            out[axis] = (factor, math.floor(size * factor))
        elif factor == int(factor):
            out[axis] = (factor, size * int(factor))
        else:
            call.unsupported(f"axis {axis} of symbolic extent {size} is scaled by {factor}")
    return out


def _ratio(call: Call, size: Dim, extent: Dim) -> float:
    if size == extent:
        return 1.0
    if isinstance(size, int) and isinstance(extent, int):
        return size / extent if extent else 1.0
    return call.unsupported(f"an axis of extent {extent} is resized to {size}: the ratio is symbolic")


def _repeated(call: Call, x: Value, axis: int, scale: float, mode: str, coordinates: str, rounding: str) -> Value:
    """Every element `scale` times: what the nearest neighbour does for a whole factor, checked on a few extents."""
    factor = int(scale)
    call.emitter.reserve(10 * factor)
    for size in (1, 2, 7):
        at = _COORDINATES[coordinates](np.arange(size * factor, dtype=np.float64), scale, size)
        places = np.clip(_ROUNDINGS[rounding](at), 0, size - 1)
        if mode != "nearest" or scale != factor or not np.array_equal(places, np.arange(size * factor) // factor):
            call.unsupported(f"axis {axis} of symbolic extent {x.dims[axis]} is resized ({mode}, {coordinates})")
    wide = call.reshape(x, (*x.dims[: axis + 1], 1, *x.dims[axis + 1 :]))
    spread = call.apply("broadcast", wide, dims=(*x.dims[: axis + 1], factor, *x.dims[axis + 1 :]))
    return call.reshape(spread, (*x.dims[:axis], x.dims[axis] * factor, *x.dims[axis + 1 :]))


def _picked(call: Call, x: Value, axis: int, at: np.ndarray) -> Value:
    size = x.dims[axis]
    assert isinstance(size, int)
    return call.apply("gather", x, call.constant(np.clip(at, 0, size - 1), dtypes.i64), axis=axis)


def _interpolated(call: Call, x: Value, axis: int, at: np.ndarray) -> Value:
    """(1 - r) * x[floor(at)] + r * x[floor(at) + 1], positions beyond an end taken at the end."""
    if not x.dtype.is_float:
        call.unsupported(f"linear interpolation of {x.dtype}")
    low = np.floor(at)
    share = (at - low).reshape(-1, *(1,) * (x.tensor.rank - axis - 1))
    left, right = _picked(call, x, axis, low), _picked(call, x, axis, low + 1)
    return call.apply(
        "add",
        call.apply("mul", left, call.constant(1 - share, x.dtype)),
        call.apply("mul", right, call.constant(share, x.dtype)),
    )
