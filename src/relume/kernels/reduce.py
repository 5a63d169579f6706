"""`reduce`: sum, product, mean, max, min over the trailing axes of a view [kept..., reduced...].

One order for all layouts, targets and splits: element i of the flattened reduced axes goes, in ascending i, to
accumulator i % 16; the sixteen are then combined 8 + 8, 4 + 4, 2 + 2, 1 + 1. Accumulators start from the neutral
element (0, 1, -inf or the minimum of the type, inf or the maximum), which is also the result over nothing; the mean
divides the sum by the count, so over nothing it is NaN. Integers wrap; max and min propagate NaN.

Three forms give that order: rows that are contiguous keep the sixteen accumulators in one vector; where a kept axis is
contiguous instead, sixteen outputs are made at once, each accumulator being a vector across them; anything else goes
element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Function, Int, Kernel, Reg, vector
from relume.kernels.nest import Axis, Tasks, advance, estimate, fold, is_empty, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec

Combine = Callable[[Function, DType, Reg, Reg], Reg]


@dataclass(frozen=True)
class Outputs:
    """The kept axes as tasks and the reduced ones as loops: shared by all kernels that make one output of a run of
    elements."""

    tasks: Tasks
    reduced: tuple[Axis, ...]
    across: bool
    """Whether the innermost kept axis is contiguous in operand and result, so that 16 outputs are made at once."""

    @property
    def is_row(self) -> bool:
        """Whether the reduced elements of one output are contiguous."""
        return not self.reduced or (len(self.reduced) == 1 and self.reduced[0].strides == (1,))

    @staticmethod
    def of(spec: KernelSpec, rows: bool = True) -> Outputs:
        """For operands x [kept..., reduced...] and y [kept...]. `rows`: contiguous rows have a form of their own."""
        x, y = spec.operands[0], spec.operands[-1]
        kept = spec["kept"]
        assert isinstance(kept, int)
        reduced = tuple(merged([Axis(e, (s,)) for e, s in zip(x.dims[kept:], x.strides[kept:])]))
        axes = merged([Axis(e, (s, t)) for e, s, t in zip(x.dims[:kept], x.strides[:kept], y.strides)])
        unit = estimate([axis.extent for axis in reduced])
        plain = Outputs(Tasks.of(axes or [Axis(1, (1, 1))], unit), reduced, False)
        wide = [axis for axis in axes if axis.strides == (1, 1) and estimate([axis.extent]) >= BLOCK]
        if (rows and plain.is_row) or not wide:
            return plain
        outer = [axis for axis in axes if axis is not wide[-1]]
        return Outputs(Tasks.of([*outer, wide[-1]], unit, BLOCK), reduced, True)

    def emit(self, f: Kernel, spec: KernelSpec, output: Callable[[Reg, Reg, int], None]) -> None:
        """Lays out the loops; `output(x, y, count)` makes `count` (16 or 1) neighbouring outputs."""
        sizes = [spec.operands[0].dtype.bytes, spec.operands[-1].dtype.bytes]

        def outputs(at: list[Reg], low: Int, high: Int, count: int) -> None:
            if is_empty(low, high):
                return
            with self.tasks.innermost(f, low, high, count) as loop:
                x, y = advance(f, at, sizes, self.tasks.axes[-1], loop.i)
                output(x, y, count)

        def leaf(at: list[Reg], indices: list[Int], low: Int, high: Int) -> None:
            middle = f.sub(high, f.rem(f.sub(high, low), BLOCK)) if self.across else low
            outputs(at, low, middle, BLOCK)
            outputs(at, middle, high, 1)

        self.tasks.emit(f, [f.operand(0), f.operand(len(spec.operands) - 1)], sizes, leaf)


def _add(f: Function, dtype: DType, a: Reg, b: Reg) -> Reg:
    return f.binary("fadd" if dtype.is_float else "add", a, b)


def _mul(f: Function, dtype: DType, a: Reg, b: Reg) -> Reg:
    return f.binary("fmul" if dtype.is_float else "mul", a, b)


COMBINE: dict[str, Combine] = {
    "sum": _add,
    "mean": _add,
    "prod": _mul,
    "max": elementwise.maximum,
    "min": elementwise.minimum,
}
"""How each kind takes two elements, or vectors of them, to one."""


def neutral(f: Function, kind: str, dtype: DType, count: int) -> Reg:
    """What changes nothing: 0 for sums, 1 for products, for max (min) the least (greatest) value of the type."""
    if kind in ("sum", "mean", "prod"):
        return elementwise.constant(f, int(kind == "prod"), dtype, count)
    if dtype.is_float:
        return elementwise.constant(f, float("-inf") if kind == "max" else float("inf"), dtype, count)
    bits = dtype.bytes * 8 - dtype.is_signed
    least = -(1 << bits) if dtype.is_signed else 0
    return f.int_constant(least if kind == "max" else (1 << bits) - 1, elementwise.register_type(dtype, count))


def tree(f: Function, kind: str, dtype: DType, lanes: list[Reg]) -> Reg:
    """Combines sixteen accumulators, given one by one or as one vector, in the one fixed order."""
    combine, half = COMBINE[kind], BLOCK // 2
    while half:
        if len(lanes) > 1:
            lanes = [combine(f, dtype, lanes[n], lanes[n + half]) for n in range(half)]
        elif half > 1:
            low, high = (f.shuffle(lanes[0], lanes[0], range(start, start + half)) for start in (0, half))
            lanes = [combine(f, dtype, low, high)]
        else:
            lanes = [combine(f, dtype, f.extract(lanes[0], 0), f.extract(lanes[0], 1))]
        half //= 2
    return lanes[0]


def count_of(f: Function, elements: Int, dtype: DType, count: int = 1) -> Reg:
    """The number of elements in all of `count` lanes: what a mean divides by."""
    if isinstance(elements, int):
        return elementwise.constant(f, elements, dtype, count)
    return f.splat(f.convert("sitofp", elements, elementwise.register_type(dtype)), count)


def want(kind: str, dtype: DType) -> None:
    """Raises `CompileError` where there is no code for this kind of this element type."""
    if kind not in COMBINE or dtype.name in ("bool", "f16", "bf16"):
        raise CompileError("a reduction without code", expected=", ".join(COMBINE), got=f"{kind} of {dtype}")
    if kind == "mean" and not dtype.is_float:
        raise CompileError("the mean is for floats", got=dtype, hint="cast first")


class _Emitter:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, symbol: str) -> None:
        self.kind, self.dtype = str(spec["kind"]), spec.operands[0].dtype
        want(self.kind, self.dtype)
        self.spec, self.outputs = spec, Outputs.of(spec)
        self.f = Kernel(symbol, spec.extents)
        self.size = self.dtype.bytes
        kind = elementwise.register_type(self.dtype)
        self.sums = self.f.scratch(vector(kind, BLOCK), BLOCK if self.outputs.across else 1)
        self.elements = self.f.dim(dims.product(axis.extent for axis in self.outputs.reduced), self.f.extents)

    def emit(self) -> str:
        if not any(extent == 0 for extent in self.spec.operands[-1].dims):
            self.outputs.emit(self.f, self.spec, self._output)
        return self.f.finish()

    def _output(self, x: Reg, y: Reg, count: int) -> None:
        lanes = self._row(x) if self.outputs.is_row else self._anyhow(x, count)
        result = tree(self.f, self.kind, self.dtype, lanes)
        if self.kind == "mean":
            result = self.f.binary("fdiv", result, count_of(self.f, self.elements, self.dtype, count))
        self.f.store(result, y, self.size)

    def _combine(self, a: Reg, b: Reg) -> Reg:
        return COMBINE[self.kind](self.f, self.dtype, a, b)

    def _row(self, x: Reg) -> list[Reg]:
        """The sixteen accumulators over one contiguous row, as one vector."""
        f, n = self.f, self.elements
        rest = f.rem(n, BLOCK)
        whole = f.sub(n, rest)
        wide = elementwise.register_type(self.dtype, BLOCK)
        sums = neutral(f, self.kind, self.dtype, BLOCK)
        if not is_empty(0, whole):
            with polled(f, 0, whole, 1, BLOCK, carry=[sums]) as loop:
                loop.next = [self._combine(loop.carried[0], f.load(wide, f.address(x, loop.i, self.size), self.size))]
            sums = loop.results[0]
        if isinstance(rest, int) and rest == 0:
            return [sums]
        f.store(sums, self.sums, 64)
        with f.loop(0, rest) as tail:
            self._into(tail.i, f.address(x, f.add(whole, tail.i), self.size), 1)
        return [f.load(wide, self.sums, 64)]

    def _anyhow(self, x: Reg, count: int) -> list[Reg]:
        """The sixteen accumulators of each of `count` neighbouring outputs, in memory meanwhile."""
        f = self.f
        empty = neutral(f, self.kind, self.dtype, count)
        places = [f.address(self.sums, lane * count, self.size) for lane in range(BLOCK)]
        for place in places:
            f.store(empty, place, self.size)

        *outer, inner = self.outputs.reduced
        extent = f.dim(inner.extent, f.extents)

        def add(pointer: Reg, index: Int, carried: list[Reg]) -> list[Reg]:
            self._along(pointer, inner, f.mul(index, extent), count)
            return carried

        fold(f, outer, x, self.size, [], add)
        return [f.load(empty.type, place, self.size) for place in places]

    def _along(self, pointer: Reg, axis: Axis, before: Int, count: int) -> None:
        """Combines what lies along one axis, `before` elements having come before it: one by one up to the first
        accumulator, then all sixteen at once, and the rest one by one."""
        f = self.f
        extent, (stride,) = f.dim(axis.extent, f.extents), (f.dim(stride, f.extents) for stride in axis.strides)
        in_step = before == 0 or (isinstance(extent, int) and extent % BLOCK == 0)
        start: Int = 0 if in_step else f.min(extent, f.rem(f.sub(BLOCK, f.rem(before, BLOCK)), BLOCK))
        stop = f.add(start, f.mul(f.div(f.sub(extent, start), BLOCK), BLOCK))

        def one(i: Int, lane: Int) -> None:
            self._into(lane, f.address(pointer, f.mul(i, stride), self.size), count)

        def singly(low: Int, high: Int) -> None:
            if not is_empty(low, high):
                with f.loop(low, high) as loop:
                    one(loop.i, f.rem(f.add(before, loop.i), BLOCK))

        singly(0, start)
        self._sixteens(pointer, stride, start, stop, count, one)
        singly(stop, extent)

    def _sixteens(
        self, pointer: Reg, stride: Int, start: Int, stop: Int, count: int, one: Callable[[Int, Int], None]
    ) -> None:
        """Element `start`, of the first accumulator, to `stop`, a multiple of sixteen behind it."""
        f = self.f
        if is_empty(start, stop):
            return
        if count > 1 or stride != 1:
            with polled(f, start, stop, count, BLOCK) as loop:
                for lane in range(BLOCK):
                    one(f.add(loop.i, lane), lane)
            return
        wide = elementwise.register_type(self.dtype, BLOCK)
        with polled(f, start, stop, 1, BLOCK, carry=[f.load(wide, self.sums, self.size)]) as loop:
            loop.next = [self._combine(loop.carried[0], f.load(wide, f.address(pointer, loop.i, self.size), self.size))]
        f.store(loop.results[0], self.sums, self.size)

    def _into(self, lane: Int, pointer: Reg, count: int) -> None:
        """Combines the element(s) at `pointer` into the accumulator of `lane`."""
        f, type_ = self.f, elementwise.register_type(self.dtype, count)
        place = f.address(self.sums, f.mul(lane, count), self.size)
        f.store(self._combine(f.load(type_, place, self.size), f.load(type_, pointer, self.size)), place, self.size)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    return _Emitter(spec, symbol).emit()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of outputs."""
    return Outputs.of(spec).tasks.count


def work(spec: KernelSpec) -> Dim:
    """One operation per element read."""
    return dims.product(spec.operands[0].dims)


REDUCE = KernelDef(
    "reduce",
    "Sum, product, mean, max or min over the trailing axes, by sixteen accumulators and one fixed tree.",
    emit,
    tasks,
    work,
)
