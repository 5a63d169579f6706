"""`rows`: element-wise steps with reductions over the trailing axes among them, in one go for each row.

Softmax, layer norm, RMS norm, and what stands before and behind them (masks, scales, residuals) are such bodies. A row
is walked as often as reductions stand one behind the other (`stages.py`), from memory the first time and from the cache
the others. Some rows go side by side, so that their chains of additions overlap.

Reductions add up as `reduce` does, with sixteen accumulators and one fixed tree, so a body in this kernel has the bits
of its steps one by one. What is the same along a row is computed once, on scalars. The last elements of a row, fewer
than sixteen, go through the same code with the other lanes masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise, reduce
from relume.kernels.ir import Int, Kernel, Reg, vector
from relume.kernels.map import congruent
from relume.kernels.nest import Axis, Tasks, advance, estimate, is_empty, merged, polled
from relume.kernels.registers import register_type
from relume.kernels.stages import REDUCTIONS, Stages, Walk, cost
from relume.program.types import ConstReader, KernelDef, KernelSpec, Reuse

ABREAST = 2
"""Rows that are walked side by side."""

GUESS = 512
"""What a row of run-time extent is taken for when rows become tasks: few enough of them to poll in between only."""


@dataclass(frozen=True)
class _Plan:
    """The walks, the axes outside the row as tasks, the extent of the row, and how many rows go abreast."""

    stages: Stages
    tasks: Tasks
    length: Dim
    abreast: int

    @staticmethod
    def of(spec: KernelSpec) -> _Plan:
        """Raises `CompileError` where an operand's row is no run of elements."""
        stages = Stages(spec)
        length = stages.length
        for operand in spec.operands:
            by_row = len(operand.dims) < len(spec.operands[0].dims) or operand.dims[-1] in (0, 1)
            if not by_row and operand.strides[-1] != 1:
                raise CompileError("a row of `rows` is no run of elements", expected="a stride of 1", got=operand)
        kept = spec.operands[0].dims[:-1]
        axes = merged([_axis(spec, axis, extent) for axis, extent in enumerate(kept)])
        axes = axes or [Axis(1, (0,) * len(spec.operands))]
        abreast = ABREAST if estimate([axes[-1].extent]) >= ABREAST else 1
        elements = length if isinstance(length, int) else GUESS
        return _Plan(stages, Tasks.of(axes, elements, abreast), length, abreast)


def _axis(spec: KernelSpec, axis: int, extent: Dim) -> Axis:
    """One axis outside the row, of all operands."""
    return Axis(extent, tuple(operand.strides[axis] for operand in spec.operands))


@dataclass
class _Row:
    """One of the rows that are walked abreast."""

    pointers: list[Reg]
    scalars: dict[int, Reg] = field(default_factory=dict)
    """The values that are the same all along the row, by number."""
    tail: Reg | None = None
    """The value that is kept between walks, of the last elements."""


