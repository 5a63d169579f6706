"""Normalisations, for inference."""

from __future__ import annotations

from relume.base import dims, dtypes
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.translate.movement import cut, padded
from relume.graph.types import Value


@translates("BatchNormalization", versions=(1, 6, 7, 9, 14, 15))
def batch_normalization(call: Call) -> tuple[Value, ...]:
    """With the given mean and variance. Scale and bias may have another float type than x (version 15)."""
    if call.version < 7 and not call.integer("is_test"):
        call.unsupported("training mode (is_test=0)")
    if call.version < 9 and call.has("spatial") and not call.integer("spatial"):
        call.unsupported("statistics for each element (spatial=0)")
    x = call.input(0)
    if call.has("training_mode") and call.integer("training_mode"):
        return _by_own_statistics(call, x)
    vectors = [call.cast(call.input(index), x.dtype) for index in range(1, 5)]
    return (call.apply("batch_norm", x, *vectors, epsilon=call.number("epsilon")),)


def _by_own_statistics(call: Call, x: Value) -> tuple[Value, Value, Value]:
    """Training mode: by the mean and variance of the batch itself, which the running ones then move toward."""
    scale, bias, *running = (call.input(index) for index in range(1, 5))
    axes = (0, *range(2, x.tensor.rank))
    mean = call.apply("reduce_mean", x, axes=axes, keep=True)
    centred = call.apply("sub", x, mean)
    variance = call.apply("reduce_mean", call.apply("mul", centred, centred), axes=axes, keep=False)
    mean = call.reshape(mean, variance.dims)
    vectors = [call.cast(vector, x.dtype) for vector in (scale, bias)]
    y = call.apply("batch_norm", x, *vectors, mean, variance, epsilon=call.number("epsilon"))
    momentum = call.number("momentum")
    moved = [
        call.apply(
            "add",
            call.apply("mul", old, momentum),
            call.apply("mul", call.cast(new, old.dtype), 1.0 - momentum),
        )
        for old, new in zip(running, (mean, variance))
    ]
    return y, moved[0], moved[1]


@translates("InstanceNormalization", versions=(1, 6, 22))
def instance_normalization(call: Call) -> Value:
    x = call.input(0)
    spatial = tuple(range(2, x.tensor.rank))
    if not spatial:
        call.wrong("InstanceNormalization needs spatial axes", "[N,C,..]", x.type)
    scale, bias = (call.reshape(v, (x.dims[1], *(1,) * len(spatial))) for v in (call.input(1), call.input(2)))
    return call.apply("layer_norm", x, scale, bias, axes=spatial, epsilon=call.number("epsilon"))


@translates("GroupNormalization", versions=(18, 21))
def group_normalization(call: Call) -> Value:
    """Over the channels of a group and all spatial axes. Scale and bias go by groups (18), by channels (21)."""
    x, groups = call.input(0), call.integer("num_groups")
    if x.tensor.rank < 2 or groups < 1:
        call.wrong("GroupNormalization needs channels and groups", "[N,C,..], 1 group or more", f"{x.type}, {groups}")
    batch, channels, *spatial = x.dims
    size = dims.floordiv(channels, groups)
    grouped = call.reshape(x, (batch, groups, size, *spatial))  # Requires that the groups use up the channels.
    own = (groups, size if call.version >= 21 else 1, *(1,) * len(spatial))
    for index in (1, 2):
        if call.input(index).tensor.rank != 1:
            call.wrong("scale and bias are vectors", "rank 1", call.input(index).type)
    scale, bias = (call.reshape(call.input(index), own) for index in (1, 2))
    y = _normalized(call, grouped, scale, bias, tuple(range(2, grouped.tensor.rank)))
    return call.reshape(y, x.dims)


@translates("LayerNormalization", versions=(17,))
def layer_normalization(call: Call) -> tuple[Value | None, ...]:
    """Over the axes from `axis` on; computed in float32 where x is narrower (`stash_type`)."""
    x, scale, bias = call.input(0), call.input(1), call.optional(2)
    axes = tuple(range(call.axis(x.tensor.rank), x.tensor.rank))
    if any(call.node.outputs[1:]):
        return (_normalized(call, x, scale, bias, axes), *_statistics(call, x, axes))
    return (_normalized(call, x, scale, bias, axes),)


def _normalized(call: Call, x: Value, scale: Value, bias: Value | None, axes: tuple[int, ...]) -> Value:
    if x.dtype.bytes >= 4:
        operands = (x, scale) if bias is None else (x, scale, bias)
        return call.apply("layer_norm", *operands, axes=axes, epsilon=call.number("epsilon"))
    wide = [call.cast(v, dtypes.f32) for v in (x, scale, bias) if v is not None]
    return call.cast(call.apply("layer_norm", *wide, axes=axes, epsilon=call.number("epsilon")), x.dtype)


def _statistics(call: Call, x: Value, axes: tuple[int, ...]) -> tuple[Value, Value]:
    """The mean, and one over the standard deviation."""
    wide = x if x.dtype.bytes >= 4 else call.cast(x, dtypes.f32)
    mean = call.apply("reduce_mean", wide, axes=axes, keep=True)
    centred = call.apply("sub", wide, mean)
    variance = call.apply("reduce_mean", call.apply("mul", centred, centred), axes=axes, keep=True)
    deviation = call.apply("sqrt", call.apply("add", variance, call.number("epsilon")))
    return mean, call.apply("reciprocal", deviation)


@translates("LRN", versions=(1, 13))
def local_response_normalization(call: Call) -> Value:
    """x / (bias + alpha / size * (the sum of squares of the `size` channels around)) ** beta."""
    x, size = call.input(0), call.integer("size")
    if size > 256:
        call.unsupported(f"a window of {size} channels")
    if x.tensor.rank < 2 or size < 1:
        call.wrong("LRN needs channels and a size of at least 1", "[N,C,..]", f"{x.type}, size {size}")
    front = (size - 1) // 2
    along = [0] * x.tensor.rank
    along[1] = 1
    square = call.apply("mul", x, x)
    grown = padded(call, square, [a * front for a in along], [a * (size - 1 - front) for a in along], 0.0)
    total = cut(call, grown, {1: (0, x.dims[1], 1)})
    for shift in range(1, size):
        total = call.apply("add", total, cut(call, grown, {1: (shift, x.dims[1] + shift, 1)}))
    base = call.apply("add", call.apply("mul", total, call.number("alpha") / size), call.number("bias"))
    return call.apply("div", x, call.apply("pow", base, call.number("beta")))


@translates("LpNormalization", versions=(1, 22))
def lp_normalization(call: Call) -> Value:
    """x divided by its norm along an axis; 0 where the norm is 0."""
    x = call.input(0)
    axis, p = call.axis(x.tensor.rank), call.integer("p")
    if p not in (1, 2):
        call.wrong("LpNormalization.p is wrong", "1 or 2", p)
    if p == 1:
        norm = call.apply("reduce_sum", call.apply("abs", x), axes=(axis,), keep=True)
    else:
        norm = call.apply("sqrt", call.apply("reduce_sum", call.apply("mul", x, x), axes=(axis,), keep=True))
    return call.apply("select", call.apply("equal", norm, 0), call.constant(0, x.dtype), call.apply("div", x, norm))
