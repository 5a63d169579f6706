"""Ops along one axis, which goes last: a matter of strides."""

from __future__ import annotations

from collections.abc import Mapping

from relume.lower import views
from relume.lower.groups import Group, attr, axis_of
from relume.lower.lowering import NUMBERS, Lower, Lowering, want_dtype
from relume.program.types import View

_NARROW = ("f16", "bf16")


def _last(view: View, axis: int) -> View:
    return views.transposed(view, (*(n for n in range(len(view.dims)) if n != axis), axis))


def cumulative(low: Lowering, group: Group) -> None:
    """From the end is forward in views that are turned around."""
    (x,), (y,) = group.operands, group.targets
    want_dtype(x, (*NUMBERS, *_NARROW))
    axis = axis_of(group, "axis", len(x.dims))
    source, result = _last(low.view(x), axis), _last(low.result(y), axis)
    if attr(group, "reverse"):
        kept, extent = len(x.dims) - 1, x.dims[axis]
        source, result = (views.window(view, kept, extent - 1, extent, -1) for view in (source, result))
    kind, exclusive = attr(group, "kind"), attr(group, "exclusive")
    low.run("cumulative", [source], [result], kept=len(x.dims) - 1, kind=kind, exclusive=exclusive)


def top_k(low: Lowering, group: Group) -> None:
    """Values and indices, from one kernel."""
    (x,) = group.operands
    want_dtype(x, (*NUMBERS, *_NARROW))
    axis = axis_of(group, "axis", len(x.dims))
    results = [_last(low.result(value), axis) for value in group.targets]
    low.run("top_k", [_last(low.view(x), axis)], results, largest=attr(group, "largest"))


LOWERINGS: Mapping[str, Lower] = {"cumulative": cumulative, "top_k": top_k}