class _Emitter:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, symbol: str) -> None:
        self.spec, self.plan = spec, _Plan.of(spec)
        self.stages = self.plan.stages
        self.f = Kernel(symbol, spec.extents)
        f = self.f
        self.operand_types = [operand.dtype for operand in spec.operands]
        self.sizes = [dtype.bytes for dtype in self.operand_types]
        steps = self.stages.body
        self.types = [self.operand_types[n] for n in self.stages.inputs] + [dtypes.BY_NAME[step[3]] for step in steps]
        for op, args, _, _ in steps:
            if op in REDUCTIONS:
                reduce.want(REDUCTIONS[op], self.types[args[0]])
        self.length = f.dim(self.plan.length, f.extents)
        self.rest = f.rem(self.length, BLOCK)
        self.tails = _Tails(f, self.rest, self.operand_types) if self.rest != 0 else None

    def emit(self) -> str:
        f = self.f
        if all(0 in self.spec.operands[n].dims for n in self.stages.outs):
            return f.finish()
        pointers = [f.operand(n) for n in range(len(self.spec.operands))]
        self.plan.tasks.emit(f, pointers, self.sizes, lambda at, _, low, high: self._rows(at, low, high))
        return f.finish()

    def _rows(self, at: list[Reg], low: Int, high: Int) -> None:
        """The rows from `low` to `high` of the innermost axis outside."""
        f, axis, abreast = self.f, self.plan.tasks.axes[-1], self.plan.abreast
        middle = f.sub(high, f.rem(f.sub(high, low), abreast))
        for begin, end, count in ((low, middle, abreast), (middle, high, 1)):
            if is_empty(begin, end):
                continue
            with self.plan.tasks.innermost(f, begin, end, count) as loop:
                first = advance(f, at, self.sizes, axis, loop.i)
                self._abreast([_Row(advance(f, first, self.sizes, axis, n)) for n in range(count)])

    # -- one group of rows --

    def _abreast(self, rows: list[_Row]) -> None:
        f, stages = self.f, self.stages
        for row in rows:
            for number, n in enumerate(stages.inputs):
                if not stages.along[number]:
                    row.scalars[number] = elementwise.load(f, self.operand_types[n], row.pointers[n])
            self._settle(row, 0)
        for index, walk in enumerate(stages.walks):
            sums = self._walk(walk, index == len(stages.walks) - 1, rows)
            for n, row in enumerate(rows):
                for place, value in enumerate(walk.reductions):
                    row.scalars[value] = self._reduced(value, sums[n * len(walk.reductions) + place])
                self._settle(row, index + 1)
        for n, value in stages.outs.items():
            if n not in stages.results:
                for row in rows:
                    elementwise.store(f, self.operand_types[n], row.scalars[value], row.pointers[n])

    def _settle(self, row: _Row, depth: int) -> None:
        """Computes what is the same along the row and can be known by now."""
        stages = self.stages
        for number, (op, args, attrs, _) in enumerate(stages.body, len(stages.inputs)):
            if stages.depth[number] == depth and not stages.along[number] and op not in REDUCTIONS:
                values = [row.scalars[arg] for arg in args]
                kinds = [self.types[arg] for arg in args]
                row.scalars[number] = elementwise.emit_step(self.f, op, values, dict(attrs), self.types[number], kinds)

    def _kind(self, reduction: int) -> tuple[str, DType, int]:
        """What a reduction does, the type of its elements, and their value."""
        step = self.stages.step(reduction)
        assert step is not None
        return REDUCTIONS[step[0]], self.types[reduction], step[1][0]

    def _reduced(self, value: int, lanes: Reg) -> Reg:
        kind, dtype, _ = self._kind(value)
        total = reduce.tree(self.f, kind, dtype, [lanes])
        return self.f.binary("fdiv", total, reduce.count_of(self.f, self.length, dtype)) if kind == "mean" else total

    # -- one walk --

    def _walk(self, walk: Walk, is_last: bool, rows: list[_Row]) -> list[Reg]:
        """Walks all rows; gives the accumulators of each row's reductions."""
        f = self.f
        results = self.stages.results if is_last else {}
        wanted = [self._kind(reduction)[2] for reduction in walk.reductions]
        args = [arg for value in walk.values for arg in self._step(value)[1]]
        spread = [self._spread(row, [*args, *wanted, *results.values()]) for row in rows]
        sums = [
            reduce.neutral(f, kind, dtype, BLOCK) for _ in rows for kind, dtype, _ in map(self._kind, walk.reductions)
        ]
        whole = f.sub(self.length, self.rest)
        point = _Point(self, walk, results)
        if not is_empty(0, whole):
            with polled(f, 0, whole, len(rows), BLOCK, carry=sums, at_once=False) as loop:
                loop.next = point.of(rows, spread, loop.i, loop.carried, None)
            sums = loop.results
        if self.tails is not None:
            # What is kept of the last elements stays in registers: no load waits for a masked store.
            kept = [f.zero(register_type(self.types[walk.keeps], BLOCK)) for _ in rows if walk.keeps is not None]
            with f.loop(0, f.min(self.rest, 1), carry=[*sums, *kept]) as once:
                after = point.of(rows, spread, whole, once.carried[: len(sums)], self.tails)
                once.next = [*after, *(row.tail for row in rows if kept and row.tail is not None)]
            sums = once.results[: len(sums)]
            for row, tail in zip(rows, once.results[len(sums) :]):
                row.tail = tail
        return sums

    def _step(self, value: int) -> elementwise.Step:
        step = self.stages.step(value)
        assert step is not None
        return step

    def _spread(self, row: _Row, values: Sequence[int]) -> dict[int, Reg]:
        """What is the same along the row, in all lanes."""
        out: dict[int, Reg] = {}
        for value in dict.fromkeys(values):
            if self.stages.along[value]:
                continue
            step = self.stages.step(value)
            if step is not None and step[0] == "constant":
                out[value] = elementwise.constant(self.f, dict(step[2])["value"], self.types[value], BLOCK)
            else:
                out[value] = self.f.splat(row.scalars[value], BLOCK)
        return out

    # -- memory --

    def load(self, n: int, row: _Row, index: Int, tails: _Tails | None = None) -> Reg:
        """Sixteen elements of an operand's row, or the last ones; the lanes behind hold anything."""
        at = self.f.address(row.pointers[n], index, self.sizes[n])
        dtype = self.operand_types[n]
        return elementwise.load(self.f, dtype, at, BLOCK) if tails is None else tails.load(dtype, at)

    def store(self, n: int, row: _Row, index: Int, value: Reg, tails: _Tails | None = None) -> None:
        """Writes sixteen elements, or the last ones."""
        at = self.f.address(row.pointers[n], index, self.sizes[n])
        if tails is None:
            elementwise.store(self.f, self.operand_types[n], value, at)
        else:
            tails.store(self.operand_types[n], value, at)


