"""Runs programs on compiled kernels without a compiled driver, so that a variant costs no LLVM.

Kernels are compiled, linked and mapped once per process, by their exact keys; what differs between two variants of a
program (the order of calls, the places of buffers) is read off `codegen.calls`, as the driver is made of it. Memory
starts as garbage, so that reading what was never written shows.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relume.base import abi, dims, intervals
from relume.base.targets import AVX2
from relume.codegen import Cache, calls, link, llvm
from relume.codegen import Kernels as Shelf
from relume.codegen.keys import kernel_of
from relume.program import plan as planning
from relume.program.types import Instr, KernelSpec, Program, Space
from relume.runtime.image import MappedImage
from relume.runtime.memory import Block, round_up

GARBAGE = 0xFF  # A NaN as a float, -1 as an integer.
LINE = 64
_KERNEL = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
_POLL = "define i32 @relume_poll(ptr %ctx, i64 %thread) {\n  ret i32 0\n}\n"


class Mismatch(AssertionError):
    """A run fails, or gives something else than its oracle, or the oracle something else than the reference."""


@functools.cache
def _poll() -> bytes:
    return llvm.compile_ir(_POLL, AVX2, 0, name="poll")


class Kernels:
    """Every kernel that was met, ready to be called. `cache` keeps their code on disk too."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._shelf = Shelf(cache, lambda text, name: llvm.compile_ir(text, AVX2, 2, name=name))
        self._images: dict[str, MappedImage] = {}
        self._functions: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._functions)

    def of(self, instr: Instr, spec: KernelSpec) -> Any:
        """The function of an instruction's kernel."""
        symbol = self._shelf.take(kernel_of(instr, spec, AVX2)).symbol
        if symbol not in self._functions:
            image = MappedImage(link.link([("poll", _poll()), self._shelf.objects[-1]]))
            self._images[symbol] = image
            self._functions[symbol] = _KERNEL(image.address(symbol))
        return self._functions[symbol]


class Machine:
    """One program with its inputs and states; `order` takes its instructions in any order."""

    def __init__(
        self, kernels: Kernels, program: Program, inputs: Sequence[np.ndarray], states: Sequence[np.ndarray]
    ) -> None:
        self.symbols: dict[str, int] = {}
        for port, array in zip(program.inputs, inputs):
            for dim, extent in zip(port.dims, array.shape):
                name = dims.symbol_name(dim)
                if name is not None:
                    self.symbols[name] = extent
        self.inputs, self.states = [array.copy() for array in inputs], [array.copy() for array in states]
        self.constants = [np.ascontiguousarray(buffer.data) for buffer in program.constants]
        self.shapes = [tuple(dims.evaluate(dim, self.symbols) for dim in port.dims) for port in program.outputs]
        self.functions = {instr.id: kernels.of(instr, instr.specialise()[0]) for instr in program.instrs}

    def order(self, ordered: Program) -> Order:
        """The program's instructions in this order, ready to run under any plan."""
        return Order(self, ordered)


@dataclass(frozen=True)
class _Bound:
    """One call; `places` are (space, index of the buffer there, bytes)."""

    id: int
    function: Any
    places: tuple[tuple[str, int, int], ...]
    extents: Any
    tasks: int


class Order:
    """One order of a program's instructions."""

    def __init__(self, machine: Machine, ordered: Program) -> None:
        self.machine = machine
        # Without a plan, each buffer has an allocation of its own in the table.
        table = calls.schedule(replace(ordered, allocations={}, reused=()))
        slots = [dims.evaluate(dim, machine.symbols) for dim in table.dims]
        own = table.offsets or [0] * len(table.allocations)
        self.scratch = round_up(dims.evaluate(table.scratch, machine.symbols))
        self.buffers = [allocation.name for allocation in table.allocations]
        self.sizes = {a.name: dims.evaluate(a.bytes, machine.symbols) for a in table.allocations}

        def number(value: calls.Number) -> int:
            return value if isinstance(value, int) else slots[value.index]

        def place(at: calls.Address) -> tuple[str, int, int]:
            return at.space, at.index, number(at.offset) - (own[at.index] if at.space == Space.ARENA.value else 0)

        self.calls = [
            _Bound(
                call.id,
                machine.functions[call.id],
                tuple(map(place, call.operands)),
                (ctypes.c_int64 * max(1, len(call.extents)))(*map(number, call.extents)),
                number(call.tasks),
            )
            for call in table.calls
        ]

    def run(self, program: Program, apart: bool = False) -> list[np.ndarray]:
        """Outputs, then next states. `program` is this order, planned; with `apart`, no allocations share a byte."""
        spans = planning.lifetimes(program)
        first = [0 if apart else span[0] for span in spans.values()]
        last = [len(self.calls) if apart else span[1] for span in spans.values()]
        offsets, total = intervals.plan([self.sizes[name] for name in spans], first, last)
        arena = np.full(total + 2 * LINE, GARBAGE, np.uint8)
        base = -(-arena.ctypes.data // LINE) * LINE
        at = dict(zip(spans, offsets))
        outputs = [
            np.full(math.prod(shape) * port.dtype.bytes, GARBAGE, np.uint8).view(port.dtype.numpy)
            for port, shape in zip(program.outputs, self.machine.shapes)
        ]
        states = [array.copy() for array in self.machine.states]
        bases = {
            Space.INPUT.value: [array.ctypes.data for array in self.machine.inputs],
            Space.OUTPUT.value: [array.ctypes.data for array in outputs],
            Space.STATE.value: [array.ctypes.data for array in states],
            Space.CONSTANT.value: [array.ctypes.data for array in self.machine.constants],
            Space.ARENA.value: [base + at[program.allocations[name]] for name in self.buffers],
        }
        context = (ctypes.c_uint64 * len(abi.FIELDS))()
        scratch = Block(max(1, self.scratch))
        context[abi.FIELD["scratch"] // 8], context[abi.FIELD["scratch_bytes"] // 8] = scratch.address, self.scratch
        for call in self.calls:
            pointers = (ctypes.c_int64 * len(call.places))(*[bases[space][i] + more for space, i, more in call.places])
            status = call.function(context, pointers, call.extents, 0, call.tasks, 0)
            if status:
                raise Mismatch(f"instruction #{call.id} fails with {abi.Status(status).name}")
        return [*(array.reshape(shape) for array, shape in zip(outputs, self.machine.shapes)), *states]
