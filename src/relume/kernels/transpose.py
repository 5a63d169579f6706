"""The copies of `map` whose source is contiguous along one axis and whose result along another, tile by tile.

A tile reads whole cache lines of the source and writes streams of the result side by side. Four-byte elements are
transposed in registers, 8 by 8, by three rounds of shuffles: pairs, pairs of pairs, halves. The borders, and other
element sizes, go element by element in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from relume.kernels.ir import Int, Kernel, Reg, vector
from relume.kernels.nest import Axis, Tasks, advance, axes_of, estimate, is_empty, merged, polled
from relume.program.types import KernelSpec

TILE = 8


@dataclass(frozen=True)
class Plan:
    """The tasks' innermost axis is the one along which the source is contiguous; all of `across`, along which the
    result is contiguous, is copied for each piece of it."""

    tasks: Tasks
    across: Axis
    line: int
    """Elements of a cache line, at most 16."""


def plan(spec: KernelSpec) -> Plan | None:
    """The tiling of a call, or None where it is not such a copy."""
    if spec["body"] or len(spec.operands) != 2 or any(extent == 0 for extent in spec.operands[0].dims):
        return None
    axes = merged(axes_of(spec.operands))
    along = [n for n, axis in enumerate(axes) if axis.strides[0] == 1]
    across = [n for n, axis in enumerate(axes) if axis.strides[1] == 1]
    if not along or not across or along[-1] in across or axes[across[-1]].strides[0] == 0:
        return None
    a, b = along[-1], across[-1]
    line = min(64 // spec.operands[0].dtype.bytes, 16)
    outer = [axis for n, axis in enumerate(axes) if n not in (a, b)]
    return Plan(Tasks.of([*outer, axes[a]], estimate([axes[b].extent]), line), axes[b], line)


def emit(spec: KernelSpec, plan: Plan, symbol: str) -> str:
    """The kernel of a tiled copy."""
    f = Kernel(symbol, spec.extents)
    size = spec.operands[0].dtype.bytes
    width, line = f.dim(plan.across.extent, f.extents), plan.line

    def elements(at: list[Reg], rows: tuple[Int, Int], columns: tuple[Int, Int], count: int) -> None:
        """`count` rows at a time, column by column."""
        if is_empty(*rows) or is_empty(*columns):
            return
        with f.loop(*rows, count) as i, polled(f, *columns, count) as j:
            for n in range(count):
                source, result = _at(f, plan, at, size, f.add(i.i, n), j.i)
                f.store(f.load(f"i{size * 8}", source, size), result, size)

    def leaf(at: list[Reg], indices: list[Int], low: Int, high: Int) -> None:
        middle = f.sub(high, f.rem(f.sub(high, low), line))
        right: Int = f.sub(width, f.rem(width, TILE)) if size == 4 else 0
        if not (is_empty(low, middle) or is_empty(0, right)):
            with f.loop(low, middle, line) as i, polled(f, 0, right, line, TILE) as j:
                for n in range(0, line, TILE):
                    _tile(f, plan, _at(f, plan, at, size, f.add(i.i, n), j.i))
        elements(at, (low, middle), (right, width), line)
        elements(at, (middle, high), (0, width), 1)

    plan.tasks.emit(f, [f.operand(0), f.operand(1)], [size, size], leaf)
    return f.finish()


def _at(f: Kernel, plan: Plan, at: list[Reg], size: int, i: Int, j: Int) -> list[Reg]:
    """Source and result at `i` along and `j` across."""
    return advance(f, advance(f, at, [size, size], plan.tasks.axes[-1], i), [size, size], plan.across, j)


def _tile(f: Kernel, plan: Plan, corner: list[Reg]) -> None:
    source, result = corner
    wide = vector("float", TILE)
    stride = f.dim(plan.across.strides[0], f.extents)
    result_stride = f.dim(plan.tasks.axes[-1].strides[1], f.extents)
    rows = [f.load(wide, f.address(source, f.mul(n, stride), 4), 4) for n in range(TILE)]
    for n, row in enumerate(_transposed(f, rows)):
        f.store(row, f.address(result, f.mul(n, result_stride), 4), 4)


def _transposed(f: Kernel, rows: list[Reg]) -> list[Reg]:
    pairs: list[Reg] = []
    for n in range(0, TILE, 2):
        a, b = rows[n], rows[n + 1]
        pairs += [f.shuffle(a, b, (0, 8, 1, 9, 4, 12, 5, 13)), f.shuffle(a, b, (2, 10, 3, 11, 6, 14, 7, 15))]
    quads: list[Reg] = []
    for n in (0, 4):
        for a, b in ((pairs[n], pairs[n + 2]), (pairs[n + 1], pairs[n + 3])):
            quads += [f.shuffle(a, b, (0, 1, 8, 9, 4, 5, 12, 13)), f.shuffle(a, b, (2, 3, 10, 11, 6, 7, 14, 15))]
    low = [f.shuffle(quads[n], quads[n + 4], (0, 1, 2, 3, 8, 9, 10, 11)) for n in range(4)]
    return low + [f.shuffle(quads[n], quads[n + 4], (4, 5, 6, 7, 12, 13, 14, 15)) for n in range(4)]