@dataclass(frozen=True)
class _Point:
    """What a walk does with sixteen elements of each row."""

    emitter: _Emitter
    walk: Walk
    results: dict[int, int]

    def of(
        self, rows: list[_Row], spread: list[dict[int, Reg]], index: Int, sums: list[Reg], tails: _Tails | None
    ) -> list[Reg]:
        """Gives the accumulators behind it."""
        count = len(self.walk.reductions)
        out: list[Reg] = []
        for n, row in enumerate(rows):
            out += self._row(row, spread[n], index, sums[n * count : (n + 1) * count], tails)
        return out

    def _row(self, row: _Row, spread: dict[int, Reg], index: Int, sums: list[Reg], tails: _Tails | None) -> list[Reg]:
        e, walk, keeper = self.emitter, self.walk, self.emitter.stages.keeper
        values = dict(spread)
        for number in walk.reads:
            values[number] = e.load(e.stages.inputs[number], row, index, tails)
        if walk.held is not None and keeper is not None:
            values[walk.held] = row.tail if tails is not None and row.tail is not None else e.load(keeper, row, index)
        for value in walk.values:
            op, args, attrs, _ = e._step(value)
            kinds = [e.types[arg] for arg in args]
            values[value] = elementwise.emit_step(
                e.f, op, [values[arg] for arg in args], dict(attrs), e.types[value], kinds
            )
        after = [self._added(reduction, values, old, tails) for reduction, old in zip(walk.reductions, sums)]
        if walk.keeps is not None and keeper is not None:
            if tails is None:
                e.store(keeper, row, index, values[walk.keeps])
            else:
                row.tail = values[walk.keeps]
        for n, value in self.results.items():
            e.store(n, row, index, values[value], tails)
        return after

    def _added(self, reduction: int, values: dict[int, Reg], old: Reg, tails: _Tails | None) -> Reg:
        kind, dtype, value = self.emitter._kind(reduction)
        new = reduce.COMBINE[kind](self.emitter.f, dtype, old, values[value])
        return new if tails is None else self.emitter.f.select(tails.mask, new, old)


