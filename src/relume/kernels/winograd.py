"""Convolution by a 3x3 window of stride 1 with fewer products: Winograd's F(4x4, 3x3) and F(2x2, 3x3).

y = A^T [sum over c of (B^T x B) * u[c]] A for each tile of m by m pixels, where x is what lies under it, m + 2 by m + 2
inputs, and u = G w G^T comes transformed already (`ops.winograd_weights`). The products take 36 multiplications for 16
pixels, or 16 for 4, in place of 144 and 36. (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.)

A task is a group of tiles by a group of blocks of output channels. What it keeps between its three steps lies in
the memory of its thread and stays in the second-level cache:

    inputs[position][tile][channel]  <- B^T x B                                16 channels at a time
    sums[block][position][tile][16]  <- inputs[position] by u[.., position]    a product of matrices per position
    y                                <- A^T sums A, and the epilogue           16 channels at a time

The inputs of a group are transformed once for all tasks of a call that share it. Bits depend on nothing but x and u:
tiles are anchored at the corner of the image, a product ascends in c with fma from 0, and both transforms are one fixed
order of operations on each lane. The halo is part of x, and so is what the last tiles need to be whole: x has at least
m * ceil(OH / m) + 2 rows, and columns likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels.conv import check
from relume.kernels.epilogue import Epilogue, reuse
from relume.kernels.ir import Int, Kernel, Reg, llvm_type, vector
from relume.kernels.microkernel import Product, prefetch, split, tile_loop, unravel
from relume.kernels.tiles import accumulators, balanced, segments, vectors_per_block
from relume.program.types import ConstReader, KernelDef, KernelSpec, Reuse

INPUT_BYTES = 256 * 1024
"""Transformed inputs of one task, about: half a second-level cache."""
MOST_BYTES = 512 * 1024
"""Transformed inputs of one task at most: a second-level cache."""
UNIT = 12
"""Tiles of one task come in multiples of it, so that rows of products do: 6 on AVX2, 12 on AVX-512. Of very many
channels half of it must do."""
MOST_TILES = 48
BLOCKS = 2
"""Blocks of output channels of one task."""
MOST_PANELS = 2
"""Blocks of output channels that are multiplied at once."""
UNROLL = 4
PREFETCH_FROM = 256 * 1024
PREFETCH_AHEAD = 4096
GAP = 64
"""Bytes after each position: planes at a distance of a power of two would share the same lines of a cache."""


Transform = Callable[[Kernel, Sequence[Reg]], list[Reg]]
"""Of one row or column."""

Rows = tuple[int, Int, Int]
"""Rows of products: how many at once, and the first and the end of them."""


@dataclass(frozen=True)
class Plan:
    """How the tiles of all images become tasks. Known from the spec alone, and the same for every target."""

    tile: int
    """Pixels on a side, m."""
    down: Dim
    across: Dim
    """Tiles of one image."""
    tiles: Dim
    """Of all images."""
    group: int
    """Tiles of one task."""
    blocks: int
    """Blocks of output channels."""

    @staticmethod
    def of(spec: KernelSpec) -> Plan:
        """Raises `CompileError` for weights of no such transform, or more channels than fit a task."""
        u, y = spec.operands[1], spec.operands[-1]
        tile = spec["tile"]
        if not isinstance(tile, int) or tile not in _INPUT:
            raise CompileError(f"{spec.kernel}: there is no transform for such tiles", expected="4 or 2", got=tile)
        blocks, positions, channels, _ = u.dims
        if positions != (tile + 2) ** 2 or not isinstance(channels, int) or not isinstance(blocks, int):
            raise CompileError(f"{spec.kernel}: the weights have one position per input of a tile", got=str(u))
        down, across = (dims.ceildiv(extent, tile) for extent in y.dims[2:4])
        tiles = y.dims[0] * down * across
        bytes_ = (tile + 2) ** 2 * -(-channels // BLOCK) * BLOCK * u.dtype.bytes
        least = UNIT if bytes_ * UNIT <= MOST_BYTES else UNIT // 2
        if bytes_ * least > MOST_BYTES:
            raise CompileError(f"{spec.kernel}: too many input channels", got=channels, hint="use conv_blocked")
        group = max(least, min(MOST_TILES, INPUT_BYTES // bytes_) // UNIT * UNIT)
        if isinstance(tiles, int) and tiles:
            groups = -(-tiles // group)
            group = -(-tiles // groups)
        return Plan(tile, down, across, tiles, group, blocks)

    @property
    def groups(self) -> Dim:
        return dims.ceildiv(self.tiles, self.group)

    @property
    def parts(self) -> int:
        """Groups of blocks."""
        return -(-self.blocks // BLOCKS)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tiles a group may have; empty where that is not known."""
        if not isinstance(self.tiles, int):
            return ()
        rest = self.tiles % self.group if self.group else 0
        return (self.group, rest) if rest and self.tiles > self.group else (self.group,)


