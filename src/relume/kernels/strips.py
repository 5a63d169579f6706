"""`strips`: several kernels one after another, a few rows at a time, so that what is between them stays in the cache.

Attention is such a chain of kernels: scores = q k^T, a softmax over each row of them, and its product with v. The
matrix of scores, the largest thing in it by far, is never in memory: a strip of it is, which the thread has to itself.

Each part is a kernel of its own, with the strip in the place of all rows, so every element has the bits of the kernels
one by one. A task is one strip of one place of the batch.

Operands are [batch..., rows, ...] where `rows` says that they go along the strips, else [batch..., ...], and the parts
see them without the batch. A part is (kernel, what it reads, what it writes, its scalars, its parameters): numbers from
0 on are operands, -1, -2 ... the matrices between the parts; scalars are places among this kernel's own, of which the
first is the number of rows, and the next ones are the columns of the matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.targets import Target
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.matmul import MATMUL_PACKED
from relume.kernels.nest import unravel
from relume.kernels.rows import ROWS
from relume.program.types import IN, OUT, ConstReader, KernelDef, KernelSpec, OperandSpec, contiguous
from relume.runtime.memory import ALIGN

PARTS: Mapping[str, KernelDef] = {kernel.name: kernel for kernel in (MATMUL_PACKED, ROWS)}
"""The kernels that can be parts."""

STRIP = 32 * 1024
"""Elements between the parts that a strip should have at most: 128 KB of f32, a part of the second-level cache."""

MOST_ROWS = 42
"""Rows of a strip at most: a multiple of every full tile height of `matmul_packed`."""


@dataclass(frozen=True)
class _Part:
    kernel: KernelDef
    spec: KernelSpec
    operands: tuple[int, ...]


@dataclass(frozen=True)
class _Plan:
    """The spec taken apart."""

    spec: KernelSpec

    @property
    def batch(self) -> tuple[Dim, ...]:
        return self.spec.operands[0].dims[: cast(int, self.spec["batch"])]

    @property
    def between(self) -> tuple[tuple[DType, Dim], ...]:
        """The element type and the columns of each matrix between the parts."""
        types = cast("tuple[str, ...]", self.spec["between"])
        return tuple((dtypes.BY_NAME[name], width) for name, width in zip(types, self.spec.scalars[1:]))

    @cached_property
    def homes(self) -> tuple[int, ...]:
        """For each matrix between the parts, the one in whose memory it is: its own, or one that it may overwrite."""
        homes = list(range(len(self.between)))
        for index, part in enumerate(self.parts):
            later = {n for other in self.parts[index + 1 :] for n in other.operands}
            for result, choices in part.kernel.may_reuse(part.spec).items():
                made = part.operands[result]
                over = (part.operands[choice] for choice in choices)
                free = [n for n in over if n < 0 and n not in later and self.between[-1 - n] == self.between[-1 - made]]
                if made < 0 and free:
                    homes[-1 - made] = homes[-1 - free[0]]
        return tuple(homes)

    @cached_property
    def height(self) -> Dim:
        """The rows of a strip."""
        width = dims.maximum(1, sum((self.between[home][1] for home in sorted(set(self.homes))), 0))
        return dims.maximum(1, dims.minimum(MOST_ROWS, dims.floordiv(STRIP, width)))

    @cached_property
    def sizes(self) -> dict[int, Dim]:
        """The bytes of a strip of each matrix that has memory of its own, in whole cache lines."""
        matrices = {home: self.between[home] for home in sorted(set(self.homes))}
        return {
            home: dims.ceildiv(self.height * width * dtype.bytes, ALIGN) * ALIGN
            for home, (dtype, width) in matrices.items()
        }

    @property
    def strips(self) -> Dim:
        return dims.floordiv(self.spec.scalars[0] + self.height - 1, self.height)

    @property
    def rows(self) -> Dim:
        """The symbol of the rows that a strip has: one more than those of the spec."""
        return dims.symbol(self.rows_name)

    @property
    def rows_name(self) -> str:
        return f"e{max((int(name[1:]) for name in self.spec.extents), default=-1) + 1}"

    @cached_property
    def parts(self) -> tuple[_Part, ...]:
        out: list[_Part] = []
        for name, reads, writes, scalars, params in cast("tuple[Any, ...]", self.spec["parts"]):
            operands = [*(self._operand(n, IN) for n in reads), *(self._operand(n, OUT) for n in writes)]
            own = tuple(self.spec.scalars[n] for n in scalars)
            out.append(_Part(PARTS[name], KernelSpec(name, tuple(operands), params, own), (*reads, *writes)))
        return tuple(out)

    def _operand(self, number: int, access: str) -> OperandSpec:
        """An operand, or a matrix in between, as a part sees it."""
        if number < 0:
            dtype, width = self.between[-1 - number]
            matrix = (self.rows, width)
            return OperandSpec(access, dtype, matrix, contiguous(matrix), False)
        operand = self.spec.operands[number]
        shape, strides = operand.dims[len(self.batch) :], operand.strides[len(self.batch) :]
        if cast("tuple[bool, ...]", self.spec["rows"])[number]:
            shape = (self.rows, *shape[1:])
        return OperandSpec(access, operand.dtype, shape, strides, False)


class _Emitter:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, target: Target, symbol: str) -> None:
        self.plan, self.target, self.symbol = _Plan(spec), target, symbol
        self.f = Kernel(symbol, spec.extents)

    def emit(self) -> str:
        f, plan = self.f, self.plan
        spec = plan.spec
        height, all_rows = f.dim(plan.height, f.extents), f.dim(spec.scalars[0], f.extents)
        strips = f.div(f.add(all_rows, f.sub(height, 1)), height)
        memory, at = f.thread_memory(), cast(Int, 0)
        lies: dict[int, Reg] = {}
        for home, size in plan.sizes.items():
            lies[home] = f.address(memory, at)
            at = f.add(at, f.dim(size, f.extents))
        between = [lies[home] for home in plan.homes]
        tables = [
            (f.scratch("ptr", len(part.operands)), f.scratch("i64", max(1, len(part.spec.extents))))
            for part in plan.parts
        ]
        pointers = [f.operand(n) for n in range(len(spec.operands))]
        with f.loop(f.begin, f.end) as task:
            f.poll()
            where = unravel(f, f.div(task.i, strips), plan.batch)
            first = f.mul(f.rem(task.i, strips), height)
            extents = {**f.extents, plan.rows_name: f.min(height, f.sub(all_rows, first))}
            here = [self._moved(n, pointer, where, first) for n, pointer in enumerate(pointers)]
            for number, (part, (operands, table)) in enumerate(zip(plan.parts, tables)):
                for place, n in enumerate(part.operands):
                    f.store(here[n] if n >= 0 else between[-1 - n], f.address(operands, place, 8), 8)
                for place, name in enumerate(part.spec.extents):
                    f.store(Reg(str(extents[name]), "i64"), f.address(table, place, 8), 8)
                self._run(f"{self.symbol}.{number}", operands, table, f.dim(part.kernel.tasks(part.spec), extents))
        return _joined([*(self._text(number, part) for number, part in enumerate(plan.parts)), f.finish()])

    def _moved(self, number: int, pointer: Reg, where: Sequence[Int], first: Int) -> Reg:
        """An operand's pointer at a place of the batch and a row."""
        f, operand = self.f, self.plan.spec.operands[number]
        index = list(where)
        if cast("tuple[bool, ...]", self.plan.spec["rows"])[number]:
            index.append(first)
        strides = [f.dim(stride, f.extents) for stride in operand.strides]
        return f.address(pointer, f.total(list(zip(index, strides))), operand.dtype.bytes)

    def _run(self, name: str, operands: Reg, table: Reg, tasks: Int) -> None:
        f = self.f
        args = f"ptr {f.ctx}, ptr {operands}, ptr {table}, i64 0, i64 {tasks}, i64 {f.thread}"
        status = f.assign("i32", f"call i32 @{name}({args})")
        with f.when(f.assign("i1", f"icmp ne i32 {status}, 0")):
            f.ret(status)

    def _text(self, number: int, part: _Part) -> str:
        text = part.kernel.emit(part.spec, self.target, ConstReader({}), f"{self.symbol}.{number}")
        return text.replace("define i32 @", "define internal i32 @")


def _joined(texts: Sequence[str]) -> str:
    """Definitions as one module: what they declare, each once, and then all of them."""
    lines = [line for text in texts for line in text.splitlines()]
    declared = dict.fromkeys(line for line in lines if line.startswith("declare "))
    return "\n".join([*declared, *(line for line in lines if line not in declared)]) + "\n"


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    return _Emitter(spec, target, symbol).emit()


def tasks(spec: KernelSpec) -> Dim:
    """One for each strip of each place of the batch."""
    plan = _Plan(spec)
    return dims.product(plan.batch) * plan.strips


def work(spec: KernelSpec) -> Dim:
    """That of the parts, over all rows and places of the batch."""
    plan = _Plan(spec)
    whole = {plan.rows_name: spec.scalars[0]}
    return dims.product(plan.batch) * sum(
        (dims.substitute(part.kernel.work(part.spec), whole) for part in plan.parts), 0
    )


def scratch(spec: KernelSpec) -> Dim:
    """One strip of each matrix in between."""
    return sum(_Plan(spec).sizes.values(), cast(Dim, 0))


STRIPS = KernelDef(
    "strips",
    "Several kernels one after another on a few rows at a time: attention without a matrix of scores.",
    emit,
    tasks,
    work,
    scratch,
)
