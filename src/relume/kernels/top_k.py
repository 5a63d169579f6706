"""`top_k`: the k best elements along the last axis of x [kept..., n], in order, with their indices.

Values and indices are [kept..., k]. A heap of the k best so far lives in the results, the worst of them on top; every
further element is compared with that one. In the end the heap is sorted in place (heapsort: Williams 1964, Floyd 1964).
So a row takes n + k log k steps where few elements get in, and n log k at worst, without any memory of its own.

The order is total: larger is better (smaller without `largest`), a NaN counts as larger than every number, and of
equals the lower index is better. The result depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.base.dtypes import i64
from relume.base.errors import CompileError
from relume.base.targets import Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.nest import Axis, Tasks, advance, estimate, merged, polled
from relume.program.types import ConstReader, KernelDef, KernelSpec

Entry = tuple[Reg, Reg]
"""A value and its index."""


def _plan(spec: KernelSpec) -> Tasks:
    """The rows. Strides: of x, the values, the indices."""
    x, *results = spec.operands
    strides = zip(x.strides[:-1], *(result.strides[:-1] for result in results))
    axes = merged([Axis(extent, each) for extent, each in zip(x.dims[:-1], strides)])
    return Tasks.of(axes or [Axis(1, (0, 0, 0))], estimate([x.dims[-1]]))


class _Emitter:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, symbol: str) -> None:
        self.spec, self.plan = spec, _plan(spec)
        x, values, indices = spec.operands
        if x.dtype.kind == "bool" or values.dtype is not x.dtype or indices.dtype is not i64:
            raise CompileError("top_k ranks numbers, and counts in i64", got=str(spec))
        self.f = f = Kernel(symbol, spec.extents)
        self.dtype = x.dtype
        self.sizes = [operand.dtype.bytes for operand in spec.operands]
        self.n, self.k = f.dim(x.dims[-1], f.extents), f.dim(values.dims[-1], f.extents)
        self.steps = [f.dim(operand.strides[-1], f.extents) for operand in spec.operands]
        width = f.call("i64", "llvm.ctlz.i64", ("i64", self.k), ("i1", "false"))
        self.levels = f.sub(64, width)
        """No way down the heap is longer."""

    def emit(self) -> str:
        f, dims_ = self.f, [dim for operand in self.spec.operands for dim in operand.dims]
        if not any(dim == 0 for dim in dims_):
            with f.when(f.compare("sgt", self.k, 0)):
                self.plan.emit(f, [f.operand(n) for n in range(3)], self.sizes, self._rows)
        return f.finish()

    def _rows(self, at: list[Reg], outer: list[Int], low: Int, high: Int) -> None:
        with self.plan.innermost(self.f, low, high) as loop:
            self._row(advance(self.f, at, self.sizes, self.plan.axes[-1], loop.i))

    def _row(self, at: Sequence[Reg]) -> None:
        f, k = self.f, self.k
        x, *heap = at
        with polled(f, 0, k, 1) as fill:
            self._put(heap, fill.i, (self._element(x, fill.i), Reg(str(fill.i), "i64")))
        half = f.div(k, 2)
        with polled(f, 0, half, 32) as build:
            start = f.sub(f.sub(half, 1), build.i)
            self._sift(heap, start, k, self._get(heap, start))
        with polled(f, k, self.n, 1) as rest:
            entry = self._element(x, rest.i), Reg(str(rest.i), "i64")
            with f.when(self._better(entry, self._get(heap, 0))):
                self._sift(heap, 0, k, entry)
        with polled(f, 1, k, 32) as order:
            last = f.sub(k, order.i)
            worst, moved = self._get(heap, 0), self._get(heap, last)
            self._put(heap, last, worst)
            self._sift(heap, 0, last, moved)

    def _sift(self, heap: Sequence[Reg], start: Int, size: Int, entry: Entry) -> None:
        """Puts `entry` at `start` and moves it down, until what is below it is better: `size` entries are a heap."""
        f = self.f
        with f.loop(0, self.levels, carry=[Reg(str(start), "i64")]) as level:
            (place,) = level.carried
            left = f.add(f.mul(place, 2), 1)
            # Both are read inside the heap, also where there is no such child.
            end = f.sub(size, 1)
            one, two = f.min(left, end), f.min(f.add(left, 1), end)
            first, second = self._get(heap, one), self._get(heap, two)
            lower = self._better(first, second)
            child = self._choose(lower, second, first)
            # A child that is not there is not worse than what it would be below.
            down = f.binary("and", f.compare("slt", left, size), self._better(entry, child))
            self._put(heap, place, self._choose(down, child, entry))
            below = f.select(lower, Reg(str(two), "i64"), Reg(str(one), "i64"))
            level.next = [f.select(down, below, place)]
        self._put(heap, level.results[0], entry)

    def _choose(self, condition: Reg, a: Entry, b: Entry) -> Entry:
        return self.f.select(condition, a[0], b[0]), self.f.select(condition, a[1], b[1])

    def _better(self, a: Entry, b: Entry) -> Reg:
        f = self.f
        high, low = (a, b) if self.spec["largest"] else (b, a)
        equal_first = f.binary(
            "and", f.binary("xor", self._above(low[0], high[0]), Reg("true", "i1")), f.compare("slt", a[1], b[1])
        )
        return f.binary("or", self._above(high[0], low[0]), equal_first)

    def _above(self, a: Reg, b: Reg) -> Reg:
        """a > b, or a is NaN and b is not."""
        f = self.f

        def test(op: str, one: Reg, other: Reg) -> Reg:
            return elementwise.emit_step(f, op, [one, other], {}, dtypes.bool_, [self.dtype, self.dtype])

        larger = test("greater", a, b)
        if not self.dtype.is_float:
            return larger
        only_a = f.binary("and", f.binary("xor", test("equal", a, a), Reg("true", "i1")), test("equal", b, b))
        return f.binary("or", larger, only_a)

    def _element(self, x: Reg, i: Int) -> Reg:
        return elementwise.load(self.f, self.dtype, self.f.address(x, self.f.mul(i, self.steps[0]), self.sizes[0]))

    def _places(self, heap: Sequence[Reg], i: Int) -> list[Reg]:
        f = self.f
        return [f.address(at, f.mul(i, step), size) for at, step, size in zip(heap, self.steps[1:], self.sizes[1:])]

    def _get(self, heap: Sequence[Reg], i: Int) -> Entry:
        value, index = self._places(heap, i)
        return elementwise.load(self.f, self.dtype, value), self.f.load("i64", index, 8)

    def _put(self, heap: Sequence[Reg], i: Int, entry: Entry) -> None:
        value, index = self._places(heap, i)
        elementwise.store(self.f, self.dtype, entry[0], value)
        self.f.store(entry[1], index, 8)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    return _Emitter(spec, symbol).emit()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of rows."""
    return _plan(spec).count


def work(spec: KernelSpec) -> Dim:
    """Four operations per element."""
    return dims.product(spec.operands[0].dims) * 4


TOP_K = KernelDef(
    "top_k", "The k largest or smallest along the last axis, in order, with their indices.", emit, tasks, work
)
