"""The order of instructions: data dependence, and nothing else.

Two instructions depend on each other where they touch the same elements of a buffer and at least one of them writes:
read after write, write after read, write after write. The order between them is the one of the given program; any
order that keeps all of these gives the same bits. All states count as one buffer here, because a caller may bind two
of them to one storage; so do buffers that share an allocation.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

from relume.base.dims import product
from relume.program.footprint import may_overlap
from relume.program.types import IN, Buffer, Program, Space, View


def dependences(program: Program) -> tuple[tuple[int, ...], ...]:
    """For each instruction, by position: the earlier positions that must stay before it, ascending."""
    seen: dict[str, list[tuple[int, bool, View]]] = {}
    written = {_memory(program, buffer) for instr in program.instrs for buffer in instr.writes}
    out: list[tuple[int, ...]] = []
    for position, instr in enumerate(program.instrs):
        before: set[int] = set()
        touched = [
            (_memory(program, operand.view.buffer), operand.access, operand.view)
            for operand in instr.operands
            if _memory(program, operand.view.buffer) in written
        ]
        for memory, access, view in touched:
            before.update(
                other
                for other, writes, earlier in seen.get(memory, ())
                if (writes or access != IN) and other not in before and _clash(view, earlier)
            )
        for memory, access, view in touched:
            accesses = seen.setdefault(memory, [])
            if access != IN and view.is_contiguous and product(view.dims) == view.buffer.elements:
                # Whoever comes later depends on this write, and through it on all earlier ones of this buffer.
                accesses[:] = [entry for entry in accesses if entry[2].buffer.name != view.buffer.name]
            accesses.append((position, access != IN, view))
        out.append(tuple(sorted(before)))
    return tuple(out)


_STATES = "states"


def _memory(program: Program, buffer: Buffer) -> str:
    """What a buffer's bytes belong to; in one memory, different buffers always clash."""
    if buffer.space is Space.STATE:
        return _STATES
    return f"{buffer.space.value} {program.allocations.get(buffer.name, buffer.name)}"


def _clash(a: View, b: View) -> bool:
    return a.buffer.name != b.buffer.name or may_overlap(a, b)


def schedule(program: Program, order: str = "program", seed: int = 0) -> Program:
    """The program in a legal order.

    `program` keeps the given order, which defines the dependences and so keeps them all: the same object comes back.
    `random` gives a topological order drawn with `seed`, for tests: all of them mean the same.
    """
    if order == "program":
        return program
    if order != "random":
        raise ValueError(f"order is 'program' or 'random', got {order!r}")
    needs = dependences(program)
    waiting = [len(before) for before in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for position, before in enumerate(needs):
        for other in before:
            followers[other].append(position)
    dice = random.Random(seed)
    ready = [(dice.random(), position) for position, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    instrs = []
    while ready:
        _, position = heapq.heappop(ready)
        instrs.append(program.instrs[position])
        for follower in followers[position]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (dice.random(), follower))
    return replace(program, instrs=tuple(instrs))
