"""Convolution on blocked channels (NCHWc16), and what it shares with the depthwise one.

y[n, ob, oh, ow, o] = sum over (c, kh, kw) of x[n, c // 16, oh*sh + kh*dh, ow*sw + kw*dw, c % 16] * w[ob, c, kh, kw, o]

Every element is one chain of fused multiply-adds from 0, ascending in (c, kh, kw): the order of the weights in memory,
which therefore stream. `conv_plain` has the same order. The halo is part of x, so no bounds are checked.

A tile is a run of pixels of one output row (or a few short rows) by 16 output channels. Loop order (innermost last):
image, group of rows, block of output channels | tile, c, kh, kw, pixel. What stands left of the bar is a task; a group
is small enough that its input rows stay in the second-level cache while the output channels pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels.epilogue import Epilogue, reuse
from relume.kernels.ir import Int, Kernel, Reg, lanes, llvm_type, vector
from relume.kernels.microkernel import Moved, Place, prefetch, split, unravel
from relume.kernels.tiles import Strip, accumulators, plane, tiles, vectors_per_block
from relume.program.types import IN, ConstReader, KernelDef, KernelSpec, OperandSpec, Reuse

STRAIGHT_TAPS = 25
"""Kernels of at most this many positions are laid out straight; larger ones loop over their rows, and along rows that
are longer still, by `STRAIGHT_COLUMNS` at once."""
STRAIGHT_COLUMNS = 16
STEPS = 16
"""Steps of the reduction per trip of the innermost loop, at least, where the channels allow."""
INPUT_BYTES = 256 * 1024
"""Input that one group of rows may touch: half a second-level cache."""
MOST_ROWS = 16
SMALL_PLANE = 256
"""Planes of at most this many pixels are one group, and may have tiles that are higher than one row."""
PREFETCH_FROM = 32 * 1024
"""Bytes of weights from which those of the next block of output channels are fetched ahead, while this one's pixels
pass by: between two runs of a model, all weights leave the second-level cache."""
STEPS_AHEAD = 128
"""A tile asks for the lines that tiles of at least so many steps later will write: memory takes as long. Tiles of twice
as many steps leave time enough for their stores."""
LINE = 64
"""Bytes of a cache line."""
GUESSED_TILES = 16
"""Tiles of a task where its extents are not known."""
POLL_FROM = 1 << 15
"""FMAs of a tile, or of a row of tiles, from which every one polls, and not only every task."""

Row = list[list[Place]]
"""The places of a tile's pixels under one kernel row: [kernel column][pixel]."""


def pair(spec: KernelSpec, name: str) -> tuple[int, int]:
    """A parameter of two ints (rows, columns)."""
    value = spec[name]
    if not (isinstance(value, tuple) and len(value) == 2):
        raise CompileError(f"{spec.kernel}: {name} has one number for rows and one for columns", got=value)
    return value  # type: ignore[return-value]


def along_columns(spec: KernelSpec) -> KernelSpec:
    """A convolution over a single column as one over a single row, since tiles are runs of pixels in a row.

    Only strides change places: with one column, and one column of weights, the order of all sums is the same.
    """
    x, w, y = spec.operands[0], spec.operands[1], spec.operands[-1]
    if not (x.dims[3] == 1 and y.dims[3] == 1 and w.dims[-2] == 1 and y.dims[2] != 1):
        return spec

    def turned(operand: OperandSpec, axis: int) -> OperandSpec:
        dims_, strides = list(operand.dims), list(operand.strides)
        for items in (dims_, strides):
            items[axis], items[axis + 1] = items[axis + 1], items[axis]
        return replace(operand, dims=tuple(dims_), strides=tuple(strides))

    operands = [turned(operand, len(w.dims) - 3 if operand is w else 2) for operand in spec.operands]
    params = {**dict(spec.params), "strides": pair(spec, "strides")[::-1], "dilations": pair(spec, "dilations")[::-1]}
    return replace(spec, operands=tuple(operands), params=tuple(sorted(params.items())))


