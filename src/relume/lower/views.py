"""Algebra on views: what `transpose`, `broadcast`, `slice` and `reshape` are once memory exists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from relume.base import dims
from relume.base.dims import Dim
from relume.program.types import View, contiguous


def transposed(view: View, perm: Sequence[int]) -> View:
    """Axis i of the result is axis `perm[i]`."""
    return view.seen(
        tuple(view.dims[axis] for axis in perm),
        tuple(view.strides[axis] for axis in perm),
        view.offset,
    )


def broadcast(view: View, shape: Sequence[Dim]) -> View:
    """The view under a larger shape, aligned at the right: stride 0 along what is repeated.

    Whether an extent is 1 may be known at run time only; then the stride is an expression that is 0 where it is.
    """
    missing = len(shape) - len(view.dims)
    strides: list[Dim] = [0] * missing
    for dim, stride, wanted in zip(view.dims, view.strides, shape[missing:]):
        if dim == wanted:
            strides.append(stride)
        elif isinstance(dim, int):
            strides.append(stride if dim != 1 else 0)
        else:
            strides.append(stride * dims.minimum(dim - 1, 1))
    return view.seen(shape, strides, view.offset)


def window(view: View, axis: int, start: Dim, extent: Dim, step: int = 1) -> View:
    """`extent` elements of one axis, from `start` on, every `step`-th."""
    shape, strides = list(view.dims), list(view.strides)
    offset = view.offset + start * strides[axis]
    shape[axis], strides[axis] = extent, strides[axis] * step
    return view.seen(shape, strides, offset)


def split(view: View, axis: int, block: int) -> View:
    """The whole blocks of an axis: [.., C, ..] seen as [.., C // block, .., block], the lanes last."""
    shape, strides = list(view.dims), list(view.strides)
    shape[axis] = dims.floordiv(shape[axis], block)
    strides[axis] = strides[axis] * block
    return view.seen((*shape, block), (*strides, view.strides[axis]), view.offset)


def lane(view: View, axis: int, index: Dim) -> View:
    """One place of an axis, which disappears."""
    offset = view.offset + index * view.strides[axis]
    shape = view.dims[:axis] + view.dims[axis + 1 :]
    return view.seen(shape, view.strides[:axis] + view.strides[axis + 1 :], offset)


def dense(view: View, axes: int | None = None) -> bool:
    """Whether the last `axes` axes (all, if not given) are in C order without gaps; extents of 1 play no part."""
    count = len(view.dims) if axes is None else axes
    shape, strides = view.dims[len(view.dims) - count :], view.strides[len(view.dims) - count :]
    return all(dim == 1 or have == want for dim, have, want in zip(shape, strides, contiguous(shape)))


def reshaped(view: View, shape: Sequence[Dim]) -> View | None:
    """The view under another shape of as many elements, in C order; None where that needs a copy.

    Both shapes are cut where the products of the extents before the cut agree; between two cuts the old axes must
    form one run.
    """
    if dense(view) or 0 in view.dims:
        return view.seen(shape, contiguous(shape), view.offset)
    old = [(dim, stride) for dim, stride in zip(view.dims, view.strides) if dim != 1]
    new = [axis for axis, dim in enumerate(shape) if dim != 1]
    strides: list[Dim] = [1] * len(shape)
    begin, first = 0, 0
    for end, last in _cuts([dim for dim, _ in old], [shape[axis] for axis in new]):
        run, step = old[begin:end], old[end - 1][1] if end > begin else 1
        if any(stride != dim * inner for (_, stride), (dim, inner) in pairwise(run)):
            return None
        for axis in reversed(new[first:last]):
            strides[axis] = step
            step = step * shape[axis]
        begin, first = end, last
    if begin < len(old) or first < len(new):
        return None
    return view.seen(shape, strides, view.offset)


def _cuts(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[int, int]]:
    """Pairs (i, j), ascending, with product(old[:i]) == product(new[:j]) and both i, j larger than before."""
    ends = {dims.product(new[:count]): count for count in range(1, len(new) + 1)}
    cuts: list[tuple[int, int]] = []
    total: Dim = 1
    for count, dim in enumerate(old, 1):
        total = total * dim
        at = ends.get(total)
        if at is not None and (not cuts or at > cuts[-1][1]):
            cuts.append((count, at))
    return cuts
