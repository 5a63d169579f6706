"""Reductions: the reduced axes go last, which is a matter of strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from relume.lower import views
from relume.lower.groups import Group, attr, axis_of
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, want_dtype
from relume.program.types import Param


def _run(low: Lowering, group: Group, kernel: str, axes: Sequence[int], **params: Param) -> None:
    (x,), (y,) = group.operands, group.targets
    want_dtype(x, FLOATS if params.get("kind") == "mean" else NUMBERS)
    kept = [axis for axis in range(len(x.dims)) if axis not in axes]
    out = low.result(y)
    if attr(group, "keep"):  # The result has the reduced axes too, with an extent of 1.
        out = views.transposed(out, kept)
    low.run(kernel, [views.transposed(low.view(x), (*kept, *axes))], [out], kept=len(kept), **params)


def reduce(low: Lowering, group: Group) -> None:
    """`reduce_sum` and its kin."""
    rank = len(group.operands[0].dims)
    axes = sorted({axis % max(rank, 1) for axis in cast("tuple[int, ...]", attr(group, "axes"))})
    _run(low, group, "reduce", axes, kind=group.op.removeprefix("reduce_"))


def argmax(low: Lowering, group: Group) -> None:
    """`argmax` along one axis."""
    _run(low, group, "argmax", [axis_of(group, "axis", len(group.operands[0].dims))])


LOWERINGS: Mapping[str, Lower] = {
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_mean"), reduce),
    "argmax": argmax,
}