def rows_per_task(spec: KernelSpec) -> int:
    """Output rows of one task. Known even where the extents are not, and the same for every target."""
    spec = along_columns(spec)
    x, y = spec.operands[0], spec.operands[-1]
    height, width = y.dims[2:4]
    if isinstance(height, int) and isinstance(width, int) and height * width <= SMALL_PLANE:
        return max(1, height)
    row = x.dims[1] * x.dims[3] * dims.product(x.dims[4:]) * x.dtype.bytes * pair(spec, "strides")[0]
    return max(1, min(MOST_ROWS, INPUT_BYTES // row)) if isinstance(row, int) and row else MOST_ROWS // 2


def tasks(spec: KernelSpec) -> Dim:
    """Images times blocks of output channels times groups of rows."""
    spec = along_columns(spec)
    n, blocks, height = spec.operands[-1].dims[:3]
    return n * blocks * dims.ceildiv(height, rows_per_task(spec))


def check(spec: KernelSpec, kernel_rank: int, x_ranks: tuple[int, ...] = (5,)) -> None:
    """Raises `CompileError` for operands that are no blocked convolution."""
    if len(spec.operands) < 3 or spec.operands[-1].access == IN:
        raise CompileError(f"{spec.kernel} takes an input, weights, extras, and outputs", got=str(spec))
    x, w, y = spec.operands[0], spec.operands[1], spec.operands[-1]
    if x.dtype is not w.dtype or x.dtype.name not in ("f32", "f64"):
        raise CompileError(f"{spec.kernel} multiplies f32 or f64", got=f"{x.dtype} by {w.dtype}")
    if not all(isinstance(dim, int) for dim in w.dims):
        raise CompileError(f"{spec.kernel} needs known extents of its weights", got=str(w), hint="use conv_plain")
    if len(x.dims) not in x_ranks or (len(w.dims), len(y.dims)) != (kernel_rank, 5) or w.dims[-1] != BLOCK:
        raise CompileError(f"{spec.kernel}: channels come in blocks of {BLOCK}", got=str(spec))
    blocked = (y,) if len(x.dims) == 4 else (x, y)
    if any(operand.dims[-1] != BLOCK or operand.strides[-1] != 1 for operand in blocked) or w.strides[-1] != 1:
        raise CompileError(f"{spec.kernel}: the {BLOCK} channels of a block are neighbours", got=str(spec))


@dataclass(frozen=True)
class Cover:
    """How the pixels of a task, and the channels of their block, are cut into tiles."""

    strips: tuple[Strip, ...]
    lanes: int
    """Channels of one tile."""
    used: int = BLOCK
    """Channels of the block that are computed at all."""


@dataclass(frozen=True)
class Tile:
    """`height` rows of `width` pixels by `lanes` channels: `x` is the input under the first one, `w` the weights of its
    channels.

    `part` is the first of its channels in their block; `x` and `w` stand there.
    `number` counts the tiles of a task, `w_next` are the weights of the task after it, and `epilogue` stands at the
    first pixel.
    """

    height: int
    width: int
    lanes: int
    part: int
    x: Reg
    w: Reg
    number: Int
    w_next: Reg
    epilogue: Epilogue


class Blocked:
    """A convolution kernel under construction: its tasks, its tiles, and where a tile reads x."""

    def __init__(self, spec: KernelSpec, target: Target, symbol: str, parts: int = 1, limit: int = 0) -> None:
        """Each tile is computed in `parts` of its 16 channels, one after the other; with a `limit` of pixels a tile is
        one row high."""
        self.f = f = Kernel(symbol, spec.extents)
        spec = along_columns(spec)
        x, w, y = spec.operands[0], spec.operands[1], spec.operands[-1]
        self.size, self.type = x.dtype.bytes, llvm_type(x.dtype)
        self.x, self.w = f.operand(0), f.operand(1)
        self.x_strides = [f.dim(stride, f.extents) for stride in x.strides]
        self.w_strides = [f.dim(stride, f.extents) for stride in w.strides]
        self.w_dims = [dim for dim in w.dims if isinstance(dim, int)]
        self.kernel_height, self.kernel_width = self.w_dims[-3:-1]
        self.strides, self.dilations = pair(spec, "strides"), pair(spec, "dilations")
        self.extents = [f.dim(extent, f.extents) for extent in y.dims[:4]]
        self.group = rows_per_task(spec)
        vectors = vectors_per_block(target, x.dtype)
        flat = limit > 0 or not (isinstance(y.dims[2], int) and y.dims[2] <= self.group)
        limit = limit or accumulators(target) // vectors
        self.cover = Cover(plane(y.dims[2], y.dims[3], limit, vectors, flat), BLOCK // parts)
        self.last = self.cover
        """The tiles of the last block of output channels: where its second half is padding only, they are as large in
        registers, but of half as many channels."""
        out_channels = dict(spec.params).get("out_channels", 0)
        if isinstance(out_channels, int) and parts == 1 and vectors == 2 and 0 < out_channels % BLOCK <= BLOCK // 2:
            limit = accumulators(target)
            self.last = Cover(plane(y.dims[2], y.dims[3], limit, 1, flat), BLOCK // 2, BLOCK // 2)
        self.tiles = tiles(self.cover.strips, y.dims[2], self.group)
        self.epilogue = Epilogue.of(f, spec, 2)
        if not self.epilogue.vectorises:
            raise CompileError(f"{spec.kernel}: extras and outputs have neighbouring channels", got=str(spec))
        self.scratch = f.scratch(vector(self.type, BLOCK), limit)

    def emit(self, accumulate: Callable[[Tile], list[Reg]], fmas: int) -> str:
        """All tasks. `accumulate` gives a tile's sums in rows of pixels; `fmas` counts one pixel's."""
        f = self.f
        _, blocks, height, _ = self.extents
        groups = f.div(f.add(height, self.group - 1), self.group)
        with f.loop(f.begin, f.end) as task:
            f.poll()
            n, group, block = unravel(f, task.i, (1, groups, blocks))
            first = f.mul(group, self.group)
            x = f.address(self.x, self.input_offset(n, block), self.size)
            w = f.address(self.w, f.mul(block, self.w_strides[0]), self.size)
            w_next = f.address(self.w, f.mul(f.rem(f.add(block, 1), blocks), self.w_strides[0]), self.size)
            tile = Tile(0, 0, 0, 0, x, w, 0, w_next, self.epilogue.at(n, block, 0, 0, 0))
            if self.last is self.cover or blocks == 1:
                self._tiles(self.last, tile, first, accumulate, fmas)
            else:
                for how, cover in (("ne", self.cover), ("eq", self.last)):
                    with f.when(f.compare(how, block, f.sub(blocks, 1))):
                        self._tiles(cover, tile, first, accumulate, fmas)
        return f.finish()

    def _tiles(self, cover: Cover, task: Tile, first: Int, accumulate: Callable[[Tile], list[Reg]], fmas: int) -> None:
        """The tiles of a task. `task` stands where its first pixel is, in row `first`."""
        f = self.f
        width = self.extents[3]
        before: Int = 0
        for strip in cover.strips:
            low, high = (f.dim(bound, f.extents) for bound in (strip.columns.start, strip.columns.stop))
            across = f.div(f.sub(high, low), strip.columns.size)
            for rows in strip.rows:
                start, stop = (f.dim(bound, f.extents) for bound in (rows.start, rows.stop))
                start, stop = f.max(start, first), f.min(stop, f.add(first, self.group))
                with f.loop(start, stop, rows.size) as row:
                    if not (isinstance(width, int) and width * rows.size * fmas < POLL_FROM):
                        f.poll()
                    above = f.add(before, f.mul(f.div(f.sub(row.i, start), rows.size), across))
                    with f.loop(low, high, strip.columns.size) as column:
                        if strip.columns.size * rows.size * fmas >= POLL_FROM:
                            f.poll()
                        offset = self.pixel(row.i, column.i)
                        number = f.add(above, f.div(f.sub(column.i, low), strip.columns.size))
                        x_tile = f.address(task.x, offset, self.size)
                        for part in range(0, cover.used, cover.lanes):
                            here = task.epilogue.at(0, 0, row.i, column.i, part)
                            xs, ws = (f.address(pointer, part, self.size) for pointer in (x_tile, task.w))
                            size = rows.size, strip.columns.size, cover.lanes
                            tile = Tile(*size, part, xs, ws, number, task.w_next, here)
                            here.finish_tile((1, 1, tile.height, tile.width), accumulate(tile), self.scratch)
                before = f.add(before, f.mul(f.div(f.sub(stop, start), rows.size), across))

    def input_offset(self, n: Int, block: Int) -> Int:
        """Elements from the start of x to what output block `block` of image `n` reads first."""
        return self.f.mul(n, self.x_strides[0])

    def pixel(self, row: Int, column: Int) -> Int:
        """Elements of x between output pixel (0, 0) and (row, column)."""
        f = self.f
        down = f.mul(f.mul(row, self.strides[0]), self.x_strides[2])
        return f.add(down, f.mul(f.mul(column, self.strides[1]), self.x_strides[3]))

    def places(self, tile: Tile, kernel_row: int, columns: int | None = None) -> Row:
        """Where the pixels of a tile lie under each position of one kernel row, or of its first `columns`."""
        f = self.f
        lines = []
        for y in range(tile.height):
            down = f.mul(y * self.strides[0] + kernel_row * self.dilations[0], self.x_strides[2])
            lines.append(split(f, (tile.x, 0), down, self.size))
        return [
            [
                split(f, line, f.mul(x * self.strides[1] + column * self.dilations[1], self.x_strides[3]), self.size)
                for line in lines
                for x in range(tile.width)
            ]
            for column in range(columns or self.kernel_width)
        ]


class _Conv(Blocked):
    def __init__(self, spec: KernelSpec, target: Target, symbol: str) -> None:
        check(spec, 5, (4, 5))
        super().__init__(spec, target, symbol)
        # Channels of x that are no blocks lie a plane apart; reading one element at a time is the same either way.
        plain = len(spec.operands[0].dims) == 4
        self.lane = self.x_strides[1] if plain else 1
        self.x_block = self.f.mul(self.lane, BLOCK) if plain else self.x_strides[1]
        channels = spec["channels"]
        if not isinstance(channels, int) or channels != self.w_dims[1]:
            raise CompileError(f"{spec.kernel}: the weights have all channels", expected=channels, got=self.w_dims[1])
        self.channels = channels
        taps = self.kernel_height * self.kernel_width
        self.loops_rows = taps > STRAIGHT_TAPS
        self.loops_columns = self.kernel_width > STRAIGHT_TAPS
        unroll = 1 if plain else max(1, STEPS // taps)
        self.unroll = 1 << unroll.bit_length() - 1
        # A 1x1 window reads a pixel or a few, and leaps to the next block of channels, which no hardware foresees.
        self.leaps = taps == 1 and channels >= 2 * BLOCK
        self.stores_ahead = -(-STEPS_AHEAD // (channels * taps)) if channels * taps <= 2 * STEPS_AHEAD else 0
        self.lines = 0
        """Cache lines of the next task's weights that are asked for with each trip of the innermost loop."""
        if self.w_dims[0] * channels * taps * BLOCK * self.size > PREFETCH_FROM and not self.loops_rows:
            trip = self.unroll * taps * BLOCK * self.size // LINE
            self.lines = -(-trip // (self.tiles or GUESSED_TILES))

    def accumulate(self, tile: Tile) -> list[Reg]:
        """The sums over all channels."""
        f = self.f
        if self.stores_ahead:
            for pointer in tile.epilogue.at(0, 0, 0, self.stores_ahead * tile.width, 0).pixels(tile.height, tile.width):
                prefetch(f, pointer)
        sums: list[Reg] = [f.zero(vector(self.type, tile.lanes))] * (tile.height * tile.width)
        whole, rest = divmod(self.channels, BLOCK)
        kernel_rows = 1 if self.loops_rows else self.kernel_height
        columns = STRAIGHT_COLUMNS if self.loops_columns else self.kernel_width
        places = [self.places(tile, row, columns) for row in range(kernel_rows)]
        if whole:
            with f.loop(0, whole, carry=sums) as block:
                block.next = self._channels(places, tile, block.i, BLOCK, self.unroll, block.carried)
            sums = block.results
        if rest:
            sums = self._channels(places, tile, whole, rest, 1, sums)
        return sums

    def _channels(
        self, places: list[Row], tile: Tile, block: Int, count: int, unroll: int, sums: list[Reg]
    ) -> list[Reg]:
        """Adds `count` channels of an input block."""
        f = self.f
        x_block, first = f.mul(block, self.x_block), f.mul(block, BLOCK)
        with f.loop(0, count, unroll, carry=sums) as channel:
            sums = channel.carried
            x = f.add(x_block, f.mul(channel.i, self.lane))
            w = f.mul(f.add(first, channel.i), self.w_strides[1])
            if self.loops_rows:
                down = f.mul(self.dilations[0], self.x_strides[2])
                with f.loop(0, self.kernel_height, carry=sums) as row:
                    there = f.add(x, f.mul(row.i, down)), f.add(w, f.mul(row.i, self.w_strides[2]))
                    row.next = self._row(*there, places, tile, row.carried)
                sums = row.results
            else:
                xs, ws = Moved(f, x, self.size), Moved(f, w, self.size)
                if self.lines and unroll == self.unroll:
                    self._prefetch(tile, f.div(f.add(first, channel.i), unroll))
                if self.leaps and unroll == BLOCK:
                    following = f.min(f.add(block, 1), self.channels // BLOCK - 1)
                    ahead = Moved(f, f.mul(following, self.x_block), self.size)
                    for place in places[0][0]:
                        prefetch(f, ahead.at(place))
                for step in range(unroll):
                    sums = self._steps(xs, ws, places, tile.w, step, sums)
            channel.next = sums
        return channel.results

    def _prefetch(self, tile: Tile, trip: Int) -> None:
        """Asks for this tile's and this trip's share of the weights of the next block of output channels."""
        f = self.f
        share = f.mul(tile.number, self.channels // self.unroll * self.lines)
        at = f.address(tile.w_next, f.add(share, f.mul(trip, self.lines)), LINE)
        for line in range(self.lines):
            prefetch(f, f.address(at, line, LINE), 2)

    def _row(self, x: Int, w: Int, places: list[Row], tile: Tile, sums: Sequence[Reg]) -> list[Reg]:
        """One row of the kernel, along which `places` reaches as far as is laid out straight."""
        f, reach = self.f, len(places[0])

        def at(column: Int, columns: int, sums: Sequence[Reg]) -> list[Reg]:
            right = f.mul(f.mul(column, self.dilations[1]), self.x_strides[3])
            xs = Moved(f, f.add(x, right), self.size)
            ws = Moved(f, f.add(w, f.mul(column, self.w_strides[3])), self.size)
            return self._steps(xs, ws, [row[:columns] for row in places], tile.w, 0, sums)

        whole = self.kernel_width // reach * reach
        if whole == reach:
            sums = at(0, reach, sums)
        else:
            with f.loop(0, whole, reach, carry=list(sums)) as column:
                column.next = at(column.i, reach, column.carried)
            sums = column.results
        return at(whole, self.kernel_width - whole, sums) if whole < self.kernel_width else list(sums)

    def _steps(self, xs: Moved, ws: Moved, places: list[Row], w: Reg, channel: int, sums: Sequence[Reg]) -> list[Reg]:
        """One channel under the kernel positions of `places` ([kernel row])."""
        f, out = self.f, list(sums)
        for kernel_row, columns in enumerate(places):
            for kernel_column, pixels in enumerate(columns):
                at = f.total(list(zip((channel, kernel_row, kernel_column), self.w_strides[1:])))
                f.barrier()
                factor = f.load(sums[0].type, ws.at((w, 0), at), self.size)
                for number, place in enumerate(pixels):
                    left = f.splat(f.load(self.type, xs.at(place, channel), self.size), lanes(factor.type))
                    out[number] = f.fma(left, factor, out[number])
        return out


def _emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    conv = _Conv(spec, target, symbol)
    return conv.emit(conv.accumulate, conv.channels * conv.kernel_height * conv.kernel_width * BLOCK)


def _work(spec: KernelSpec) -> Dim:
    _, channels, kernel_height, kernel_width, _ = spec.operands[1].dims
    return dims.product(spec.operands[-1].dims) * channels * kernel_height * kernel_width * 2


def _may_reuse(spec: KernelSpec) -> Reuse:
    return reuse(spec, 2)


CONV_BLOCKED = KernelDef(
    name="conv_blocked",
    doc="convolution of [N,CB,H,W,16] or plain [N,C,H,W], with halo, by [OB,C,KH,KW,16]; params strides, dilations, "
    "channels, out_channels (0 or absent: all lanes), body, outs",
    emit=_emit,
    tasks=tasks,
    work=_work,
    may_reuse=_may_reuse,
)
