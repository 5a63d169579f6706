"""Depthwise convolution on blocked channels: each channel has its own kernel, so 16 channels are 16 lanes.

y[n, b, oh, ow, c] = sum over (kh, kw) of x[n, b, oh*sh + kh*dh, ow*sw + kw*dw, c] * w[b, kh, kw, c]

One chain of fused multiply-adds from 0 per element, ascending in (kh, kw). Tasks are those of `conv`. A tile is a run
of pixels of one row by as many channels as fill a register; a pixel of the input is read once for each kernel row,
since loads, and not FMAs, would bound a tile that reads it for each tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from relume.base import dims
from relume.base.dims import Dim
from relume.base.targets import BLOCK, Target
from relume.kernels.conv import STRAIGHT_TAPS, Blocked, Tile, check, tasks
from relume.kernels.epilogue import reuse
from relume.kernels.ir import Int, Reg, vector
from relume.kernels.microkernel import Moved, Place, prefetch, split
from relume.kernels.tiles import vectors_per_block
from relume.program.types import ConstReader, KernelDef, KernelSpec, Reuse

KEPT_COLUMNS = 6
"""Weights of one kernel row that stay in registers; longer rows read them at each use."""
SPARE = 3
"""Registers for an input pixel, a zero, and what the epilogue needs."""
MOST_PIXELS = 16


class _Depthwise(Blocked):
    def __init__(self, spec: KernelSpec, target: Target, symbol: str) -> None:
        check(spec, 4)
        kept = min(cast(int, spec.operands[1].dims[2]), KEPT_COLUMNS)
        limit = min(MOST_PIXELS, target.registers - SPARE - kept)
        super().__init__(spec, target, symbol, vectors_per_block(target, spec.operands[0].dtype), limit)

    def input_offset(self, n: Int, block: Int) -> Int:
        return self.f.total([(n, self.x_strides[0]), (block, self.x_strides[1])])

    def accumulate(self, tile: Tile) -> list[Reg]:
        """The sums over the kernel, one register of channels."""
        f = self.f
        sums: list[Reg] = [f.zero(vector(self.type, tile.lanes))] * tile.width
        down = f.mul(self.dilations[0], self.x_strides[2])
        loops_rows = self.kernel_height * self.kernel_width > STRAIGHT_TAPS
        straight = 1 if loops_rows else self.kernel_height
        with f.loop(0, self.kernel_height, straight, carry=sums) as row:
            xs = Moved(f, f.mul(row.i, down), self.size)
            ws = Moved(f, f.mul(row.i, self.w_strides[1]), self.size)
            sums = row.carried
            for kernel_row in range(straight):
                line = split(f, (tile.x, 0), f.mul(kernel_row, down), self.size)
                weights = split(f, (tile.w, 0), f.mul(kernel_row, self.w_strides[1]), self.size)
                sums = self._row(xs, ws, line, weights, sums)
            row.next = sums
        if tile.part == 0:
            self._prefetch(tile)
        return row.results

    def _prefetch(self, tile: Tile) -> None:
        """Asks for the input rows under the next row of the output that are not under this one."""
        f = self.f
        below = f.add(f.mul(self.kernel_height - 1, self.dilations[0]), 1)
        for row in range(self.strides[0]):
            line = split(f, (tile.x, 0), f.mul(f.add(below, row), self.x_strides[2]), self.size)
            for column in range(tile.width * self.strides[1]):
                place, known = split(f, line, f.mul(column, self.x_strides[3]), self.size)
                prefetch(f, f.address(place, known, self.size))

    def _row(self, xs: Moved, ws: Moved, line: Place, weights: Place, sums: Sequence[Reg]) -> list[Reg]:
        """One kernel row. Each pixel of the input row is read once, for all pixels of the tile that it is under."""
        f, out = self.f, list(sums)

        def weight(column: int) -> Reg:
            place = split(f, weights, f.mul(column, self.w_strides[2]), self.size)
            return f.load(out[0].type, ws.at(place), self.size)

        under: dict[int, list[tuple[int, int]]] = {}
        for number in range(len(out)):
            for column in range(self.kernel_width):
                under.setdefault(number * self.strides[1] + column * self.dilations[1], []).append((number, column))
        kept = [weight(column) for column in range(self.kernel_width)] if self.kernel_width <= KEPT_COLUMNS else None
        for position, pairs in sorted(under.items()):  # Ascending for every pixel of the tile.
            f.barrier()
            place = split(f, line, f.mul(position, self.x_strides[3]), self.size)
            x = f.load(out[0].type, xs.at(place), self.size)
            for number, column in pairs:
                out[number] = f.fma(x, kept[column] if kept else weight(column), out[number])
        return out


def _emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    depthwise = _Depthwise(spec, target, symbol)
    return depthwise.emit(depthwise.accumulate, depthwise.kernel_height * depthwise.kernel_width * BLOCK)


def _work(spec: KernelSpec) -> Dim:
    _, kernel_height, kernel_width, _ = spec.operands[1].dims
    return dims.product(spec.operands[-1].dims) * kernel_height * kernel_width * 2


def _may_reuse(spec: KernelSpec) -> Reuse:
    return reuse(spec, 2)


DEPTHWISE_BLOCKED = KernelDef(
    name="depthwise_blocked",
    doc="depthwise convolution of [N,CB,H,W,16], with halo, by [CB,KH,KW,16]; params strides, dilations, body, outs",
    emit=_emit,
    tasks=tasks,
    work=_work,
    may_reuse=_may_reuse,
)
