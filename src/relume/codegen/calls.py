"""What the driver does, as data: one `Call` per instruction, with every number known or a slot of the `dims` table.

Its `repr` is exact and free of names, so it serves as a part of the key of a whole image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from relume.base import dims, intervals
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.program.plan import lifetimes, sizes
from relume.program.types import Instr, KernelSpec, Program, Space, View
from relume.runtime.artifact import Allocation

PARALLEL_WORK = 1_000_000
"""Estimated operations from which a call goes to the thread pool: some ten microseconds. A fork and join takes one or
two, but on a busy machine the caller may have to wait for a worker that does not run."""


@dataclass(frozen=True)
class Slot:
    """A run-time number: an entry of the context's `dims` table."""

    index: int


Number = Union[int, Slot]


@dataclass(frozen=True)
class Address:
    """The first element of a view. `index` is the slot of the space's table; in the arena, of the allocations.

    `offset` is in bytes, and in the arena includes the allocation's own where that is known now.
    """

    space: str
    index: int
    offset: Number


@dataclass(frozen=True)
class Call:
    """One call of a kernel. `work` decides whether it goes to the pool."""

    id: int
    operands: tuple[Address, ...]
    extents: tuple[Number, ...]
    tasks: Number
    work: Number
    writes_state: bool


@dataclass(frozen=True)
class Schedule:
    """All calls in order, and the tables that go with them. `specs` has one entry per call."""

    calls: tuple[Call, ...]
    specs: tuple[KernelSpec, ...]
    dims: tuple[Dim, ...]
    extents: tuple[Dim, ...]
    """The run-time extents of all views, each once: those that the runtime checks not to be negative."""
    allocations: tuple[Allocation, ...]
    offsets: tuple[int, ...] | None
    scratch: Dim
    """Bytes that each thread needs to itself: the most that a call asks for."""


def schedule(program: Program) -> Schedule:
    """Lays the arena out where all sizes are known, and resolves every number of every instruction."""
    allocations = _allocations(program)
    offsets = _offsets(allocations)
    place = {allocation.name: index for index, allocation in enumerate(allocations)}
    table: dict[Dim, Slot] = {}

    def number(dim: Dim) -> Number:
        return dim if isinstance(dim, int) else table.setdefault(dim, Slot(len(table)))

    def address(view: View) -> Address:
        buffer = view.buffer
        index, offset = buffer.index, view.offset * buffer.dtype.bytes
        if buffer.space is Space.ARENA:
            index = place[program.allocations.get(buffer.name, buffer.name)]
            offset = offset + (offsets[index] if offsets is not None else 0)
        return Address(buffer.space.value, index, number(offset))

    calls: list[Call] = []
    specs: list[KernelSpec] = []
    scratch: Dim = 0
    for instr in program.instrs:
        spec, values = instr.specialise()
        binding = {f"e{index}": value for index, value in enumerate(values)}
        calls.append(
            Call(
                instr.id,
                tuple(address(operand.view) for operand in instr.operands),
                tuple(number(value) for value in values),
                number(dims.substitute(instr.kernel.tasks(spec), binding)),
                number(dims.substitute(instr.kernel.work(spec), binding)),
                any(buffer.space is Space.STATE for buffer in instr.writes),
            )
        )
        specs.append(spec)
        scratch = dims.maximum(scratch, dims.substitute(instr.kernel.scratch(spec), binding))
    _check_ids(program.instrs)
    views = [operand.view for instr in program.instrs for operand in instr.operands]
    extents = dict.fromkeys(dim for view in views for dim in view.dims if not isinstance(dim, int))
    return Schedule(tuple(calls), tuple(specs), tuple(table), tuple(extents), allocations, offsets, scratch)


def _check_ids(instrs: tuple[Instr, ...]) -> None:
    if len({instr.id for instr in instrs}) != len(instrs):
        raise CompileError("two instructions have the same id", hint="number the instructions anew")


def _allocations(program: Program) -> tuple[Allocation, ...]:
    """Every allocation, in order of first use."""
    live = lifetimes(program)
    return tuple(Allocation(name, size, *live[name]) for name, size in sizes(program).items())


def _offsets(allocations: tuple[Allocation, ...]) -> tuple[int, ...] | None:
    """The byte offset of each allocation where all sizes are static, else None."""
    known = [allocation.bytes for allocation in allocations if isinstance(allocation.bytes, int)]
    if len(known) != len(allocations):
        return None
    first = [allocation.first for allocation in allocations]
    last = [allocation.last for allocation in allocations]
    offsets, _ = intervals.plan(known, first, last)
    return tuple(offsets)
