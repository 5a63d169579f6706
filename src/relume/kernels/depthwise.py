"""Depthwise convolution on blocked channels: each channel has its own kernel, so 16 channels are 16 lanes.

y[n, b, oh, ow, c] = sum over (kh, kw) of x[n, b, oh*sh + kh*dh, ow*sw + kw*dw, c] * w[b, kh, kw, c]

One chain of fused multiply-adds from 0 per element, ascending in (kh, kw). Tasks and tiles are those of `conv`.
"""

from __future__ import annotations

from relume.base import dims
from relume.base.dims import Dim
from relume.base.targets import BLOCK, Target
from relume.kernels.conv import STRAIGHT_TAPS, Blocked, Tile, check, tasks
from relume.kernels.epilogue import reuse
from relume.kernels.ir import Int, Reg
from relume.kernels.microkernel import Moved
from relume.program.types import ConstReader, KernelDef, KernelSpec, Reuse


class _Depthwise(Blocked):
    def __init__(self, spec: KernelSpec, target: Target, symbol: str) -> None:
        check(spec, 4)
        super().__init__(spec, target, symbol)

    def input_offset(self, n: Int, block: Int) -> Int:
        return self.f.total([(n, self.x_strides[0]), (block, self.x_strides[1])])

    def accumulate(self, tile: Tile) -> list[Reg]:
        """The sums over the kernel."""
        f = self.f
        sums: list[Reg] = [f.zero(self.wide)] * (tile.height * tile.width)
        down = f.mul(self.dilations[0], self.x_strides[2])
        loops_rows = self.kernel_height * self.kernel_width > STRAIGHT_TAPS
        places = [self.places(tile, row) for row in range(1 if loops_rows else self.kernel_height)]
        with f.loop(0, self.kernel_height if loops_rows else 1, carry=sums) as row:
            xs = Moved(f, f.mul(row.i, down), self.size)
            ws = Moved(f, f.mul(row.i, self.w_strides[1]), self.size)
            out = list(row.carried)
            for kernel_row, columns in enumerate(places):
                for kernel_column, pixels in enumerate(columns):
                    f.barrier()
                    at = f.total([(kernel_row, self.w_strides[1]), (kernel_column, self.w_strides[2])])
                    factor = f.load(self.wide, ws.at((tile.w, 0), at), self.size)
                    for number, place in enumerate(pixels):
                        out[number] = f.fma(f.load(self.wide, xs.at(place), self.size), factor, out[number])
            row.next = out
        return row.results


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
