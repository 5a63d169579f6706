"""The order of instructions: data dependence decides what is legal, and bytes what is good.

Two instructions depend on each other where they touch the same elements of a buffer and at least one of them writes:
read after write, write after read, write after write. The order between them is the one of the given program; any
order that keeps all of these gives the same bits. All states count as one buffer here, because a caller may bind two
of them to one storage; so do buffers that share an allocation.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from relume.base.dims import product
from relume.program.footprint import may_overlap
from relume.program.plan import SAMPLES, arena_bytes, at_sample, plan, shares
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


ORDERS = ("program", "memory", "random")
_ALIGN = 64


def schedule(program: Program, order: str = "program", seed: int = 0) -> Program:
    """The program in a legal order.

    `program` keeps the given order, which defines the dependences and so keeps them all: the same object comes back.
    `memory` wants the smallest arena, and gives the program itself back where it finds no smaller one.
    `random` gives a topological order drawn with `seed`, for tests: all of them mean the same.
    """
    if order not in ORDERS:
        raise ValueError(f"order is one of {', '.join(ORDERS)}, got {order!r}")
    if order == "program":
        return program
    if order == "memory":
        return _for_memory(program)
    dice = random.Random(seed)
    return _in_order(program, _listed(dependences(program), lambda _: (dice.random(),)))


Rank = tuple[float, ...]


def _listed(needs: Sequence[Sequence[int]], rank: Callable[[int], Rank]) -> list[int]:
    """A topological order: of all positions that are ready, the one with the least rank, taken when it became so."""
    followers = _followers(needs)
    waiting = [len(before) for before in needs]
    ready = [(rank(position), position) for position, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(position)
        for follower in followers[position]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (rank(follower), follower))
    return order


def _followers(needs: Sequence[Sequence[int]]) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in needs]
    for position, before in enumerate(needs):
        for other in before:
            followers[other].append(position)
    return followers


def _in_order(program: Program, order: Sequence[int]) -> Program:
    return replace(program, instrs=tuple(program.instrs[position] for position in order))


# --- for memory -----------------------------------------------------------------------------------------------------


def _for_memory(program: Program) -> Program:
    """The program, or the greedy order where its arena is smaller at a sample of open extents and larger at none."""
    samples = SAMPLES if any(not isinstance(buffer.bytes, int) for buffer in program.arena) else SAMPLES[:1]
    planned = plan(program)
    now = [arena_bytes(planned, sample) for sample in samples]
    if now == [_least(program, sample) for sample in samples]:
        return program  # One instruction alone needs as much.
    needs = dependences(program)
    best = program
    for sample in samples:
        found = _in_order(program, _greedy(program, needs, sample))
        planned = plan(found)
        then = [arena_bytes(planned, size) for size in samples]
        if then != now and all(after <= before for after, before in zip(then, now)):
            best, now = found, then
    return best


def _least(program: Program, sample: int) -> int:
    """What any order needs: the most that one instruction's operands take, with each result in place that may be."""
    most = 0
    for instr in program.instrs:
        buffers = {buffer for buffer in (*instr.reads, *instr.writes) if buffer.space is Space.ARENA}
        if sum(_rounded(buffer, sample) for buffer in buffers) <= most:
            continue
        spec, _ = instr.specialise()
        for reuse in (instr.kernel.may_reuse(spec), instr.kernel.must_reuse(spec)):
            for result, choices in reuse.items():
                if any(shares(instr, result, operand) is None for operand in choices):
                    buffers.discard(instr.operands[result].view.buffer)
        most = max(most, sum(_rounded(buffer, sample) for buffer in buffers))
    return most


def _rounded(buffer: Buffer, sample: int) -> int:
    """The bytes of a buffer as `base.intervals` places it."""
    return -(-at_sample(buffer.bytes, sample) // _ALIGN) * _ALIGN


def _greedy(program: Program, needs: Sequence[Sequence[int]], sample: int) -> list[int]:
    """A list schedule: of the instructions that are ready, the one after which the fewest bytes are live comes next.

    Ties go to the given order. Those that write a state wait until nothing else is ready, so that little can end a
    run after a write.
    """
    touched = [
        sorted({operand.view.buffer.name for operand in instr.operands if operand.view.buffer.space is Space.ARENA})
        for instr in program.instrs
    ]
    size = {buffer.name: _rounded(buffer, sample) for buffer in program.arena}
    writes_state = [any(buffer.space is Space.STATE for buffer in instr.writes) for instr in program.instrs]
    left = Counter(name for names in touched for name in names)
    live: set[str] = set()
    followers = _followers(needs)
    waiting = [len(before) for before in needs]
    ready = {position for position, count in enumerate(waiting) if not count}
    order = []

    def cost(position: int) -> tuple[bool, int, int]:
        grows = sum(size[name] for name in touched[position] if name not in live)
        frees = sum(size[name] for name in touched[position] if left[name] == 1)
        return writes_state[position], grows - frees, position

    while ready:
        position = min(ready, key=cost)
        ready.remove(position)
        order.append(position)
        live.update(touched[position])
        left.subtract(touched[position])
        for follower in followers[position]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.add(follower)
    return order
