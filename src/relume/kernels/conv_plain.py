"""Convolution on plain channels, any spatial rank, any groups: right for everything, fast for much.

y[n, o, p...] = sum over (c, k...) of x[n, group of o, c, p*stride - pad + k*dilation ...] * w[o, c, k...]

Every element is one chain of fused multiply-adds from 0, ascending in (c, k...), over the positions that lie inside x;
integers wrap around.
Padding is not in memory: the kernel range of each axis is clamped once per output row, and on the last axis the
outputs whose kernel lies wholly inside run in vectors, the few at the edges one by one. So no element is tested.

A task is one image, up to four output channels that share their input, and one index of the first spatial axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels.epilogue import Epilogue, reuse
from relume.kernels.ir import Int, Kernel, Reg, llvm_type, vector
from relume.kernels.microkernel import unravel
from relume.program.types import IN, ConstReader, KernelDef, KernelSpec, OperandSpec, Reuse

CHANNELS = 4
"""Output channels that share a load of x, at most."""
LANES = (BLOCK, 4)
"""Widths of the vectors along the last axis; what is left runs one by one."""
STRAIGHT = 8
"""Kernels of at most this known width are laid out straight."""
POLL_FROM = 64
"""Steps of the reduction from which every vector polls, and not only every row."""

Range = tuple[Int, Int]


def _with_space(spec: KernelSpec) -> KernelSpec:
    """A product of matrices, [N,C] by [O,C], gets one spatial axis of extent 1."""
    if len(spec.operands[0].dims) > 2:
        return spec

    def widen(operand: OperandSpec) -> OperandSpec:
        return replace(operand, dims=(*operand.dims, 1), strides=(*operand.strides, 1))

    params = {**dict(spec.params), "strides": (1,), "dilations": (1,), "pads": (0, 0)}
    return replace(spec, operands=tuple(map(widen, spec.operands)), params=tuple(sorted(params.items())))


def _ints(spec: KernelSpec, name: str) -> tuple[int, ...]:
    value = spec[name]
    assert isinstance(value, tuple)
    return value  # type: ignore[return-value]


def _groups(spec: KernelSpec) -> int:
    value = spec["groups"]
    assert isinstance(value, int)
    return value


def _channels_per_task(spec: KernelSpec) -> int:
    """The most channels of one group, up to `CHANNELS`, that divide it evenly."""
    outputs = spec.operands[1].dims[0]
    if not isinstance(outputs, int):
        return 1
    return max(count for count in range(1, CHANNELS + 1) if outputs // _groups(spec) % count == 0)


def _tasks(spec: KernelSpec) -> Dim:
    y = _with_space(spec).operands[-1]
    return y.dims[0] * dims.floordiv(y.dims[1], _channels_per_task(spec)) * (y.dims[2] if len(y.dims) > 3 else 1)


def _work(spec: KernelSpec) -> Dim:
    return dims.product(spec.operands[-1].dims) * dims.product(spec.operands[1].dims[1:]) * 2


def _may_reuse(spec: KernelSpec) -> Reuse:
    return reuse(spec, 2)


def _check(spec: KernelSpec) -> None:
    if len(spec.operands) < 3 or spec.operands[-1].access == IN:
        raise CompileError(f"{spec.kernel} takes an input, weights, extras, and outputs", got=str(spec))
    x, w = spec.operands[:2]
    if x.dtype is not w.dtype or x.dtype.name in ("f16", "bf16", "bool"):
        raise CompileError(f"{spec.kernel} multiplies f32, f64 or integers", got=f"{x.dtype} by {w.dtype}")
    rank = len(x.dims) - 2
    for name, count in (("strides", rank), ("dilations", rank), ("pads", 2 * rank)):
        value = spec[name]
        if not (isinstance(value, tuple) and len(value) == count):
            raise CompileError(f"{spec.kernel}: {name} for {rank} spatial axes", expected=f"{count} ints", got=value)


class _Plain:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, symbol: str) -> None:
        self.f = f = Kernel(symbol, spec.extents)
        spec = _with_space(spec)
        _check(spec)
        x, w, y = spec.operands[0], spec.operands[1], spec.operands[-1]
        self.rank = len(x.dims) - 2
        self.size, self.type = x.dtype.bytes, llvm_type(x.dtype)
        self.x, self.w = f.operand(0), f.operand(1)
        self.x_dims, self.w_dims, self.y_dims = (
            [f.dim(extent, f.extents) for extent in operand.dims] for operand in (x, w, y)
        )
        self.x_strides, self.w_strides = (
            [f.dim(stride, f.extents) for stride in operand.strides] for operand in (x, w)
        )
        self.strides, self.dilations, self.pads = (_ints(spec, name) for name in ("strides", "dilations", "pads"))
        self.groups = _groups(spec)
        self.channels = _channels_per_task(spec)
        self.epilogue = Epilogue.of(f, spec, 2)
        steps = dims.product(w.dims[1:])
        self.polls_often = not isinstance(steps, int) or steps >= POLL_FROM

    def emit(self) -> str:
        f, rank = self.f, self.rank
        blocks = f.div(self.y_dims[1], self.channels)
        outer = self.y_dims[2:-1]
        with f.loop(f.begin, f.end) as task:
            n, block, first = unravel(f, task.i, (1, blocks, outer[0] if outer else 1))
            channel = f.mul(block, self.channels)
            group = f.div(channel, f.div(self.y_dims[1], self.groups))
            start = f.total([(n, self.x_strides[0]), (f.mul(group, self.w_dims[1]), self.x_strides[1])])
            x = f.address(self.x, start, self.size)
            w = f.address(self.w, f.mul(channel, self.w_strides[0]), self.size)
            with ExitStack() as loops:
                index = [first] if outer else []
                index += [loops.enter_context(f.loop(0, extent)).i for extent in outer[1:]]
                f.poll()
                ranges = [self.inside(axis, i) for axis, i in enumerate(index)]
                row = f.total([(self.origin(axis, i), self.x_strides[axis + 2]) for axis, i in enumerate(index)])
                here = self.epilogue.at(n, channel, *index, 0)
                self.row(f.address(x, row, self.size), w, ranges, here, rank - 1)
        return f.finish()

    def origin(self, axis: int, i: Int) -> Int:
        """The (possibly negative) position on an axis of x that kernel position 0 of output `i` reads."""
        return self.f.add(self.f.mul(i, self.strides[axis]), -self.pads[axis])

    def inside(self, axis: int, i: Int) -> Range:
        """The kernel positions of output `i` that lie inside x."""
        f, dilation = self.f, self.dilations[axis]
        before = f.sub(0, self.origin(axis, i))
        low = f.div(f.add(f.max(before, 0), dilation - 1), dilation)
        after = f.max(f.add(self.x_dims[axis + 2], before), 0)
        return low, f.min(f.div(f.add(after, dilation - 1), dilation), self.w_dims[axis + 2])

    def row(self, x: Reg, w: Reg, ranges: Sequence[Range], here: Epilogue, axis: int) -> None:
        """One row of outputs along the last axis."""
        f = self.f
        width, stride, pad = self.y_dims[axis + 2], self.strides[axis], self.pads[axis]
        reach = f.mul(f.sub(self.w_dims[axis + 2], 1), self.dilations[axis])
        # Outputs low..high-1 have their whole kernel inside x.
        low = f.min(-(-pad // stride), width)
        last = f.sub(f.add(self.x_dims[axis + 2], pad - 1 + stride), reach)
        high = f.max(f.min(f.div(f.max(last, 0), stride), width), low)
        whole = (*ranges, (0, self.w_dims[axis + 2]))
        self.edge(x, w, ranges, here, axis, 0, low)
        for lanes in LANES if here.vectorises else ():
            stop = f.add(low, f.mul(f.div(f.sub(high, low), lanes), lanes))
            with f.loop(low, stop, lanes) as column:
                self.outputs(x, w, whole, here, column.i, lanes)
            low = stop
        self.edge(x, w, ranges, here, axis, low, width)

    def edge(self, x: Reg, w: Reg, ranges: Sequence[Range], here: Epilogue, axis: int, low: Int, high: Int) -> None:
        """Outputs low..high-1 one by one, each with its own kernel range."""
        with self.f.loop(low, high) as column:
            self.outputs(x, w, (*ranges, self.inside(axis, column.i)), here, column.i, 1)

    def outputs(self, x: Reg, w: Reg, ranges: Sequence[Range], here: Epilogue, column: Int, lanes: int) -> None:
        """`lanes` neighbouring outputs of each of the task's channels."""
        f, wide = self.f, vector(self.type, lanes)
        if self.polls_often:
            f.poll()
        x = f.address(x, f.mul(self.origin(self.rank - 1, column), self.x_strides[-1]), self.size)
        sums: list[Reg] = [f.zero(wide)] * self.channels
        ranges = ((0, self.w_dims[1]), *ranges)
        x_steps = [self.x_strides[1], *map(f.mul, self.x_strides[2:], self.dilations)]
        sums = self.reduce(x, w, ranges, x_steps, self.w_strides[1:], lanes, sums)
        for channel, value in enumerate(sums):
            here.at(0, channel, *[0] * (self.rank - 1), column).apply(value)

    def reduce(
        self,
        x: Reg,
        w: Reg,
        ranges: Sequence[Range],
        x_steps: Sequence[Int],
        w_steps: Sequence[Int],
        lanes: int,
        sums: list[Reg],
    ) -> list[Reg]:
        """Adds the products over `ranges`, the last one fastest."""
        f = self.f
        if not ranges:
            factor = self.inputs(x, lanes)
            f.barrier()
            places = (f.address(w, f.mul(t, self.w_strides[0]), self.size) for t in range(self.channels))
            weights = [f.splat(f.load(self.type, place, self.size), lanes) for place in places]
            if self.type in ("float", "double"):
                return [f.fma(factor, weight, value) for weight, value in zip(weights, sums)]
            return [f.binary("add", f.binary("mul", factor, weight), value) for weight, value in zip(weights, sums)]

        def step(i: Int, values: list[Reg]) -> list[Reg]:
            x_here = f.address(x, f.mul(i, x_steps[0]), self.size)
            w_here = f.address(w, f.mul(i, w_steps[0]), self.size)
            return self.reduce(x_here, w_here, ranges[1:], x_steps[1:], w_steps[1:], lanes, values)

        low, high = ranges[0]
        if len(ranges) == 1 and isinstance(low, int) and isinstance(high, int) and high - low <= STRAIGHT:
            for i in range(low, high):
                sums = step(i, sums)
            return sums
        with f.loop(low, high, carry=sums) as loop:
            loop.next = step(loop.i, loop.carried)
        return loop.results

    def inputs(self, x: Reg, lanes: int) -> Reg:
        """`lanes` inputs at `x`, one output apart."""
        f, apart = self.f, self.f.mul(self.x_strides[-1], self.strides[-1])
        if lanes == 1 or (isinstance(apart, int) and apart == 1):
            return f.load(vector(self.type, lanes), x, self.size)
        out = Reg("poison", vector(self.type, lanes))
        for lane in range(lanes):
            out = f.insert(out, f.load(self.type, f.address(x, f.mul(lane, apart), self.size), self.size), lane)
        return out


def _emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    return _Plain(spec, symbol).emit()


CONV_PLAIN = KernelDef(
    name="conv_plain",
    doc="convolution of [N,C,*S] by [O,C/groups,*K]; params strides, pads, dilations, groups, body, outs",
    emit=_emit,
    tasks=_tasks,
    work=_work,
    may_reuse=_may_reuse,
)
