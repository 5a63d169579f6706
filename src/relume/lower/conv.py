"""Convolutions: blocked ones over a halo, the others over plain channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relume.base.dims import Dim
from relume.lower.elementwise import run_with_epilogue
from relume.lower.groups import Group
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, NotSupported, conv_pads, want_block, want_dtype
from relume.program.types import View


def _params(group: Group, *names: str) -> dict[str, Any]:
    assert group.head is not None
    return {name: group.head.attrs[name] for name in names}


def _bias(low: Lowering, group: Group) -> View | None:
    """The third operand along the channels of the result."""
    if len(group.operands) < 3:
        return None
    shape = group.targets[0].dims
    view = low.view(group.operands[2])
    strides: list[Dim] = [0] * len(shape)
    strides[1] = view.strides[0]
    if len(view.dims) == 2:  # In blocks: the lanes are the last axis.
        strides[-1] = view.strides[1]
    return view.seen(shape, strides, view.offset)


def blocked(low: Lowering, group: Group) -> None:
    """The kernel checks no bounds: the border comes with the input."""
    x, weights = group.operands[:2]
    want_dtype(x, FLOATS)
    if x.tensor.rank == 5:
        want_block(x)
    if not weights.tensor.is_static:
        raise NotSupported(f"the weights are {weights.tensor}, and their extents must be known at compile time")
    source = low.ordered(low.padded(x, conv_pads(group) or (0, 0, 0, 0)), x.name, 1)
    params = _params(group, *_BLOCKED[group.op])
    run_with_epilogue(low, group.op, group, [source, low.in_order(weights)], _bias(low, group), lanes=True, **params)


def plain(low: Lowering, group: Group) -> None:
    """Any rank and group count, right first."""
    x, weights = group.operands[:2]
    want_dtype(x, NUMBERS)
    params = _params(group, "strides", "pads", "dilations", "groups")
    run_with_epilogue(low, "conv_plain", group, [low.view(x), low.view(weights)], _bias(low, group), **params)


_BLOCKED = {
    "conv_blocked": ("strides", "dilations", "channels", "out_channels"),
    "conv_winograd": ("channels", "tile"),
    "depthwise_blocked": ("strides", "dilations"),
}
"""The attributes that the kernels of blocked convolutions take."""

LOWERINGS: Mapping[str, Lower] = {
    "conv": plain,
    "conv_blocked": blocked,
    "conv_winograd": blocked,
    "depthwise_blocked": blocked,
}