class _Tails:
    """The last elements of a row, fewer than sixteen, in vectors whose other lanes hold anything."""

    def __init__(self, f: Kernel, rest: Int, types: Sequence[DType]) -> None:
        self.f, self.rest = f, rest
        self.slots: dict[DType, Reg] = {}
        """Memory for the types that go lane by lane, in the entry block."""
        if isinstance(rest, int):
            self.mask = Reg(f"<{', '.join(f'i1 {str(n < rest).lower()}' for n in range(BLOCK))}>", f"<{BLOCK} x i1>")
            return
        numbers = Reg(f"<{', '.join(f'i32 {n}' for n in range(BLOCK))}>", f"<{BLOCK} x i32>")
        self.mask = f.icompare("ult", numbers, f.splat(f.convert("trunc", rest, "i32"), BLOCK))
        for dtype in types:
            if not _is_masked(dtype) and dtype not in self.slots:
                kind = f"i{dtype.bytes * 8}"
                self.slots[dtype] = f.scratch(kind, BLOCK)
                f.store(f.zero(vector(kind, BLOCK)), self.slots[dtype], 16)

    def load(self, dtype: DType, at: Reg) -> Reg:
        """From neighbouring elements."""
        f = self.f
        if isinstance(self.rest, int):
            few = elementwise.load(f, dtype, at, self.rest)
            if self.rest == 1:
                return f.splat(few, BLOCK)
            return f.shuffle(few, few, [lane if lane < self.rest else 0 for lane in range(BLOCK)])
        if not _is_masked(dtype):
            self._copy(dtype, at, self.slots[dtype])
            return elementwise.load(f, dtype, self.slots[dtype], BLOCK)
        type_ = register_type(dtype, BLOCK)
        return f.call(
            type_,
            f"llvm.masked.load.{_suffix(dtype)}.p0",
            (f"ptr align {dtype.bytes}", at),
            (self.mask.type, self.mask),
            (type_, f.zero(type_)),
        )

    def store(self, dtype: DType, value: Reg, at: Reg) -> None:
        """To neighbouring elements."""
        f = self.f
        if isinstance(self.rest, int):
            few = f.extract(value, 0) if self.rest == 1 else f.shuffle(value, value, range(self.rest))
            elementwise.store(f, dtype, few, at)
        elif not _is_masked(dtype):
            elementwise.store(f, dtype, value, self.slots[dtype])
            self._copy(dtype, self.slots[dtype], at)
        else:
            name = f"llvm.masked.store.{_suffix(dtype)}.p0"
            where, mask = f"ptr align {dtype.bytes} {at}", f"{self.mask.type} {self.mask}"
            f.declare(f"declare void @{name}({value.type}, ptr, {self.mask.type})")
            f.line(f"call void @{name}({value.type} {value}, {where}, {mask})")

    def _copy(self, dtype: DType, source: Reg, target: Reg) -> None:
        """Copies the last elements, one by one."""
        f, kind = self.f, f"i{dtype.bytes * 8}"
        with f.loop(0, self.rest) as loop:
            one = f.load(kind, f.address(source, loop.i, dtype.bytes), dtype.bytes)
            f.store(one, f.address(target, loop.i, dtype.bytes), dtype.bytes)


def _is_masked(dtype: DType) -> bool:
    """Whether there are instructions that load and store some lanes of such elements."""
    return dtype.bytes in (4, 8)


def _suffix(dtype: DType) -> str:
    return f"v{BLOCK}{'f' if dtype.is_float else 'i'}{dtype.bytes * 8}"


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    return _Emitter(spec, symbol).emit()


def tasks(spec: KernelSpec) -> Dim:
    """Groups of rows."""
    return _Plan.of(spec).tasks.count


def work(spec: KernelSpec) -> Dim:
    """Elements times steps and operands."""
    steps = sum(cost(step) for step in Stages(spec).body)
    return dims.product((*spec.operands[0].dims[:-1], Stages(spec).length)) * (steps + len(spec.operands))


def may_reuse(spec: KernelSpec) -> Reuse:
    """A result along the row may sit on an input of the same strides and element size that no walk reads after one has
    begun to write the result. (A walk reads an element before it writes it.)"""
    stages = Stages(spec)
    return {
        out: tuple(
            n
            for n in stages.inputs
            if spec.operands[n].dims == spec.operands[out].dims
            and congruent(spec.operands[n], spec.operands[out])
            and stages.last_read(n) <= stages.first_write(out)
        )
        for out in stages.results
    }


ROWS = KernelDef(
    "rows",
    "Element-wise steps with reductions over the trailing axes among them, a row at a time: softmax, norms.",
    emit,
    tasks,
    work,
    may_reuse=may_reuse,
)
