"""The one ordered table of passes, with the reason for each place, and the road from a function to an artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from relume import codegen
from relume.base.errors import CompileError
from relume.base.requirements import Requirement
from relume.base.targets import Target
from relume.codegen import Cache
from relume.graph import passes as graph_passes
from relume.graph.passes import Pass
from relume.graph.types import Function
from relume.graph.verify import verify as verify_graph
from relume.lower import lower
from relume.ops.inference import requirements_of
from relume.passes.canonicalize import canonicalize
from relume.passes.cse import cse
from relume.passes.dce import dce
from relume.passes.decompose import decompose
from relume.passes.derive import derive, split
from relume.passes.fold import fold, fold_early
from relume.passes.fuse import fuse
from relume.passes.layout import layout
from relume.passes.widen import widen
from relume.program.plan import plan
from relume.program.schedule import schedule
from relume.program.types import Program
from relume.program.verify import verify as verify_program
from relume.runtime.artifact import Artifact


@dataclass(frozen=True)
class Row:
    """One place in the order: the pass, and why it stands here."""

    run: Pass
    reason: str


TABLE: tuple[Row, ...] = (
    Row(widen, "before decompose: what a composite is made of is then computed in f32 throughout"),
    Row(decompose, "early: every later pass and the lowering see simple ops only"),
    Row(cse, "before fold, which would make data of each of twenty transposes of one matrix (unrolled recurrences)"),
    Row(
        fold_early, "turns what batch norms are made of into constants, which canonicalize then moves into convolutions"
    ),
    Row(canonicalize, "before layout, which looks for one form of each thing"),
    Row(cse, "after canonicalize, which makes equal things look equal"),
    Row(dce, "so that layout meets no dead users"),
    Row(layout, "before fusion, which must not lock a convolution in plain layout"),
    Row(cse, "one packed form of each shared weight or input, before it is computed"),
    Row(fold, "packs the weights that layout has asked for"),
    Row(dce, "so that no dead user keeps a value from being fused"),
    Row(derive, "after layout, which asks for packed states; before fusion, which would mix the kept with the rest"),
    Row(fuse, "last: a fused region hides its ops from every other pass"),
    Row(dce, "drops what the fused regions have replaced"),
)

PASSES: Mapping[str, Pass] = {row.run.name: row.run for row in TABLE}
"""Every pass by name, for the command line and the text tests."""

graph_passes.check_table([row.run for row in TABLE])

Watch = Callable[[str, Function], None]
"""Called with a pass's name and the function that it gave."""


def optimize(fn: Function, *, level: int = 1, check: bool = False, watch: Watch | None = None) -> Function:
    """Runs the table: at level 0 the required passes only. With `check`, invariants are verified after every pass.

    Raises `CompileError` naming the pass that broke an invariant.
    """
    if level not in (0, 1):
        raise CompileError("there is no such optimisation level", expected="0 or 1", got=level)
    table = [row.run for row in TABLE if level > 0 or row.run.required]
    return graph_passes.run(table, fn, check=check, after=watch)


def to_program(
    fn: Function,
    target: Target,
    *,
    order: str = "program",
    reuse: bool = True,
    requirements: Sequence[Requirement] = (),
) -> Program:
    """Lowers an optimised function, orders it, plans its memory, and verifies the result: in every build.

    `order` is one of `program.schedule.ORDERS`. `requirements` are those of the function before passes: shapes that
    break them are never run.
    """
    program = plan(schedule(lower(fn, target), order), reuse=reuse)
    verify_program(program, requirements=requirements)
    return program


def programs(
    fn: Function,
    target: Target,
    *,
    level: int = 1,
    check: bool = False,
    watch: Watch | None = None,
    order: str = "program",
    reuse: bool = True,
) -> tuple[Program, ...]:
    """The program of a function, and behind it, where something is derived from states apart, the one that does it.

    The outputs of the second are the last inputs of the first. Raises what `optimize` and `to_program` raise.
    """
    first, derived = split(optimize(fn, level=level, check=check, watch=watch))
    program = to_program(first, target, order=order, reuse=reuse, requirements=requirements_of(fn))
    if derived is None:
        return (program,)
    derived = optimize(derived, level=level, check=check, watch=watch)
    return program, to_program(derived, target, order=order, reuse=reuse)


def build(
    fn: Function,
    target: Target,
    *,
    level: int = 1,
    check: bool = False,
    cache: Cache | None = None,
    watch: Watch | None = None,
) -> Artifact:
    """The whole road: verify, optimise, lower, and generate code."""
    verify_graph(fn)
    requirements = requirements_of(fn)
    artifact, *derived = (
        codegen.build(program, target, cache=cache)
        for program in programs(fn, target, level=level, check=check, watch=watch)
    )
    return replace(
        artifact,
        inputs=artifact.inputs[: len(fn.inputs)],
        requirements=requirements,
        derived=derived[0] if derived else None,
    )
