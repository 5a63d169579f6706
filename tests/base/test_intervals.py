"""The memory planner never overlaps what is live at once, and never beats the lower bound."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.base.intervals import lower_bound, overlaps, plan

Buffers = tuple[list[int], list[int], list[int]]


@st.composite
def buffers(draw: st.DrawFn) -> Buffers:
    count = draw(st.integers(0, 40))
    sizes = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    first = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    last = [begin + draw(st.integers(0, 10)) for begin in first]
    return sizes, first, last


def live_at_once(first: list[int], last: list[int], i: int, j: int) -> bool:
    return first[i] <= last[j] and first[j] <= last[i]


@given(buffers(), st.sampled_from((1, 8, 64)))
def test_what_is_live_at_once_shares_no_byte(given_: Buffers, align: int) -> None:
    sizes, first, last = given_
    offsets, total = plan(sizes, first, last, align)
    assert all(offset % align == 0 for offset in offsets)
    assert all(offset + size <= total for offset, size in zip(offsets, sizes))
    for j in range(len(sizes)):
        for i in range(j):
            if live_at_once(first, last, i, j) and sizes[i] and sizes[j]:
                assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]


@given(buffers(), st.sampled_from((1, 64)))
def test_the_total_lies_between_the_lower_bound_and_no_sharing(given_: Buffers, align: int) -> None:
    sizes, first, last = given_
    rounded = [-(-size // align) * align for size in sizes]
    _, total = plan(sizes, first, last, align)
    assert lower_bound(rounded, first, last) <= total <= sum(rounded)


@given(buffers())
def test_the_lower_bound_is_the_largest_live_sum(given_: Buffers) -> None:
    sizes, first, last = given_
    sums = [sum(s for s, a, b in zip(sizes, first, last) if a <= at <= b) for at in range(32)]
    assert lower_bound(sizes, first, last) == max(sums)


@given(buffers(), st.randoms(use_true_random=False))
def test_overlaps_finds_every_pair(given_: Buffers, dice: object) -> None:
    sizes, first, last = given_
    offsets = [dice.randrange(2000) for _ in sizes]  # type: ignore[attr-defined]
    expected = [
        (i, j)
        for j in range(len(sizes))
        for i in range(j)
        if sizes[i] and sizes[j] and live_at_once(first, last, i, j)
        and offsets[i] < offsets[j] + sizes[j] and offsets[j] < offsets[i] + sizes[i]
    ]  # fmt: skip
    assert overlaps(offsets, sizes, first, last) == sorted(expected)


def test_a_chain_needs_two_buffers_at_a_time() -> None:
    _, total = plan([64] * 10, list(range(10)), list(range(1, 11)))
    assert total == 128


def test_what_is_not_live_together_shares() -> None:
    assert plan([100, 200], [0, 2], [1, 3]) == ([0, 0], 256)


def test_empty_buffers_and_no_buffers() -> None:
    assert plan([], [], []) == ([], 0)
    assert plan([0, 64, 0], [0, 0, 0], [5, 5, 5]) == ([0, 0, 0], 64)
    assert lower_bound([], [], []) == 0


def test_another_order_wins_where_the_first_is_worse() -> None:
    # By size alone this needs 12.
    assert plan([4, 4, 2, 5, 3], [0, 2, 0, 3, 0], [1, 4, 1, 3, 2], 1)[1] == 9


@pytest.mark.parametrize("lifetime", [1, 5, 400])
def test_a_thousand_buffers_are_planned_quickly(lifetime: int) -> None:
    first = [(index * 7919) % 1000 for index in range(1000)]
    last = [begin + index % lifetime for index, begin in enumerate(first)]
    sizes = [1 + (index * 104729) % 1_000_000 for index in range(1000)]
    begin = time.perf_counter()
    offsets, total = plan(sizes, first, last)
    assert time.perf_counter() - begin < 1, "tens of milliseconds on a quiet machine"
    assert overlaps(offsets, sizes, first, last) == []
    assert total <= 1.1 * lower_bound([-(-size // 64) * 64 for size in sizes], first, last)


def test_what_sticks_out_is_placed_first_the_next_time() -> None:
    # The large buffers of a pitch tracker, in KB: by size, by area and by time alone none of them fits the bound.
    sizes, first, last = [2048, 1024, 1024, 1528, 1528], [2, 3, 4, 5, 7], [3, 4, 6, 7, 8]
    sizes = [size << 10 for size in sizes]
    offsets, total = plan(sizes, first, last)
    assert total == lower_bound(sizes, first, last) == 3072 << 10
    assert not overlaps(offsets, sizes, first, last)