class _Winograd:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, target: Target, symbol: str) -> None:
        check(spec, 4)
        self.plan = plan = Plan.of(spec)
        self.f = f = Kernel(symbol, spec.extents)
        x, u, y = spec.operands[0], spec.operands[1], spec.operands[-1]
        self.size, self.type = x.dtype.bytes, llvm_type(x.dtype)
        self.lanes = min(BLOCK, target.vector_bits // (8 * self.size))
        self.part, self.wide = vector(self.type, self.lanes), vector(self.type, BLOCK)
        self.x, self.u = f.operand(0), f.operand(1)
        self.x_strides = [f.dim(stride, f.extents) for stride in x.strides]
        self.u_strides = [f.dim(stride, f.extents) for stride in u.strides]
        self.channels = spec["channels"]
        if not isinstance(self.channels, int) or self.channels != u.dims[2]:
            raise CompileError(f"{spec.kernel}: the weights have all channels", expected=self.channels, got=u.dims[2])
        self.epilogue = Epilogue.of(f, spec, 2)
        if not self.epilogue.vectorises:
            raise CompileError(f"{spec.kernel}: extras and outputs have neighbouring channels", got=str(spec))
        self.extents = [f.dim(extent, f.extents) for extent in y.dims[2:4]]
        self.down, self.across, self.tiles = (f.dim(d, f.extents) for d in (plan.down, plan.across, plan.tiles))

        budget = accumulators(target) // vectors_per_block(target, x.dtype)
        self.panels = MOST_PANELS if budget >= MOST_PANELS * UNIT else 1
        self.rows = min(UNIT, budget // self.panels, plan.group)
        self.side = plan.tile + 2
        self.input_blocks = -(-self.channels // BLOCK)
        # A run-time number of tiles is rounded up to whole rows of products: room for them, which nobody looks at.
        room = plan.group if plan.counts else -(-plan.group // self.rows) * self.rows
        gap = GAP // self.size
        self.inputs_pitch = room * self.input_blocks * BLOCK + gap
        self.sums_pitch = room * BLOCK + gap
        positions = self.side**2
        self.inputs = f.thread_memory()
        self.sums = f.address(self.inputs, positions * self.inputs_pitch, self.size)
        self.pixels = f.scratch(self.wide, plan.tile**2)
        streamed = plan.blocks * positions * self.channels * BLOCK * self.size > PREFETCH_FROM
        ahead = PREFETCH_AHEAD // self.size if streamed else 0
        self.product = Product(self.type, self.size, self.channels, 1, self.u_strides[2], UNROLL, ahead)

    def emit(self) -> str:
        f, plan = self.f, self.plan
        groups = f.dim(plan.groups, f.extents)
        with f.loop(f.begin, f.end, carry=[Reg("-1", "i64")]) as task:
            f.poll()
            group, part = unravel(f, task.i, (groups, plan.parts))
            first = f.mul(group, plan.group)
            count = f.min(plan.group, f.sub(self.tiles, first)) if len(plan.counts) != 1 else plan.group
            (transformed,) = task.carried
            with f.when(f.compare("ne", group, transformed)):
                self._transform(first, count)
            begin = f.mul(part, BLOCKS)
            for segment in segments(plan.blocks, self.panels, BLOCKS):
                with tile_loop(f, segment, begin, BLOCKS) as block:
                    f.poll()
                    self._multiply(block.i, segment.size, count)
                    self._finish(block.i, segment.size, first, count)
            task.next = [Reg(str(group), "i64")]
        return f.finish()

    def _place(self, tile: Int) -> tuple[Int, Int, Int]:
        """The image of a tile, and its first pixel."""
        n, row, column = unravel(self.f, tile, (0, self.down, self.across))
        return n, self.f.mul(row, self.plan.tile), self.f.mul(column, self.plan.tile)

    # -- the three steps --

    def _transform(self, first: Int, count: Int) -> None:
        """Transforms the inputs of `count` tiles, all channels."""
        f, side, size, channels = self.f, self.side, self.size, self.input_blocks * BLOCK
        with f.loop(0, count) as tile:
            n, row, column = self._place(f.add(first, tile.i))
            corner = f.total([(n, self.x_strides[0]), (row, self.x_strides[2]), (column, self.x_strides[3])])
            source = f.address(self.x, corner, size)
            result = f.address(self.inputs, f.mul(tile.i, channels), size)
            with f.loop(0, self.input_blocks) as block:
                x = f.address(source, f.mul(block.i, self.x_strides[1]), size)
                to = f.address(result, f.mul(block.i, BLOCK), size)
                with f.loop(0, BLOCK, self.lanes) as lane:
                    here, there = f.address(x, lane.i, size), f.address(to, lane.i, size)

                    def load(i: int, j: int) -> Reg:
                        place = f.total([(i, self.x_strides[2]), (j, self.x_strides[3])])
                        return f.load(self.part, f.address(here, place, size), size)

                    def store(i: int, j: int, value: Reg) -> None:
                        place = (i * side + j) * self.inputs_pitch
                        f.store(value, f.address(there, place, size), size)
                        # Where the next tile goes: a store waits for its line.
                        prefetch(f, f.address(there, place + channels, size))

                    self._square(_INPUT[self.plan.tile], load, store)

    def _multiply(self, block: Int, panels: int, count: Int) -> None:
        """The products of all positions, for `panels` blocks of output channels."""
        f, counts = self.f, self.plan.counts
        if len(counts) < 2:
            rows = self._balanced(counts[0]) if counts else [(self.rows, 0, count)]
            self._positions(block, panels, rows)
            return
        for size in counts:
            with f.when(f.compare("eq", count, size)):
                self._positions(block, panels, self._balanced(size))

    def _balanced(self, count: int) -> list[Rows]:
        return [
            (part.size, part.start, part.stop)
            for part in balanced(count, self.rows)
            if isinstance(part.start, int) and isinstance(part.stop, int)
        ]

    def _positions(self, block: Int, panels: int, rows: Sequence[Rows]) -> None:
        f, size, channels = self.f, self.size, self.input_blocks * BLOCK
        weights = f.address(self.u, f.mul(block, self.u_strides[0]), size)
        with f.loop(0, self.side**2) as position:
            u = f.address(weights, f.mul(position.i, self.u_strides[1]), size)
            inputs = f.address(self.inputs, f.mul(position.i, self.inputs_pitch), size)
            sums = f.address(self.sums, f.mul(position.i, self.sums_pitch), size)
            right = [split(f, (u, 0), f.mul(panel, self.u_strides[0]), size) for panel in range(panels)]
            for step, low, high in rows:
                with f.loop(low, high, step) as row:
                    top = f.address(inputs, f.mul(row.i, channels), size)
                    products = self.product.emit(f, [(top, number * channels) for number in range(step)], right)
                    to = f.address(sums, f.mul(row.i, BLOCK), size)
                    for panel, values in enumerate(products):
                        for number, value in enumerate(values):
                            where = panel * self.side**2 * self.sums_pitch + number * BLOCK
                            f.store(value, f.address(to, where, size), size)

    def _finish(self, block: Int, panels: int, first: Int, count: Int) -> None:
        """Transforms the sums of `panels` blocks of output channels to pixels, and stores what is inside the image."""
        f, m = self.f, self.plan.tile
        height, width = self.extents
        whole = all(isinstance(extent, int) and extent % m == 0 for extent in self.extents)
        with f.loop(0, count) as tile:
            n, row, column = self._place(f.add(first, tile.i))
            there = self.epilogue.at(n, block, row, column, 0)
            sums = f.address(self.sums, f.mul(tile.i, BLOCK), self.size)
            inside = (m, m) if whole else (f.min(m, f.sub(height, row)), f.min(m, f.sub(width, column)))
            for panel in range(panels):
                self._pixels(f.address(sums, panel * self.side**2 * self.sums_pitch, self.size))
                here = there.at(0, panel, 0, 0, 0)
                if whole and not here.is_heavy:
                    self._finish_whole(here)
                elif here.is_heavy:
                    here.finish_stored((1, 1, *inside), (1, 1, m, m), self.pixels, self.wide)
                else:
                    area = f.mul(*inside)
                    with f.when(f.compare("eq", area, m * m)):
                        self._finish_whole(here)
                    with f.when(f.compare("ne", area, m * m)):
                        here.finish_stored((1, 1, *inside), (1, 1, m, m), self.pixels, self.wide)

    def _finish_whole(self, epilogue: Epilogue) -> None:
        f, m = self.f, self.plan.tile
        for i in range(m):
            for j in range(m):
                f.barrier()
                pixel = f.load(self.wide, f.address(self.pixels, (i * m + j) * BLOCK, self.size), self.size)
                epilogue.at(0, 0, i, j, 0).apply(pixel)

    def _pixels(self, sums: Reg) -> None:
        """The pixels of one tile from its sums."""
        f, size, side, m = self.f, self.size, self.side, self.plan.tile
        with f.loop(0, BLOCK, self.lanes) as lane:
            here, there = f.address(sums, lane.i, size), f.address(self.pixels, lane.i, size)

            def load(i: int, j: int) -> Reg:
                return f.load(self.part, f.address(here, (i * side + j) * self.sums_pitch, size), size)

            def store(i: int, j: int, value: Reg) -> None:
                f.store(value, f.address(there, (i * m + j) * BLOCK, size), size)

            self._square(_OUTPUT[m], load, store)

    def _square(
        self, along: Transform, load: Callable[[int, int], Reg], store: Callable[[int, int, Reg], None]
    ) -> None:
        """Transforms m + 2 by m + 2 vectors along their columns, and then along their rows."""
        f, columns = self.f, []
        for j in range(self.side):
            f.barrier()
            columns.append(along(f, [load(i, j) for i in range(self.side)]))
        for i in range(len(columns[0])):
            f.barrier()
            for j, value in enumerate(along(f, [column[i] for column in columns])):
                store(i, j, value)


# --- transforms of one row or column --------------------------------------------------------------------------------


def _times(f: Kernel, factor: float, a: Reg, b: Reg) -> Reg:
    """factor * a + b"""
    return f.fma(f.constant(factor, a.type), a, b)


def _input_4(f: Kernel, d: Sequence[Reg]) -> list[Reg]:
    """B^T d for the points 0, 1, -1, 2, -2 and infinity."""
    even, odd = _times(f, -4.0, d[2], d[4]), _times(f, -4.0, d[1], d[3])
    far_even, far_odd = f.binary("fsub", d[4], d[2]), f.binary("fsub", d[3], d[1])
    return [
        _times(f, 4.0, d[0], _times(f, -5.0, d[2], d[4])),
        f.binary("fadd", even, odd),
        f.binary("fsub", even, odd),
        _times(f, 2.0, far_odd, far_even),
        _times(f, -2.0, far_odd, far_even),
        _times(f, 4.0, d[1], _times(f, -5.0, d[3], d[5])),
    ]


def _output_4(f: Kernel, s: Sequence[Reg]) -> list[Reg]:
    """A^T s"""
    near, near_odd = f.binary("fadd", s[1], s[2]), f.binary("fsub", s[1], s[2])
    far, far_odd = f.binary("fadd", s[3], s[4]), f.binary("fsub", s[3], s[4])
    return [
        f.binary("fadd", s[0], f.binary("fadd", near, far)),
        _times(f, 2.0, far_odd, near_odd),
        _times(f, 4.0, far, near),
        f.binary("fadd", _times(f, 8.0, far_odd, near_odd), s[5]),
    ]


def _input_2(f: Kernel, d: Sequence[Reg]) -> list[Reg]:
    """B^T d for the points 0, 1, -1 and infinity."""
    return [
        f.binary("fsub", d[0], d[2]),
        f.binary("fadd", d[1], d[2]),
        f.binary("fsub", d[2], d[1]),
        f.binary("fsub", d[3], d[1]),
    ]


def _output_2(f: Kernel, s: Sequence[Reg]) -> list[Reg]:
    """A^T s"""
    return [
        f.binary("fadd", s[0], f.binary("fadd", s[1], s[2])),
        f.binary("fadd", f.binary("fsub", s[1], s[2]), s[3]),
    ]


_INPUT: dict[int, Transform] = {4: _input_4, 2: _input_2}
_OUTPUT: dict[int, Transform] = {4: _output_4, 2: _output_2}


# --- the kernel -----------------------------------------------------------------------------------------------------


def _emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    return _Winograd(spec, target, symbol).emit()


def _tasks(spec: KernelSpec) -> Dim:
    plan = Plan.of(spec)
    return plan.groups * plan.parts


def _work(spec: KernelSpec) -> Dim:
    """Of the products: the transforms are a small part."""
    blocks, positions, channels, lanes = spec.operands[1].dims
    return Plan.of(spec).tiles * blocks * positions * channels * lanes * 2


def _scratch(spec: KernelSpec) -> Dim:
    """Inputs and sums of a task, by whole rows of products of whatever height."""
    u, plan = spec.operands[1], Plan.of(spec)
    positions, channels = (plan.tile + 2) ** 2, spec["channels"]
    assert isinstance(channels, int)
    blocks = -(-channels // BLOCK) + MOST_PANELS
    return positions * (blocks * (plan.group + UNIT) * BLOCK * u.dtype.bytes + (1 + MOST_PANELS) * GAP)


def _may_reuse(spec: KernelSpec) -> Reuse:
    return reuse(spec, 2)


CONV_WINOGRAD = KernelDef(
    name="conv_winograd",
    doc="convolution of [N,CB,H,W,16], with halo, by 3x3 weights in Winograd's form [OB,(tile+2)^2,C,16]; params "
    "channels, tile, body, outs",
    emit=_emit,
    tasks=_tasks,
    work=_work,
    scratch=_scratch,
    may_reuse=_may_reuse,
)
