"""Footprints against sets of indices, element by element."""

from __future__ import annotations

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from relume.base import dims, dtypes
from relume.program.footprint import covers, disjoint, footprint_of, may_overlap
from relume.program.types import Buffer, Space, View, contiguous

ELEMENTS = 24
Touched = tuple[int, list[int], list[int]]


def places(view: Touched) -> list[int]:
    offset, extents, strides = view
    return [
        offset + sum(i * stride for i, stride in zip(index, strides))
        for index in itertools.product(*(range(extent) for extent in extents))
    ]


@st.composite
def any_views(draw: st.DrawFn) -> Touched:
    rank = draw(st.integers(0, 3))
    extents = draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(-6, 12), min_size=rank, max_size=rank))
    return draw(st.integers(0, ELEMENTS - 1)), extents, strides


@st.composite
def boxes(draw: st.DrawFn) -> Touched:
    """A box of a grid that a buffer of 24 elements has, which is how views of real programs look."""
    shape = draw(st.sampled_from(([24], [2, 12], [4, 6], [2, 3, 4], [3, 8], [2, 2, 6])))
    lows = [draw(st.integers(0, extent - 1)) for extent in shape]
    extents = [draw(st.integers(1, extent - low)) for low, extent in zip(lows, shape)]
    strides = [int(stride) for stride in contiguous(shape)]  # type: ignore[arg-type]
    return sum(low * stride for low, stride in zip(lows, strides)), extents, strides


@given(any_views())
def test_range_filling_and_repeats(view: Touched) -> None:
    touched, found = places(view), footprint_of(*view)
    assert (found is None) == (not touched)
    if found is not None:
        assert (found.offset, found.end) == (min(touched), max(touched) + 1)
        assert found.repeats or len(set(touched)) == len(touched)
        assume(not found.repeats)
        assert found.fills(ELEMENTS) == (set(touched) == set(range(ELEMENTS)))


@given(st.lists(st.one_of(boxes(), any_views()), max_size=5), boxes())
def test_coverage_is_exact_where_it_is_told(parts: list[Touched], wanted: Touched) -> None:
    inside = [part for part in parts if all(0 <= place < ELEMENTS for place in places(part))]
    written = set(itertools.chain.from_iterable(map(places, inside)))
    found = [item for part in inside if (item := footprint_of(*part)) is not None]
    goal = footprint_of(*wanted)
    assert goal is not None
    answer = covers(found, goal, ELEMENTS)
    assert answer is None or answer == (set(places(wanted)) <= written)


@given(st.lists(boxes(), min_size=1, max_size=4), st.data())
def test_coverage_is_told_for_boxes_of_one_grid(parts: list[Touched], data: st.DataObject) -> None:
    strides = parts[0][2]
    parts = [part for part in parts if part[2] == strides]
    found = [footprint_of(*part) for part in parts]
    assert covers([item for item in found if item], found[0], ELEMENTS) is True  # type: ignore[arg-type]


@given(boxes(), boxes())
def test_what_is_called_disjoint_is_disjoint(a: Touched, b: Touched) -> None:
    x, y = footprint_of(*a), footprint_of(*b)
    assert x is not None and y is not None
    if disjoint(x, y, ELEMENTS):
        assert not set(places(a)) & set(places(b))
    elif a[2] == b[2]:  # One grid: then the answer is exact.
        assert set(places(a)) & set(places(b))


def test_symbolic_runs_one_after_the_other_do_not_overlap() -> None:
    n = dims.symbol("N")
    buffer = Buffer("b", Space.ARENA, dtypes.f32, 8 * n)

    def part(offset: dims.Dim, rows: dims.Dim) -> View:
        return View(buffer, (rows, 4), (4, 1), offset)

    assert not may_overlap(part(0, n), part(4 * n, n))
    assert not may_overlap(part(4 * n + 8, n), part(0, n + 2))
    assert may_overlap(part(0, n + 1), part(4 * n, n))
    assert may_overlap(part(0, n), View(buffer, (n,), (8,), 4))
