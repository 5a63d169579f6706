"""Memory: which buffers sit on each other in place, and how long each allocation lives.

In place, a result takes over the memory of an operand that dies at the instruction. That is legal where

- the kernel lists the operand for that result (`KernelDef.may_reuse`: a truth about its access order),
- both are arena buffers of the same number of bytes, viewed with the same extents, strides, offset and element size,
- nothing reads or writes the operand's buffer later, and nothing touches the result's buffer earlier,
- every other view of the operand's buffer in the instruction is that same view, and listed too,
- no other result takes the operand.

Where it is not taken, buffers still share memory by lifetime (`base.intervals.plan`); only an operand that is read
while its result is written needs all of this.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from relume.base import dims, intervals
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.program.text import print_instr
from relume.program.types import IN, OUT, Instr, Program, Reused, Space, View

Lifetime = tuple[int, int]
"""First and last position, both included."""

Choose = Callable[[Sequence[int]], int | None]
"""Picks one of the operands that a result may take over (there is at least one), or None for none of them."""


def buffer_lifetimes(program: Program) -> dict[str, Lifetime]:
    """For each arena buffer that is used: the positions of the first and the last instruction that touch it."""
    out: dict[str, Lifetime] = {}
    for position, instr in enumerate(program.instrs):
        for operand in instr.operands:
            if operand.view.buffer.space is Space.ARENA:
                first, _ = out.get(operand.view.buffer.name, (position, position))
                out[operand.view.buffer.name] = (first, position)
    return out


def lifetimes(program: Program) -> Mapping[str, Lifetime]:
    """For each allocation: the positions of the first and the last instruction that touch one of its buffers.

    In the order of first use. A buffer without an allocation (the program was not planned) counts as its own.
    """
    out: dict[str, Lifetime] = {}
    for name, (first, last) in buffer_lifetimes(program).items():
        allocation = program.allocations.get(name, name)
        low, high = out.get(allocation, (first, last))
        out[allocation] = (min(low, first), max(high, last))
    return out


def sizes(program: Program) -> Mapping[str, Dim]:
    """For each allocation, in the order of `lifetimes`: its bytes (its buffers all have as many)."""
    by_name = {buffer.name: buffer for buffer in program.arena}
    found: dict[str, Dim] = {}
    for name in buffer_lifetimes(program):
        found.setdefault(program.allocations.get(name, name), by_name[name].bytes)
    return found


SAMPLES = (16, 67, 256)
"""Open extents, where memory is compared before they are known: all symbols take the same value."""


def at_sample(dim: Dim, sample: int) -> int:
    """A size with every symbol at `sample`; 0 where that makes it negative or divides by zero (no run gets there)."""
    try:
        return max(0, dims.evaluate(dim, dict.fromkeys(dims.symbols(dim), sample)))
    except ZeroDivisionError:
        return 0


def arena_bytes(program: Program, sample: int = SAMPLES[0]) -> int:
    """The bytes of the arena of a planned program, with every symbol at `sample`."""
    spans = lifetimes(program).values()
    needed = [at_sample(size, sample) for size in sizes(program).values()]
    return intervals.plan(needed, [first for first, _ in spans], [last for _, last in spans])[1]


def shares(instr: Instr, result: int, operand: int) -> str | None:
    """Why `result` cannot sit on `operand` as far as their views tell; None where it can."""
    to, from_ = instr.operands[result].view, instr.operands[operand].view
    if to.buffer.space is not Space.ARENA or from_.buffer.space is not Space.ARENA:
        return "both must be arena buffers"
    if to.buffer.bytes != from_.buffer.bytes or to.buffer.dtype.bytes != from_.buffer.dtype.bytes:
        return "the buffers differ in size"
    if not same_places(to, from_):
        return "the views differ"
    return None


def label(instr: Instr) -> str:
    """An instruction in a sentence: `#7 map (net.onnx:Add_3)`."""
    return f"#{instr.id} {instr.kernel.name}" + (f" ({instr.location})" if instr.location else "")


def same_places(a: View, b: View) -> bool:
    """Whether two views touch the same elements in the same order. The stride of an axis of extent 1 plays no part."""
    return (
        a.dims == b.dims
        and a.offset == b.offset
        and all(x == y for x, y, dim in zip(a.strides, b.strides, a.dims) if dim != 1)
    )


def first_legal(operands: Sequence[int]) -> int:
    """Takes every in-place chance, at the first operand that offers it."""
    return operands[0]


def random_choice(seed: int) -> Choose:
    """Takes four chances of five, at a random operand."""
    dice = random.Random(seed)
    return lambda operands: dice.choice(operands) if dice.random() < 0.8 else None


def plan(program: Program, reuse: bool = True, seed: int | None = None, choose: Choose = first_legal) -> Program:
    """The program with `allocations` for all arena buffers and the in-place decisions in `reused`.

    `reuse=False` takes no optional one. `choose` decides each of them, or with a `seed` the dice do, for tests: all
    legal choices mean the same. Raises `CompileError` where a kernel must work in place and cannot.
    """
    lives = buffer_lifetimes(program)
    choose = choose if seed is None else random_choice(seed)
    allocation = {name: name for name in lives}
    notes: list[Reused] = []
    for position, instr in enumerate(program.instrs):
        if all(operand.access != OUT for operand in instr.operands):
            continue
        spec, _ = instr.specialise()
        taken: set[str] = set()
        for result, choices in sorted(instr.kernel.must_reuse(spec).items()):
            if any(_already_there(instr, result, operand) for operand in choices):
                continue
            reasons = [_obstacle(program, lives, position, result, operand, choices, taken) for operand in choices]
            if None not in reasons:
                raise CompileError(
                    f"{instr.kernel.name} must work in place and cannot: {'; '.join(map(str, reasons))}",
                    where=instr.location or print_instr(instr),
                    got=print_instr(instr),
                    hint="read the operand before this instruction, or take a copy of it",
                )
            _take(instr, result, choices[reasons.index(None)], "the kernel works in place", allocation, taken, notes)
        if not reuse:
            continue
        done = {note.result for note in notes if note.instr == instr.id}
        for result, choices in sorted(instr.kernel.may_reuse(spec).items()):
            if result in done:
                continue
            legal = [c for c in choices if _obstacle(program, lives, position, result, c, choices, taken) is None]
            operand = choose(legal) if legal else None
            if operand is not None:
                buffer = instr.operands[operand].view.buffer
                _take(instr, result, operand, f"{buffer} is dead after this", allocation, taken, notes)
    return replace(program, allocations=allocation, reused=tuple(notes))


def _take(
    instr: Instr,
    result: int,
    operand: int,
    reason: str,
    allocation: dict[str, str],
    taken: set[str],
    notes: list[Reused],
) -> None:
    source = instr.operands[operand].view.buffer.name
    taken.add(source)
    allocation[instr.operands[result].view.buffer.name] = allocation[source]
    notes.append(Reused(instr.id, result, operand, reason))


def _already_there(instr: Instr, result: int, operand: int) -> bool:
    to, from_ = instr.operands[result].view, instr.operands[operand].view
    return to.buffer == from_.buffer and same_places(to, from_)


def _obstacle(
    program: Program,
    lives: Mapping[str, Lifetime],
    position: int,
    result: int,
    operand: int,
    choices: tuple[int, ...],
    taken: set[str],
) -> str | None:
    """Why the instruction at `position` cannot put `result` onto `operand`; None where it can."""
    instr = program.instrs[position]
    to, from_ = instr.operands[result], instr.operands[operand]
    if to.access != OUT or from_.access != IN:
        return "one is not a plain result or operand"
    problem = shares(instr, result, operand)
    if problem is not None:
        return f"{from_.view.buffer}: {problem}"
    source, target = from_.view.buffer.name, to.view.buffer.name
    if source in taken:
        return f"another result sits on %{source}"
    if lives[source][1] != position:
        return f"%{source} is still used by {label(program.instrs[lives[source][1]])}"
    if lives[target][0] != position:
        return f"%{target} is touched before by {label(program.instrs[lives[target][0]])}"
    for index, other in enumerate(instr.operands):
        if other.view.buffer.name == source and (index not in choices or not same_places(other.view, from_.view)):
            return f"the instruction looks at %{source} in another way too"
        if other.view.buffer.name == target and index != result:
            return f"the instruction looks at %{target} in another way too"
    return None
