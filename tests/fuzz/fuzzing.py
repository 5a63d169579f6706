"""The claim: no legal schedule and no legal choice of aliasing changes a bit.

A random function is lowered once. The oracle is the same machine code in program order with one buffer per value,
which must give what the reference evaluator says; each variant (an order, and an in-place choice for every result that
has one) must give the oracle's bits, next states included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from machine import Kernels, Machine, Mismatch
from random_functions import NODES as KINDS
from random_functions import Draw, drawn

from relume.base.errors import CompileError, VerifyError
from relume.base.targets import AVX2
from relume.graph.text import print_function
from relume.graph.types import Function
from relume.lower import lower
from relume.passes.dce import dce
from relume.passes.fuse import fuse
from relume.program import plan as planning
from relume.program import schedule as scheduling
from relume.program.text import print_program
from relume.program.types import Program
from relume.program.verify import verify
from relume.reference import evaluate

NODES = 20
"""How many nodes are drawn for a function; some draw several."""


DENSE = (*KINDS, *(Draw.unary, Draw.binary, Draw.binary, Draw.several) * 4)
"""The kinds of nodes: many results that could sit on an operand, on one of two, or beside another result."""


@dataclass
class Counts:
    """What was tried."""

    programs: int = 0
    refused: int = 0
    """Programs that must update in place and cannot: they do not compile, which is their meaning."""
    schedules: int = 0
    """Orders run; those that differ from another only by name are run once."""
    refused_schedules: int = 0
    exhausted: int = 0
    """Schedules of which every legal aliasing was run."""
    variants: int = 0
    aliasings: int = 0
    """Distinct sets of in-place decisions, summed over programs."""
    multiple: int = 0
    """Programs with an instruction of several results."""
    stateful: int = 0
    """Programs that write a state."""

    def __str__(self) -> str:
        return ", ".join(f"{entry.name.replace('_', ' ')} {getattr(self, entry.name)}" for entry in fields(self))


@dataclass
class Fuzzer:
    """Compiles and compares. `verified` False leaves the program verifier out, for tests of the comparison alone."""

    schedules: int = 8
    choices: int = 256
    verified: bool = True
    counts: Counts = field(default_factory=Counts)
    kernels: Kernels = field(default_factory=Kernels)

    def check(self, seed: int, nodes: int = NODES) -> None:
        """Raises `Mismatch` or `VerifyError` for the function of this seed."""
        fn, inputs, states = function_of(seed, nodes)
        try:
            program = lower(fn, AVX2)
            alone = planning.plan(program, reuse=False)
        except CompileError as error:
            if isinstance(error, VerifyError) or "in place and cannot" not in error.what:
                raise
            self.counts.refused += 1
            return
        machine = Machine(self.kernels, program, inputs, states)
        want = self._oracle(machine, fn, alone, inputs, states)
        orders: set[tuple[int, ...]] = set()
        aliasings: set[tuple[tuple[int, int, int], ...]] = set()
        for number in range(self.schedules):
            ordered = scheduling.schedule(program, "random" if number else "program", seed + number)
            order = tuple(instr.id for instr in ordered.instrs)
            if order in orders:
                continue
            orders.add(order)
            self._schedule(machine, ordered, want, seed + number, aliasings)
        self.counts.programs += 1
        self.counts.aliasings += len(aliasings)
        self.counts.multiple += any(len(instr.writes) > 1 for instr in program.instrs)
        self.counts.stateful += fn.next_states != fn.states

    def _oracle(
        self,
        machine: Machine,
        fn: Function,
        alone: Program,
        inputs: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """What one buffer per value gives, all of them apart."""
        if self.verified:
            verify(alone)
        want = machine.order(alone).run(alone, apart=True)
        outputs, after = evaluate(fn, inputs, states)
        # All numbers are small integers in f64: the reference's tolerance is none.
        for got, wanted in zip(want, (*outputs, *after), strict=True):
            if (got.shape, got.dtype) != (wanted.shape, wanted.dtype) or not np.array_equal(got, wanted):
                raise Mismatch("one buffer per value gives something else than the reference")
        return want

    def _schedule(
        self,
        machine: Machine,
        ordered: Program,
        want: list[np.ndarray],
        seed: int,
        aliasings: set[tuple[tuple[int, int, int], ...]],
    ) -> None:
        try:
            variants, exhausted = variants_of(ordered, self.choices, seed)
        except CompileError as error:
            if isinstance(error, VerifyError) or "in place and cannot" not in error.what:
                raise
            self.counts.refused_schedules += 1  # This order keeps a reader of what must be updated in place.
            return
        self.counts.schedules += 1
        self.counts.exhausted += exhausted
        order = machine.order(ordered)
        for number, planned in enumerate(variants):
            # The first and the last one: the verifier costs more than a run.
            if self.verified and number in (0, len(variants) - 1):
                verify(planned)
            aliasings.add(decisions(planned))
            for got, wanted in zip(order.run(planned), want, strict=True):
                if got.tobytes() != wanted.tobytes():
                    raise Mismatch(f"not what one buffer per value gives:\n{print_program(planned)}")
            self.counts.variants += 1


def function_of(seed: int, nodes: int = NODES) -> tuple[Function, list[np.ndarray], list[np.ndarray]]:
    """The function of a seed, its inputs and states: every other one is fused, symbolic, updated in place."""
    fn, inputs, states = drawn(seed, symbolic=seed % 2 == 0, nodes=nodes, in_place=seed % 4 < 3, outputs=8, kinds=DENSE)
    graph = dce(fn.graph)
    return fn.with_graph(fuse(graph) if seed % 3 == 0 else graph), inputs, states


def decisions(planned: Program) -> tuple[tuple[int, int, int], ...]:
    """Which results sit on which operands."""
    return tuple(sorted((note.instr, note.result, note.operand) for note in planned.reused))


def variants_of(ordered: Program, limit: int, seed: int) -> tuple[list[Program], bool]:
    """The program with every legal aliasing, and True; of more than `limit`, that many at random, and False.

    Those at random have the first choice and no choice at all among them.
    """
    found = []
    for planned in every_plan(ordered):
        found.append(planned)
        if len(found) > limit:
            break
    else:
        return found, True
    plans = [planning.plan(ordered), planning.plan(ordered, reuse=False)]
    plans += [planning.plan(ordered, seed=seed + number) for number in range(limit - len(plans))]
    return list({decisions(planned): planned for planned in plans}.values()), False


def every_plan(ordered: Program) -> Iterator[Program]:
    """All legal aliasings, depth first: the last decision that has an alternative left takes it."""
    path: list[int] = []
    while True:
        counts: list[int] = []

        def choose(operands: Sequence[int], path: list[int] = path, counts: list[int] = counts) -> int | None:
            turn = path[len(counts)] if len(counts) < len(path) else 0
            counts.append(len(operands) + 1)
            return operands[turn] if turn < len(operands) else None

        yield planning.plan(ordered, choose=choose)
        path = path + [0] * (len(counts) - len(path))
        while path and path[-1] == counts[len(path) - 1] - 1:
            path.pop()
        if not path:
            return
        path[-1] += 1


def smallest(fuzzer: Fuzzer, seed: int) -> tuple[int, Exception]:
    """The fewest nodes with which the function of a failing seed still fails, and how."""
    for nodes in range(1, NODES + 1):
        try:
            fuzzer.check(seed, nodes)
        except Exception as error:
            return nodes, error
    raise LookupError(f"seed {seed} does not fail")


def report(fuzzer: Fuzzer, seed: int) -> str:
    """The smallest program of a failing seed, and what is wrong with it."""
    nodes, error = smallest(fuzzer, seed)
    return f"seed {seed}, {nodes} nodes: {type(error).__name__}: {error}\n{print_function(function_of(seed, nodes)[0])}"
