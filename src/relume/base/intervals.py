"""Planning one piece of memory for many buffers whose lifetimes are known.

A buffer is live from instruction `first` to instruction `last`, both included. Two buffers that are live at once must
not share a byte. Finding the smallest arena is NP-hard (dynamic storage allocation); placing the buffers one by one at
the lowest free offset comes close, and how close depends on the order: several are tried, the best one wins. From each
order others are made: what sticks out at the top is placed first the next time.
The orders "by size" and "by size x lifetime" are those of Pisarchyk and Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020 (arXiv:2001.03288).

Pure Python on ints: the runtime plans with it too, when it first meets a shape.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

TRIES = 2000
"""Buffers to place again, at most and for each order, where the lower bound is not met: some milliseconds."""


def plan(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], align: int = 64) -> tuple[list[int], int]:
    """Byte offsets, and the bytes needed in all.

    `sizes` are in bytes and may be 0 (such a buffer sits at 0 and conflicts with nothing). Offsets are multiples of
    `align`, and so is the total. Deterministic: ties go to the lower index. The result is at most the best of the
    tried orders; where one of them meets the lower bound, no further one is tried.
    """
    rounded = [-(-size // align) * align for size in sizes]
    spans = [after - before + 1 for before, after in zip(first, last)]
    wanted = [index for index, size in enumerate(rounded) if size]
    bound = lower_bound(rounded, first, last)
    orders = (
        lambda i: (-rounded[i], -spans[i], i),
        lambda i: (-rounded[i] * spans[i], i),
        lambda i: (first[i], -rounded[i], i),
    )
    best: list[int] = [0] * len(rounded)
    least = -1
    for key in orders:
        order = sorted(wanted, key=key)
        for _ in range(1 + TRIES // (len(wanted) + 1)):
            offsets, total = _place(order, rounded, first, last)
            if least < 0 or total < least:
                best, least = offsets, total
            if least == bound:
                return best, least
            out = max(order, key=lambda index: offsets[index] + rounded[index])
            order.remove(out)
            order.insert(0, out)
    return best, least


def _place(
    order: Sequence[int], sizes: Sequence[int], first: Sequence[int], last: Sequence[int]
) -> tuple[list[int], int]:
    """Puts the buffers one after the other at the lowest offset that is free for their whole lifetime."""
    offsets = [0] * len(sizes)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    total = 0
    for index in order:
        size, begin, end = sizes[index], first[index], last[index]
        at = 0
        for low, high, one, other in placed:
            if one <= end and begin <= other and high > at:
                if low - at >= size:
                    break
                at = high
        offsets[index] = at
        insort(placed, (at, at + size, begin, end))
        total = max(total, at + size)
    return offsets, total


def lower_bound(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> int:
    """The largest sum of the sizes of buffers that are live at once: no plan can need less."""
    changes = [(begin, size) for begin, size in zip(first, sizes)] + [
        (end + 1, -size) for end, size in zip(last, sizes)
    ]
    live = most = 0
    for _, change in sorted(changes):  # At one position what ends comes before what begins.
        live += change
        most = max(most, live)
    return most


def overlaps(
    offsets: Sequence[int], sizes: Sequence[int], first: Sequence[int], last: Sequence[int]
) -> list[tuple[int, int]]:
    """Every pair (i, j), i < j, that shares a byte while both are live. Sorted. Independent of how `plan` works."""
    by_offset = sorted((index for index, size in enumerate(sizes) if size > 0), key=lambda i: (offsets[i], i))
    open_: list[int] = []  # those that reach beyond the offset at hand
    pairs: list[tuple[int, int]] = []
    for index in by_offset:
        low, begin, end = offsets[index], first[index], last[index]
        open_ = [other for other in open_ if offsets[other] + sizes[other] > low]
        pairs.extend(
            (min(index, other), max(index, other)) for other in open_ if first[other] <= end and begin <= last[other]
        )
        open_.append(index)
    return sorted(pairs)
