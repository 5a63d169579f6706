"""`window`: the maximum, sum or mean under windows that slide over the spatial axes of [N, C, *spatial] (plain) or
[N, CB, *spatial, 16] (blocked: sixteen channels at once).

Each window is clamped to the data beforehand, so padding is never read. Taps are met in ascending order and summed one
after the other. The maximum propagates NaN and over nothing is -inf (the minimum of an integer type); the mean divides
by the number of taps on data, or on data and padding with `count_pads`; over nothing it is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.argmax import exceeds
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.nest import Axis, Tasks, advance, estimate
from relume.kernels.reduce import neutral
from relume.program.types import ConstReader, KernelDef, KernelSpec

STRAIGHT = 16
"""Taps of the largest window that is laid out without loops."""

_Taps = tuple[Int, Int, Int]
"""Along one axis: where the window starts, its first tap on data, one past its last."""


class _Geometry:
    """The parameters of one call. Pads are all befores, and then, where given, all afters."""

    def __init__(self, spec: KernelSpec) -> None:
        self.window = cast("tuple[int, ...]", spec["window"])
        self.rank = len(self.window)
        self.strides = cast("tuple[int, ...]", spec["strides"])
        self.dilations = cast("tuple[int, ...]", spec["dilations"])
        pads = cast("tuple[int, ...]", spec["pads"])
        self.before, self.after = pads[: self.rank], pads[self.rank :]
        self.blocked, self.count_pads = bool(spec["blocked"]), bool(spec["count_pads"])
        self.kind = str(spec["kind"])
        self.column_major = self.kind == "argmax" and bool(spec["column_major"])
        x, y = spec.operands[0], spec.operands[-1]
        self.dtype = x.dtype
        if self.kind not in ("max", "avg", "sum", "argmax") or self.dtype.name in ("bool", "f16", "bf16"):
            got = f"{self.kind} of {x.dtype}"
            raise CompileError("a window without code", expected="max, argmax, sum or avg of numbers", got=got)
        if self.kind in ("avg", "sum") and not self.dtype.is_float:
            raise CompileError("the mean and the sum under a window are for floats", got=self.dtype, hint="cast first")
        self.planes = y.dims[1]
        if self.count_pads and len(self.after) != self.rank and self.kind == "avg":
            raise CompileError("counting padding needs all pads", expected=2 * self.rank, got=len(pads))
        lanes = (x.strides[-1], y.strides[-1]) if self.blocked else (1, 1)
        if lanes != (1, 1) and not any(extent == 0 for extent in y.dims):
            raise CompileError("blocked channels are contiguous", expected=(1, 1), got=lanes)
        spatial = slice(2, 2 + self.rank)
        self.data, self.x_strides = x.dims[spatial], x.strides[spatial]
        self.lanes = BLOCK if self.blocked else 1
        planes = [Axis(e, (s, t)) for e, s, t in zip(y.dims[:2], x.strides, y.strides)]
        places = [Axis(e, (0, s)) for e, s in zip(y.dims[spatial], y.strides[spatial])]
        # Where x stands depends on the window as well: along the spatial axes only the result's pointer moves.
        self.tasks = Tasks.of([*planes, *places], estimate(self.window) * self.lanes)


def _spatial_tap(f: Kernel, g: _Geometry, axis: int, place: Int) -> _Taps:
    """The taps on data along one axis of the window at `place`."""
    start = f.sub(f.mul(place, g.strides[axis]), g.before[axis])
    low = _taps_before(f, g, axis, f.sub(0, start))
    high = _taps_before(f, g, axis, f.sub(f.dim(g.data[axis], f.extents), start))
    return start, low, high


def _taps_before(f: Kernel, g: _Geometry, axis: int, distance: Int) -> Int:
    """How many taps of a window lie less than `distance` behind its start."""
    size = g.dilations[axis]
    return f.min(f.div(f.add(f.max(distance, 0), size - 1), size), g.window[axis])


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    g = _Geometry(spec)
    f = Kernel(symbol, spec.extents)
    if any(extent == 0 for extent in spec.operands[-1].dims):
        return f.finish()
    size, out = g.dtype.bytes, spec.operands[-1].dtype.bytes

    def leaf(at: list[Reg], indices: list[Int], low: Int, high: Int) -> None:
        with g.tasks.innermost(f, low, high) as loop:
            x, y = advance(f, at, [size, out], g.tasks.axes[-1], loop.i)
            place = [*indices[2:], loop.i]
            if g.kind == "argmax":
                plane = f.add(f.mul(indices[0], f.dim(g.planes, f.extents)), indices[1])
                _where(f, g, x, y, plane, [_spatial_tap(f, g, axis, index) for axis, index in enumerate(place)])
            else:
                _one(f, g, x, y, place)

    g.tasks.emit(f, [f.operand(0), f.operand(len(spec.operands) - 1)], [size, out], leaf)
    return f.finish()


def _one(f: Kernel, g: _Geometry, x: Reg, y: Reg, place: Sequence[Int]) -> None:
    """One window: laid out straight where it is small and wholly on data, else by loops over the taps on data."""
    taps = [_spatial_tap(f, g, axis, index) for axis, index in enumerate(place)]
    if estimate(g.window) > STRAIGHT:
        _under(f, g, x, y, taps)
        return
    cut = [f.compare("ne", f.sub(high, low), size) for (_, low, high), size in zip(taps, g.window)]
    whole = [(start, 0, size) for (start, _, _), size in zip(taps, g.window)]
    somewhere = cut[0]
    for flag in cut[1:]:
        somewhere = f.binary("or", somewhere, flag)
    with f.when(somewhere):
        _under(f, g, x, y, taps)
    with f.when(f.binary("xor", somewhere, Reg("true", "i1"))):
        _under(f, g, x, y, whole)


def _under(f: Kernel, g: _Geometry, x: Reg, y: Reg, taps: Sequence[_Taps]) -> None:
    """Combines the taps of one window, per axis (start, first, past the last), and stores."""
    size = g.dtype.bytes
    strides = [f.dim(stride, f.extents) for stride in g.x_strides]
    empty = neutral(f, "max" if g.kind == "max" else "sum", g.dtype, g.lanes)

    def along(axis: int, pointer: Reg, carried: Reg) -> Reg:
        if axis == g.rank:
            value = f.load(empty.type, pointer, size)
            if g.kind == "max":
                return elementwise.maximum(f, g.dtype, carried, value)
            return f.binary("fadd", carried, value)
        start, low, high = taps[axis]
        first = f.address(pointer, f.mul(start, strides[axis]), size)
        step = f.mul(strides[axis], g.dilations[axis])
        if isinstance(low, int) and isinstance(high, int):
            for tap in range(low, high):
                carried = along(axis + 1, f.address(first, f.mul(tap, step), size), carried)
            return carried
        with f.loop(low, high, carry=[carried]) as loop:
            loop.next = [along(axis + 1, f.address(first, f.mul(loop.i, step), size), loop.carried[0])]
        return loop.results[0]

    value = along(0, x, empty)
    if g.kind == "avg":
        value = f.binary("fdiv", value, _count(f, g, taps))
    f.store(value, y, size)


def _where(f: Kernel, g: _Geometry, x: Reg, y: Reg, plane: Int, taps: Sequence[_Taps]) -> None:
    """Stores the place of the largest element of one window, in the tensor flattened; -1 for a window on nothing."""
    size = g.dtype.bytes
    strides = [f.dim(stride, f.extents) for stride in g.x_strides]
    # How far apart in the plane neighbours along each axis are.
    inside = [
        f.dim(dims.product(g.data[:axis] if g.column_major else g.data[axis + 1 :]), f.extents)
        for axis in range(g.rank)
    ]

    def along(axis: int, pointer: Reg, position: Int, carried: list[Reg]) -> list[Reg]:
        best, where = carried
        if axis == g.rank:
            value = f.load(best.type, pointer, size)
            larger = f.binary("or", exceeds(f, g.dtype, value, best), f.compare("slt", where, 0))
            here = f.int_constant(position, "i64") if isinstance(position, int) else position
            return [f.select(larger, value, best), f.select(larger, here, where)]
        start, low, high = taps[axis]
        with f.loop(low, high, carry=carried) as loop:
            place = f.add(start, f.mul(loop.i, g.dilations[axis]))
            there = f.address(pointer, f.mul(place, strides[axis]), size)
            loop.next = along(axis + 1, there, f.add(position, f.mul(place, inside[axis])), loop.carried)
        return loop.results

    first = f.mul(plane, f.dim(dims.product(g.data), f.extents))
    empty = [neutral(f, "max", g.dtype, 1), f.int_constant(-1, "i64")]
    f.store(along(0, x, first, empty)[1], y, 8)


def _count(f: Kernel, g: _Geometry, taps: Sequence[_Taps]) -> Reg:
    """How many elements the mean is over, as a float in every lane."""
    total: Int = 1
    for axis, (start, low, high) in enumerate(taps):
        if g.count_pads:
            # A window starts in the padding before the data or later, so only the far end can cut it off.
            end = f.add(f.dim(g.data[axis], f.extents), g.after[axis])
            low, high = 0, _taps_before(f, g, axis, f.sub(end, start))
        total = f.mul(total, f.max(f.sub(high, low), 0))
    if isinstance(total, int):
        return elementwise.constant(f, total, g.dtype, g.lanes)
    return f.splat(f.convert("sitofp", total, elementwise.register_type(g.dtype)), g.lanes)


def tasks(spec: KernelSpec) -> Dim:
    """Planes, or rows of large planes."""
    return _Geometry(spec).tasks.count


def work(spec: KernelSpec) -> Dim:
    """One operation per tap."""
    return dims.product(spec.operands[-1].dims) * estimate(_Geometry(spec).window)


WINDOW = KernelDef(
    "window",
    "Max, argmax, sum or average pooling, plain or with blocked channels; padding is never read.",
    emit,
    tasks,
    work,
)
