"""Where the parts of a concat lie: in its result, if they can be computed there, so that nothing is copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from relume.base.dims import Dim
from relume.graph.types import Value
from relume.lower.groups import Group, attr, axis_of


class Part(NamedTuple):
    """Where a value lies in the result of a concat: from `start` on along `axis`."""

    whole: Value
    axis: int
    start: Dim


def parts(groups: Sequence[Group], fits: Callable[[Value], bool]) -> dict[Value, Part]:
    """The values that are computed straight into what they are joined to: each at most once, and only where it `fits`.

    Slices of one value that stand side by side as they do in it are that value. Single elements here and there (parts
    of the last axis) are better computed in a row and copied.
    """
    found: dict[Value, Part] = {}
    slices = {group.targets[0]: group for group in groups if group.op == "slice"}
    for group in groups:
        if group.op != "concat":
            continue
        (whole,) = group.targets
        axis = axis_of(group, "axis", len(whole.dims))
        if axis == len(whole.dims) - 1 and any(dim != 1 for dim in whole.dims[:axis]):
            continue
        pieces: list[tuple[Value, Dim, Dim]] = []
        at: Dim = 0
        for value in group.operands:
            source, start = _cut_from(value, axis, slices)
            pieces.append((source, at - start, value.dims[axis]))
            at = at + value.dims[axis]
        for (value, start), together in groupby(pieces, key=lambda piece: piece[:2]):
            extent = sum((extent for _, _, extent in together), cast(Dim, 0))
            if extent == value.dims[axis] and fits(value):
                found.setdefault(value, Part(whole, axis, start))
    return found


def _cut_from(value: Value, axis: int, slices: Mapping[Value, Group]) -> tuple[Value, Dim]:
    """What a value is a slice of along this axis alone, and where it starts there; else itself."""
    cut = slices.get(value)
    if cut is None:
        return value, 0
    (source,) = cut.operands
    starts, stops, steps = (cast("tuple[Dim, ...]", attr(cut, name)) for name in ("starts", "stops", "steps"))
    others = [
        index == axis or (start == 0 and stop == dim)
        for index, (start, stop, dim) in enumerate(zip(starts, stops, source.dims))
    ]
    return (source, starts[axis]) if all(others) and set(steps) == {1} else (value, 0)
