"""Convolutions: blocked ones over a halo, the others over plain channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relume.base.dims import Dim
from relume.base.dtypes import DType, f64
from relume.lower.elementwise import run_with_epilogue
from relume.lower.groups import Group
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, NotSupported, conv_pads, want_block, want_dtype
from relume.ops import winograd
from relume.program.types import Param, View


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


def transform(low: Lowering, group: Group) -> None:
    """The weights of a Winograd convolution: a body per position, the operations of the op's reference in its order."""
    assert group.head is not None
    (w,) = group.operands
    want_dtype(w, FLOATS)
    dtype, matrix = w.dtype, winograd.WEIGHTS[group.head.attrs["tile"]]  # type: ignore[index]
    source, target = low.view(w), low.result(group.targets[0])
    window = [(row, column) for row in range(winograd.WINDOW) for column in range(winograd.WINDOW)]
    inputs = [
        source.seen(source.dims[:2], source.strides[:2], source.offset + row * source.strides[2] + column * step)
        for row, column in window
        for step in source.strides[3:]
    ]
    for i, down in enumerate(matrix):
        for j, across in enumerate(matrix):
            body = _Steps(len(inputs))
            wide = {place: body.add("cast", number, to=f64) for number, place in enumerate(window)}
            columns = [
                body.combined(down, [wide[row, column] for row in range(winograd.WINDOW)])
                for column in range(winograd.WINDOW)
            ]
            out = body.add("cast", body.combined(across, columns), dtype=dtype, to=dtype)
            position = i * len(matrix) + j
            at = target.seen(
                (target.dims[0], target.dims[2]),
                (target.strides[0], target.strides[2]),
                target.offset + position * target.strides[1],
            )
            low.run("map", inputs, [at], body=tuple(body.steps), outs=(out,))


class _Steps:
    """A body under construction, in f64."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[Param] = []

    def add(self, op: str, *args: int, dtype: DType = f64, **attrs: Param) -> int:
        self.steps.append((op, args, tuple(attrs.items()), dtype.name))
        return self.inputs + len(self.steps) - 1

    def combined(self, row: Sequence[float], parts: Sequence[int]) -> int:
        """The sum of the parts by the factors of `row`, terms ascending and those of factor 0 left out."""
        products = [
            self.add("mul", self.add("constant", value=float(factor)), part)
            for factor, part in zip(row, parts)
            if factor
        ]
        total = products[0]
        for product in products[1:]:
            total = self.add("add", total, product)
        return total


_BLOCKED = {
    "conv_blocked": ("strides", "dilations", "channels"),
    "conv_winograd": ("channels", "tile"),
    "depthwise_blocked": ("strides", "dilations"),
}
"""The attributes that the kernels of blocked convolutions take."""

LOWERINGS: Mapping[str, Lower] = {
    "conv": plain,
    "conv_blocked": blocked,
    "conv_winograd": blocked,
    "depthwise_blocked": blocked,
    "winograd_weights": transform,
}
