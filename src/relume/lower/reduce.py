"""Reductions: the reduced axes go last, which is a matter of strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from relume.base import dims
from relume.kernels.stages import REDUCTIONS
from relume.lower import views
from relume.lower.elementwise import body_of
from relume.lower.groups import Group, attr, axis_of
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, want_dtype
from relume.program.types import IN, OUT, Operand, Param, View


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


def rows(low: Lowering, group: Group) -> None:
    """Element-wise steps with reductions of the last axes among them: those become one axis, the row."""
    full = group.rows
    assert full is not None
    reductions = [node for node in group.steps if node.op.name in REDUCTIONS]
    for node in reductions:
        want_dtype(node.operands[0], FLOATS if node.op.name == "reduce_mean" else NUMBERS)
    count = len(cast("tuple[int, ...]", reductions[0].attrs["axes"]))
    kept = full[: len(full) - count]
    body = body_of(low, group, full)
    outputs = [
        by_row(low, view, count) if view.dims == full else view.seen(kept, view.strides[: len(kept)], view.offset)
        for view in map(low.result, group.targets)
    ]
    inputs = [by_row(low, view, count) for view in body.inputs]
    operands = [*(Operand(IN, view) for view in inputs), *(Operand(OUT, view) for view in outputs)]
    low.emit("rows", operands, [dims.product(full[len(kept) :])], body=body.steps, outs=body.outs)


def by_row(low: Lowering, view: View, count: int) -> View:
    """The last `count` axes as one, along which elements are neighbours; one element of what is repeated along them."""
    outside = len(view.dims) - count
    kept, strides = view.dims[:outside], view.strides[:outside]
    if all(stride == 0 or dim == 1 for dim, stride in zip(view.dims[outside:], view.strides[outside:])):
        return view.seen((*kept, 1), (*strides, 1), view.offset)
    view = low.ordered(view, "rows", count)
    return view.seen((*kept, dims.product(view.dims[outside:])), (*view.strides[:outside], 1), view.offset)


def argmax(low: Lowering, group: Group) -> None:
    """`argmax` along one axis."""
    _run(low, group, "argmax", [axis_of(group, "axis", len(group.operands[0].dims))])


LOWERINGS: Mapping[str, Lower] = {
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_mean"), reduce),
    "rows": rows,
    "argmax": argmax,
}
