"""What a kernel does with each result before it is stored: the body of fused element-wise steps.

A body works on numbered values: 0 is the kernel's own result, then come the extra operands, then the steps. An
`Epilogue` stands at one element of the result; `at` moves it, `apply` takes the result (a vector along the last
axis, or one element), runs the body, and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from typing import cast

from relume.base.dtypes import DType
from relume.base.errors import CompileError
from relume.kernels.elementwise import Step, emit_body, load, store
from relume.kernels.ir import Int, Kernel, Reg, element, lanes
from relume.program.types import IN, KernelSpec, OperandSpec, Reuse

HEAVY = frozenset({"exp", "expm1", "log", "log1p", "sin", "cos", "atan", "tanh", "erf", "sigmoid", "pow", "rem"})
"""Ops whose code is long: unrolled over a whole tile they would not fit the instruction cache."""


@dataclass(frozen=True)
class _Site:
    """One extra operand or output: the element that the epilogue stands at."""

    spec: OperandSpec
    pointer: Reg
    strides: tuple[Int, ...]


@dataclass(frozen=True)
class Epilogue:
    """The body, and the pointers to the current element of every extra operand and output."""

    kernel: Kernel
    dtype: DType
    """Of the kernel's own result."""
    body: tuple[Step, ...]
    outs: tuple[int, ...]
    extras: tuple[_Site, ...]
    results: tuple[_Site, ...]

    @staticmethod
    def of(kernel: Kernel, spec: KernelSpec, first: int) -> Epilogue:
        """At element 0 of the result. Operands from `first` on are extras, and then outputs.

        Raises `CompileError` where the body's outputs and the operands do not match.
        """
        sites = []
        for index, operand in enumerate(spec.operands[first:], first):
            strides = tuple(kernel.dim(stride, kernel.extents) for stride in operand.strides)
            sites.append(_Site(operand, kernel.operand(index), strides))
        extras = tuple(site for site in sites if site.spec.access == IN)
        results = tuple(site for site in sites if site.spec.access != IN)
        body, outs = cast(tuple[Step, ...], spec["body"]), cast(tuple[int, ...], spec["outs"])
        if len(outs) != len(results):
            raise CompileError(f"{spec.kernel}: one entry of `outs` per output", expected=len(results), got=len(outs))
        return Epilogue(kernel, spec.operands[0].dtype, body, outs, extras, results)

    @property
    def vectorises(self) -> bool:
        """Whether 16 neighbours on the last axis are loaded and stored as vectors."""
        sites = all(site.strides[-1] == 1 for site in self.results)
        return sites and all(site.strides[-1] in (0, 1) for site in self.extras)

    @property
    def is_heavy(self) -> bool:
        """Whether it belongs in a loop over the tile rather than unrolled over its registers."""
        return sum(step[0] != "constant" for step in self.body) > 8 or any(step[0] in HEAVY for step in self.body)

    def at(self, *index: Int) -> Epilogue:
        """Moved by `index` elements along each axis of the result."""
        return replace(self, extras=self._moved(self.extras, index), results=self._moved(self.results, index))

    def _moved(self, sites: Sequence[_Site], index: Sequence[Int]) -> tuple[_Site, ...]:
        f = self.kernel
        return tuple(
            replace(
                site, pointer=f.address(site.pointer, f.total(list(zip(index, site.strides))), site.spec.dtype.bytes)
            )
            for site in sites
        )

    def apply(self, result: Reg) -> None:
        """Runs the body on `result` and stores. All extras are read before anything is written."""
        f, count = self.kernel, lanes(result.type)
        values = emit_body(
            f,
            [result, *(self._load(site, count) for site in self.extras)],
            [self.dtype, *(site.spec.dtype for site in self.extras)],
            self.body,
            count,
        )
        for site, number in zip(self.results, self.outs):
            store(f, site.spec.dtype, values[number], site.pointer)

    def pixels(self, height: int, width: int) -> list[Reg]:
        """Where each of height x width pixels (the axes before the last) will be stored, in every output."""
        f = self.kernel
        return [
            f.address(site.pointer, f.total([(y, site.strides[-3]), (x, site.strides[-2])]), site.spec.dtype.bytes)
            for site in self.results
            for y in range(height)
            for x in range(width)
        ]

    def _load(self, site: _Site, count: int) -> Reg:
        return load(self.kernel, site.spec.dtype, site.pointer, 1 if site.strides[-1] == 0 else count)

    def finish_tile(self, shape: Sequence[int], sums: Sequence[Reg], scratch: Reg, columns: Int | None = None) -> None:
        """Applies the body to a whole tile whose first element the epilogue stands at.

        `shape` is the tile's extent along every axis but the last, along which each of `sums` is a vector. A short
        body is unrolled over the registers; a long one loops over the tile, put down in `scratch` (room for `sums`).
        With `columns` the loop goes element by element, over the first `columns` lanes only.
        """
        f = self.kernel
        if columns is None and not self.is_heavy:
            for index, value in zip(product(*map(range, shape)), sums):
                self.at(*index, 0).apply(value)
            return
        count, size = lanes(sums[0].type), self.dtype.bytes
        for number, value in enumerate(sums):
            f.store(value, f.address(scratch, number * count, size), size)
        self.finish_stored(shape, shape, scratch, sums[0].type, columns)

    def finish_stored(
        self, shape: Sequence[Int], pitch: Sequence[int], scratch: Reg, type_: str, columns: Int | None = None
    ) -> None:
        """Applies the body to a tile that lies in `scratch`, vectors of `type_` in C order under the extents `pitch`:
        to the first `shape` of them, as `finish_tile` does."""
        f, count, size = self.kernel, lanes(type_), self.dtype.bytes
        with ExitStack() as loops:
            where = [loops.enter_context(f.loop(0, extent)).i for extent in shape]
            place: Int = 0
            for i, extent in zip(where, pitch):
                place = f.add(f.mul(place, extent), i)
            vector_at = f.address(scratch, place, count * size)
            if columns is None:
                self.at(*where, 0).apply(f.load(type_, vector_at, size))
                return
            with f.loop(0, columns) as column:
                value = f.load(element(type_), f.address(vector_at, column.i, size), size)
                self.at(*where, column.i).apply(value)


def reuse(spec: KernelSpec, first: int) -> Reuse:
    """The extras that each output may overwrite: element i is read just before element i of the result is written.

    That holds where both have the same layout; broadcast extras are read again.
    """
    sites = list(enumerate(spec.operands))[first:]
    extras = [(index, operand) for index, operand in sites if operand.access == IN]
    return {
        index: tuple(
            extra
            for extra, operand in extras
            if (operand.dims, operand.strides, operand.dtype.bytes) == (out.dims, out.strides, out.dtype.bytes)
            and not operand.constant
        )
        for index, out in sites
        if out.access != IN
    }
