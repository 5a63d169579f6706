"""Which elements of its buffer a view touches: ranges, disjointness, coverage.

A concrete view is brought into one normal form, its *footprint*: an offset and axes of (extent, stride) with positive
strides, the largest first, neighbours merged where they form one run. So a view is dense if and only if its footprint
has at most one axis, of stride 1. Several footprints on one buffer become boxes in one mixed-radix system whose digits
have the strides of all of them; where no such system exists (strides that do not divide each other) there is no answer
and callers take the safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from relume.base import dims
from relume.base.dims import Dim
from relume.program.types import View


@dataclass(frozen=True)
class Footprint:
    """The elements `offset + sum(i * stride)` for i in range(extent), per axis. No axis has extent 1.

    `repeats`: some element may be visited twice (a stride of 0, or axes that reach over each other).
    """

    offset: int
    axes: tuple[tuple[int, int], ...]
    repeats: bool

    @property
    def end(self) -> int:
        """One past the highest element."""
        return self.offset + 1 + sum((extent - 1) * stride for extent, stride in self.axes)

    def fills(self, elements: int) -> bool:
        """Whether every element of a buffer of that many is touched."""
        return self.offset == 0 and (self.axes == ((elements, 1),) or (not self.axes and elements == 1))


def footprint(view: View) -> Footprint | None:
    """The footprint of a view of known extents; None where it holds no element."""
    offset, *rest = (_known(dim) for dim in (view.offset, *view.dims, *view.strides))
    return footprint_of(offset, rest[: len(view.dims)], rest[len(view.dims) :])


def _known(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def footprint_of(offset: int, extents: Sequence[int], strides: Sequence[int]) -> Footprint | None:
    """The footprint of an offset, extents and strides; None where an extent is 0 (or negative)."""
    axes: list[tuple[int, int]] = []
    repeats = False
    for extent, stride in zip(extents, strides):
        if extent <= 0:
            return None
        if extent == 1:
            continue
        if stride == 0:
            repeats = True
            continue
        if stride < 0:
            offset, stride = offset + (extent - 1) * stride, -stride
        axes.append((extent, stride))
    axes.sort(key=lambda axis: (-axis[1], axis[0]))
    merged: list[tuple[int, int]] = []
    reach = 1  # What the axes so far, from the innermost, cover.
    for extent, stride in reversed(axes):
        if stride < reach:
            repeats = True
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1])
        else:
            merged.append((extent, stride))
        reach += (extent - 1) * stride
    return Footprint(offset, tuple(reversed(merged)), repeats)


# --- boxes ----------------------------------------------------------------------------------------------------------

Box = tuple[tuple[int, int], ...]
"""Per digit of a mixed-radix system: the half-open range of its values."""


def boxes(footprints: Sequence[Footprint], elements: int) -> list[Box] | None:
    """The footprints as boxes in one mixed-radix system for the indices of a buffer; None where there is none."""
    strides = sorted({1} | {stride for item in footprints for _, stride in item.axes})
    if any(high % low for low, high in pairwise(strides)):
        return None
    radices = [high // low for low, high in pairwise(strides)] + [-(-elements // strides[-1])]
    place = {stride: digit for digit, stride in enumerate(strides)}
    out: list[Box] = []
    for item in footprints:
        lows = [item.offset // stride % radix for stride, radix in zip(strides, radices)]
        counts = [1] * len(strides)
        for extent, stride in item.axes:
            digit = place[stride]
            while lows[digit] + extent > radices[digit]:
                # The axis carries into the next digit: fine where it runs through whole periods of this one.
                if lows[digit] or counts[digit] > 1 or extent % radices[digit] or digit + 1 == len(strides):
                    return None
                counts[digit] = radices[digit]
                extent //= radices[digit]
                digit += 1
            if extent > 1:
                if counts[digit] > 1:
                    return None
                counts[digit] = extent
        out.append(tuple((low, low + count) for low, count in zip(lows, counts)))
    return out


def _subtract(box: Box, hole: Box) -> list[Box]:
    """`box` without `hole`, as disjoint boxes."""
    if any(low >= end or start >= high for (low, high), (start, end) in zip(box, hole)):
        return [box]
    pieces: list[Box] = []
    rest = list(box)
    for digit, (start, end) in enumerate(hole):
        low, high = rest[digit]
        if low < start:
            pieces.append((*rest[:digit], (low, start), *rest[digit + 1 :]))
        if end < high:
            pieces.append((*rest[:digit], (end, high), *rest[digit + 1 :]))
        rest[digit] = (max(low, start), min(high, end))
    return pieces


def covers(parts: Sequence[Footprint], wanted: Footprint, elements: int) -> bool | None:
    """Whether the parts together touch every element of `wanted`; None where that cannot be told.

    Parts that repeat elements are taken for what their axes say, which is exact for a stride of 0.
    """
    found = boxes([wanted, *parts], elements)
    if found is None:
        return None
    left = [found[0]]
    for hole in found[1:]:
        left = [piece for box in left for piece in _subtract(box, hole)]
        if not left:
            return True
    return False


def disjoint(a: Footprint, b: Footprint, elements: int) -> bool:
    """Whether two footprints on one buffer surely share no element."""
    if a.end <= b.offset or b.end <= a.offset:
        return True
    found = boxes([a, b], elements)
    return found is not None and any(x[1] <= y[0] or y[1] <= x[0] for x, y in zip(*found))


# --- symbolic views -------------------------------------------------------------------------------------------------


def never_negative(dim: Dim) -> bool:
    """Whether `dim` is surely at least 0, symbols being so."""
    if isinstance(dim, int):
        return dim >= 0
    return all(
        factor >= 0 and all(isinstance(atom, dims.Symbol) or all(map(never_negative, atom.args)) for atom in monomial)
        for monomial, factor in dim.terms
    )


def _run(view: View) -> tuple[Dim, Dim] | None:
    """(first, one past last) of a view that is one dense run in C order for every binding; else None."""
    step: Dim = 1
    for dim, stride in zip(reversed(view.dims), reversed(view.strides)):
        if dim != 1:
            if stride != step:
                return None
            step = step * dim
    return view.offset, view.offset + step


def may_overlap(a: View, b: View) -> bool:
    """Whether two views may share an element under some binding. False is a proof."""
    if a.buffer != b.buffer:
        return False
    if _is_static(a) and _is_static(b):
        one, other = footprint(a), footprint(b)
        if one is None or other is None:
            return False
        return not disjoint(one, other, max(one.end, other.end))
    x, y = _run(a), _run(b)
    if x is None or y is None:
        return True
    return not (never_negative(y[0] - x[1]) or never_negative(x[0] - y[1]))


def _is_static(view: View) -> bool:
    return isinstance(view.offset, int) and all(isinstance(dim, int) for dim in (*view.dims, *view.strides))
