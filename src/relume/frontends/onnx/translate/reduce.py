"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from relume.base import dims, dtypes
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value

_AXES_AS_INPUT = {"ReduceSum": 13}
"""From this version on the axes are an operand; 18 for all others."""


def _axes(call: Call, x: Value) -> tuple[int, ...] | None:
    """The axes, ascending. None: nothing is reduced (no axes, and `noop_with_empty_axes`)."""
    rank = x.tensor.rank
    if call.version >= _AXES_AS_INPUT.get(call.node.op, 18):
        operand = call.optional(1)
        axes = call.ints(operand, "axes") if operand is not None else ()
    else:
        axes = call.integers("axes", ())
    if axes:
        return call.normal_axes(axes, rank)
    return None if call.has("noop_with_empty_axes") and call.integer("noop_with_empty_axes") else tuple(range(rank))


_VERSIONS = (1, 11, 13, 18)


@translates("ReduceSum", versions=(1, 11, 13))
@translates("ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", versions=_VERSIONS)
@translates("ReduceLogSum", "ReduceLogSumExp", versions=(*_VERSIONS, 28))
@translates("ReduceMax", "ReduceMin", versions=(1, 11, 12, 13, 18, 20))
def reduction(call: Call) -> Value:
    x = call.input(0)
    axes, keep = _axes(call, x), bool(call.integer("keepdims"))
    kind = call.node.op.removeprefix("Reduce")
    # Without axes to reduce what each element becomes still applies: the sum of squares of one element is its square.
    if kind in _REAL and not x.dtype.is_float:
        return call.cast(_REDUCTIONS[kind](call, call.cast(x, dtypes.f64), axes or (), keep), x.dtype)
    return _REDUCTIONS[kind](call, x, axes or (), keep)


_REAL = ("L2", "LogSum", "LogSumExp")
"""What is computed in f64 for integers, and truncated."""


Reduction = Callable[[Call, Value, Sequence[int], bool], Value]
"""(call, operand, axes, whether they are kept) -> result."""


def _plain(op: str) -> Reduction:
    def reduce(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
        return x if not axes else call.apply(op, x, axes=tuple(axes), keep=keep)

    return reduce


_sum = _plain("reduce_sum")


def _extreme(op: str) -> Reduction:
    def reduce(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
        if x.dtype is not dtypes.bool_:
            return _plain(op)(call, x, axes, keep)
        return call.cast(_plain(op)(call, call.cast(x, dtypes.u8), axes, keep), dtypes.bool_)

    return reduce


def _mean(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    if x.dtype.is_float:
        return _plain("reduce_mean")(call, x, axes, keep)
    count = call.cast(call.reshape(call.extents([dims.product(x.dims[axis] for axis in axes)]), ()), x.dtype)
    return call.apply("div", _sum(call, x, axes, keep), count)


def _l1(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return _sum(call, call.apply("abs", x), axes, keep)


def _sum_square(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return _sum(call, call.apply("mul", x, x), axes, keep)


def _l2(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return call.apply("sqrt", _sum_square(call, x, axes, keep))


def _log_sum(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return call.apply("log", _sum(call, x, axes, keep))


def _log_sum_exp(call: Call, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """m + log(sum of e ** (x - m)), with m the largest, or 0 where that is infinite."""
    if not axes:
        return x
    largest = call.apply("reduce_max", x, axes=tuple(axes), keep=True)
    finite = call.apply("less", call.apply("abs", largest), math.inf)
    shift = call.apply("select", finite, largest, 0)
    total = call.apply("reduce_sum", call.apply("exp", call.apply("sub", x, shift)), axes=tuple(axes), keep=True)
    y = call.apply("add", call.apply("log", total), shift)
    return y if keep else call.reshape(y, [dim for axis, dim in enumerate(x.dims) if axis not in axes])


def _with(shape: Sequence[dims.Dim], axis: int, dim: dims.Dim) -> tuple[dims.Dim, ...]:
    return (*shape[:axis], dim, *shape[axis + 1 :])


_REDUCTIONS: dict[str, Reduction] = {
    "Sum": _sum,
    "Mean": _mean,
    "Max": _extreme("reduce_max"),
    "Min": _extreme("reduce_min"),
    "Prod": _plain("reduce_prod"),
    "L1": _l1,
    "L2": _l2,
    "SumSquare": _sum_square,
    "LogSum": _log_sum,
    "LogSumExp": _log_sum_exp,
}


@translates("ArgMax", "ArgMin", versions=(1, 11, 12, 13))
def arg_extreme(call: Call) -> Value:
    """The index of the first largest (smallest) element, or of the last one with `select_last_index`."""
    x = call.input(0)
    rank = x.tensor.rank
    axis, keep = call.axis(rank), bool(call.integer("keepdims"))
    if call.node.op == "ArgMin":
        # Order is reversed exactly: by sign for floats, by complement for integers, which never wraps.
        x = call.apply("neg", x) if x.dtype.is_float else call.apply("sub", call.constant(-1, x.dtype), x)
    if not (call.has("select_last_index") and call.integer("select_last_index")):
        return call.apply("argmax", x, axis=axis, keep=keep)
    last = x.dims[axis] - 1
    starts, stops = _with((0,) * rank, axis, last), _with(x.dims, axis, -1)
    mirrored = call.apply("slice", x, starts=starts, stops=stops, steps=_with((1,) * rank, axis, -1))
    index = call.apply("argmax", mirrored, axis=axis, keep=keep)
    return call.apply("sub", call.reshape(call.extents([last]), ()), index)
