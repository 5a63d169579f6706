"""`map`: one pass over any number of strided views, an element-wise body per point.

Loops: axes merge where every operand walks them as one; the innermost is the axis along which most operands are
contiguous or broadcast. It runs 16 lanes at a time (some groups per trip when the body is short), the rest lane by
lane with the same instructions, hence the same bits. Operands that are strided along it are gathered or scattered
lane by lane around the same vector body. A plain copy whose two sides are contiguous along different axes goes by
tiles (`transpose.py`). A one-element constant is baked into the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from relume.base import dims
from relume.base.dims import Dim
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise, transpose
from relume.kernels.elementwise import Step
from relume.kernels.epilogue import HEAVY
from relume.kernels.ir import Int, Kernel, Reg, vector
from relume.kernels.nest import Axis, Tasks, axes_of, estimate, is_empty, merged
from relume.program.types import ConstReader, KernelDef, KernelSpec, OperandSpec, Reuse


def _plan(spec: KernelSpec) -> Tasks:
    axes = merged(axes_of(spec.operands)) or [Axis(1, (1,) * len(spec.operands))]
    inner = min(range(len(axes)), key=lambda n: _inner_cost(axes[n], len(axes) - n))
    return Tasks.of([*axes[:inner], *axes[inner + 1 :], axes[inner]], 1, 4 * BLOCK)


def _inner_cost(axis: Axis, from_end: int) -> tuple[bool, int, int, int]:
    """What speaks against `axis` as the innermost: shorter than a vector, strided operands, small, far out."""
    strided = sum(stride not in (0, 1) for stride in axis.strides)
    return estimate([axis.extent]) < BLOCK, strided, -estimate([axis.extent]), from_end


def tasks(spec: KernelSpec) -> Dim:
    """Rows, or pieces of a long row."""
    if (tiles := transpose.plan(spec)) is not None:
        return tiles.tasks.count
    return _plan(spec).count


def work(spec: KernelSpec) -> Dim:
    """Elements times steps and operands."""
    steps = sum(_weight(step) for step in cast("Sequence[Step]", spec["body"]))
    return dims.product(spec.operands[-1].dims) * (steps + len(spec.operands))


def _weight(step: Step) -> int:
    return 20 if step[0] in HEAVY else 1


def may_reuse(spec: KernelSpec) -> Reuse:
    """An out view may sit on an in view of the same strides and element size: a point is read, then written."""
    out: dict[int, tuple[int, ...]] = {}
    for index, result in enumerate(spec.operands):
        if result.access == "out":
            ins = [n for n, operand in enumerate(spec.operands) if operand.access == "in"]
            out[index] = tuple(n for n in ins if congruent(spec.operands[n], result))
    return out


def congruent(a: OperandSpec, b: OperandSpec) -> bool:
    """Whether element i of both may be in the same place: the same strides, without repeats, and element size."""
    moves = [(x, y) for x, y, extent in zip(a.strides, b.strides, b.dims) if extent != 1]
    return not a.constant and a.dtype.bytes == b.dtype.bytes and all(x == y and x != 0 for x, y in moves)


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    if (tiles := transpose.plan(spec)) is not None:
        return transpose.emit(spec, tiles, symbol)
    return _Emitter(spec, constants, symbol).emit()


class _Emitter:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, constants: ConstReader, symbol: str) -> None:
        self.spec, self.plan = spec, _plan(spec)
        self.f = Kernel(symbol, spec.extents)
        self.body = cast("tuple[Step, ...]", spec["body"])
        self.outs = cast("tuple[int, ...]", spec["outs"])
        self.dtypes = [operand.dtype for operand in spec.operands]
        self.sizes = [dtype.bytes for dtype in self.dtypes]
        self.inputs = [n for n, operand in enumerate(spec.operands) if operand.access == "in"]
        self.results = [n for n, operand in enumerate(spec.operands) if operand.access == "out"]
        self.strides: list[Int] = [self.f.dim(stride, self.f.extents) for stride in self.plan.axes[-1].strides]
        self.baked = {
            n: bytes.fromhex(answer)
            for n in self.inputs
            if _one_element(spec.operands[n]) and (answer := constants.read(n, "splat"))
        }

    def emit(self) -> str:
        f = self.f
        if any(extent == 0 for extent in self.spec.operands[-1].dims):
            return f.finish()
        pointers = [f.operand(n) for n in range(len(self.spec.operands))]
        self.plan.emit(f, pointers, self.sizes, lambda at, _, low, high: self._row(at, low, high))
        return f.finish()

    def _row(self, pointers: list[Reg], low: Int, high: Int) -> None:
        """The inner axis from `low` to `high`: groups of vectors, single vectors, single elements."""
        f = self.f
        fixed = {n: self._fixed(n, pointers[n]) for n in self.inputs if self.strides[n] == 0 or n in self.baked}
        cost = sum(map(_weight, self.body))
        group = BLOCK * (4 if cost <= 4 else 2 if cost <= 12 else 1)
        length = f.sub(high, low)
        widths = [group, BLOCK] if group > BLOCK else [BLOCK]
        at = low
        for width in widths:
            end = f.add(low, f.sub(length, f.rem(length, width)))
            if is_empty(at, end):
                continue
            spread = {n: f.splat(value, BLOCK) for n, value in fixed.items()}
            with self.plan.innermost(f, at, end, width) as loop:
                for part in range(0, width, BLOCK):
                    self._point(pointers, f.add(loop.i, part), spread, BLOCK)
            at = end
        if not is_empty(at, high):
            with f.loop(at, high) as loop:
                self._point(pointers, loop.i, fixed, 1)

    def _fixed(self, n: int, pointer: Reg) -> Reg:
        """An input that is the same all along the inner axis, as a scalar."""
        if n in self.baked:
            return elementwise.constant_of_bytes(self.f, self.baked[n], self.dtypes[n])
        return elementwise.load(self.f, self.dtypes[n], pointer)

    def _point(self, pointers: list[Reg], index: Int, fixed: dict[int, Reg], count: int) -> None:
        f = self.f
        inputs = [fixed[n] if n in fixed else self._load(n, pointers[n], index, count) for n in self.inputs]
        values = elementwise.emit_body(f, inputs, [self.dtypes[n] for n in self.inputs], self.body, count)
        for n, number in zip(self.results, self.outs):
            self._store(n, values[number], pointers[n], index, count)

    def _element(self, n: int, pointer: Reg, index: Int) -> Reg:
        return self.f.address(pointer, self.f.mul(index, self.strides[n]), self.sizes[n])

    def _load(self, n: int, pointer: Reg, index: Int, count: int) -> Reg:
        f, dtype = self.f, self.dtypes[n]
        if count == 1 or self.strides[n] == 1:
            return elementwise.load(f, dtype, self._element(n, pointer, index), count)
        out = Reg("poison", vector(elementwise.register_type(dtype), count))
        for lane in range(count):
            out = f.insert(out, elementwise.load(f, dtype, self._element(n, pointer, f.add(index, lane))), lane)
        return out

    def _store(self, n: int, value: Reg, pointer: Reg, index: Int, count: int) -> None:
        f, dtype = self.f, self.dtypes[n]
        if count == 1 or self.strides[n] == 1:
            elementwise.store(f, dtype, value, self._element(n, pointer, index))
            return
        for lane in range(count):
            elementwise.store(f, dtype, f.extract(value, lane), self._element(n, pointer, f.add(index, lane)))


def _one_element(operand: OperandSpec) -> bool:
    return operand.constant and all(stride == 0 or extent == 1 for stride, extent in zip(operand.strides, operand.dims))


MAP = KernelDef(
    "map",
    "Element-wise steps over views of the same dims (broadcast is a stride of 0): arithmetic, copies, fills, casts.",
    emit,
    tasks,
    work,
    may_reuse=may_reuse,
)
