"""Pooling over windows and over whole images."""

from __future__ import annotations

from typing import Any

from relume.frontends.onnx.calls import Call, NotTranslated, Results, translates
from relume.frontends.onnx.translate.convolution import Windows, pads_or_padded, windows
from relume.graph.types import Value


@translates("MaxPool", versions=(1, 8, 10, 11, 12, 22))
def max_pool(call: Call) -> Results:
    """The largest elements and, where wanted, their places in x: not where padding is symbolic, and so data."""
    x = call.input(0)
    frame = windows(call, x, call.integers("kernel_shape", ()))
    lowest = float("-inf") if x.dtype.is_float else float(_minimum(x))
    data, pads = pads_or_padded(call, x, frame, lowest)
    y = _pool(call, "max_pool", data, frame, pads)
    if not any(call.node.outputs[1:]):
        return y
    if not frame.is_static:
        return y, NotTranslated("the padding depends on symbolic extents, and has no places in x")
    return y, _pool(call, "argmax_pool", x, frame, pads, column_major=bool(call.integer("storage_order")))


@translates("LpPool", versions=(2, 11, 18, 22))
def lp_pool(call: Call) -> Value:
    """The p-norm of each window."""
    x = call.input(0)
    frame = windows(call, x, call.integers("kernel_shape", ()))
    power = call.integer("p")
    if power < 1:
        call.wrong("LpPool.p must be at least 1", "at least 1", power)
    size = call.apply("abs", x) if power % 2 or power > 2 else x
    raised = {1: lambda: size, 2: lambda: call.apply("mul", x, x)}.get(power, lambda: call.apply("pow", size, power))()
    data, pads = pads_or_padded(call, raised, frame, 0.0)
    total = _pool(call, "sum_pool", data, frame, pads)
    if power == 1:
        return total
    return call.apply("sqrt", total) if power == 2 else call.apply("pow", total, 1 / power)


@translates("GlobalLpPool", versions=(2, 22))
def global_lp_pool(call: Call) -> Value:
    """The p-norm of each plane."""
    x, power = call.input(0), call.integer("p")
    if power < 1:
        call.wrong("GlobalLpPool.p must be at least 1", "at least 1", power)
    raised = call.apply("pow", call.apply("abs", x), power)
    return call.apply("pow", call.apply("reduce_sum", raised, axes=_spatial(call, x), keep=True), 1 / power)


def _minimum(x: Value) -> int:
    return -(1 << (8 * x.dtype.bytes - 1)) if x.dtype.is_signed else 0


def _pool(call: Call, op: str, x: Value, frame: Windows, pads: tuple[int, ...], **attrs: Any) -> Value:
    ceil = call.has("ceil_mode") and bool(call.integer("ceil_mode"))
    return call.apply(
        op, x, window=frame.size, strides=frame.strides, pads=pads, dilations=frame.dilations, ceil=ceil, **attrs
    )


@translates("AveragePool", versions=(1, 7, 10, 11, 19, 22))
def average_pool(call: Call) -> Value:
    x = call.input(0)
    frame = windows(call, x, call.integers("kernel_shape", ()))
    count_pads = call.has("count_include_pad") and bool(call.integer("count_include_pad"))
    data, pads = pads_or_padded(call, x, frame, 0.0)
    mean = _pool(call, "avg_pool", data, frame, pads, count_pads=count_pads)
    if frame.is_static or count_pads:
        return mean
    # The padding is data here, so it was counted: divide by the share of each window that is real.
    ones = call.apply("broadcast", call.constant(1, x.dtype), dims=(1, 1, *x.dims[2:]))
    real, _ = pads_or_padded(call, ones, frame, 0.0)
    return call.apply("div", mean, _pool(call, "avg_pool", real, frame, pads, count_pads=False))


def _spatial(call: Call, x: Value) -> tuple[int, ...]:
    if x.tensor.rank < 3:
        call.wrong(f"{call.node.op} pools over spatial axes", "[N,C,..]", x.type)
    return tuple(range(2, x.tensor.rank))


@translates("GlobalAveragePool", versions=(1, 22))
def global_average_pool(call: Call) -> Value:
    x = call.input(0)
    return call.apply("reduce_mean", x, axes=_spatial(call, x), keep=True)


@translates("GlobalMaxPool", versions=(1, 22))
def global_max_pool(call: Call) -> Value:
    x = call.input(0)
    return call.apply("reduce_max", x, axes=_spatial(call, x), keep=True)
