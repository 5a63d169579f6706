"""How an axis, or a plane of pixels, is cut into register tiles.

Tasks are cut by the spec alone, tiles inside a task by the target too: so the number of tasks is the same for every
target, and neither can change a result's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.targets import BLOCK, Target


@dataclass(frozen=True)
class Segment:
    """The stretch start..stop-1 of an axis, cut into tiles of one `size`."""

    size: int
    start: Dim
    stop: Dim


@dataclass(frozen=True)
class Strip:
    """Columns of a plane that share one tile width, with the tile heights down its rows."""

    columns: Segment
    rows: tuple[Segment, ...]


def vectors_per_block(target: Target, dtype: DType) -> int:
    """Registers that 16 lanes of `dtype` take."""
    return max(1, BLOCK * dtype.bytes * 8 // target.vector_bits)


def accumulators(target: Target) -> int:
    """Registers for accumulators; what is left holds the two factors. 12 of 16, 28 of 32."""
    return target.registers - 4


def balanced(extent: int, limit: int, start: int = 0) -> tuple[Segment, ...]:
    """`extent` in the fewest tiles of at most `limit`, of sizes that differ by at most one: 13+13+12, not 14+14+10."""
    if extent == 0:
        return ()
    count = -(-extent // limit)
    size, larger = divmod(extent, count)
    middle, stop = start + larger * (size + 1), start + extent
    head = (Segment(size + 1, start, middle),) if larger else ()
    return (*head, Segment(size, middle, stop))


def family(extent: Dim, full: int) -> tuple[Segment, ...]:
    """An extent known at run time: full tiles, and then at most one of each smaller power of two."""
    stop = dims.floordiv(extent, full) * full
    out = [Segment(full, 0, stop)]
    size = 1 << (full - 1).bit_length() - 1 if full > 1 else 0
    while size:
        rest = dims.floordiv(extent - stop, size) * size
        out.append(Segment(size, stop, stop + rest))
        stop, size = stop + rest, size // 2
    return tuple(out)


def segments(extent: Dim, limit: int, group: int) -> tuple[Segment, ...]:
    """Tiles of at most `limit` that never straddle a multiple of `group`, where tasks are cut."""
    full = max(size for size in range(1, min(limit, group) + 1) if group % size == 0)
    if not isinstance(extent, int):
        return family(extent, full)
    whole = extent // group * group
    head = (Segment(full, 0, whole),) if whole else ()
    return (*head, *balanced(extent - whole, limit, whole))


def plane(height: Dim, width: Dim, limit: int, vectors: int, flat: bool) -> tuple[Strip, ...]:
    """Tiles of at most `limit` pixels for a plane.

    Tiles are one row high, unless `flat` is false and a small static plane wastes less time in higher ones: 7x7 is
    7 tiles of 1x6 and 2 of 4x1 and 3x1, and not 7 of 1x4 and 7 of 1x3, which cannot hide the latency of FMA.
    """
    one_row = (Segment(1, 0, height),)
    if not isinstance(width, int):
        return tuple(Strip(columns, one_row) for columns in family(width, limit))
    simple = tuple(Strip(columns, one_row) for columns in balanced(width, limit))
    if flat or not isinstance(height, int):
        return simple
    candidates = [simple]
    for size in range(1, min(limit, width) + 1):
        whole = width // size * size
        columns = [Segment(size, 0, whole)]
        if whole < width:
            columns.append(Segment(width - whole, whole, width))
        candidates.append(tuple(Strip(part, balanced(height, limit // part.size)) for part in columns))
    return min(candidates, key=lambda strips: _cycles(strips, vectors))


def tiles(strips: Sequence[Strip], height: Dim, group: int) -> int | None:
    """Tiles in (at most) `group` rows of a plane of `height`; None where an extent is not known."""
    total = 0
    for strip in strips:
        start, stop = strip.columns.start, strip.columns.stop
        if not (isinstance(height, int) and isinstance(start, int) and isinstance(stop, int)):
            return None
        across = (stop - start) // strip.columns.size
        for rows in strip.rows:
            assert isinstance(rows.start, int) and isinstance(rows.stop, int)
            total += min(rows.stop - rows.start, group) // rows.size * across
    return total


def _cycles(strips: tuple[Strip, ...], vectors: int) -> float:
    """Estimated cycles per step of the reduction: two FMAs a cycle, four cycles of latency, some loss per tile."""
    total = 0.0
    for strip in strips:
        for rows in strip.rows:
            assert isinstance(strip.columns.stop, int) and isinstance(rows.stop, int)
            assert isinstance(strip.columns.start, int) and isinstance(rows.start, int)
            across = (strip.columns.stop - strip.columns.start) // strip.columns.size
            down = (rows.stop - rows.start) // rows.size
            total += across * down * (max(4.0, strip.columns.size * rows.size * vectors / 2) + 0.25)
    return total
