"""Memory effects, requirement by requirement: every claim without optimisation and with it, in every order drawn."""

from __future__ import annotations

import dataclasses
import itertools

import interpreter
import numpy as np
import pytest

import relume
from relume import Storage, pipeline
from relume.base import targets
from relume.base.errors import CompileError, ModelError, VerifyError
from relume.graph.opdef import Trait
from relume.graph.text import print_function
from relume.graph.types import Function, State
from relume.graph.verify import verify as verify_graph
from relume.ops import OPS
from relume.program.plan import plan
from relume.program.schedule import schedule
from relume.program.types import IN, INOUT, Program, Space
from relume.program.verify import verify
from relume.reference import evaluate

LEVELS = (0, 1)
both_levels = pytest.mark.parametrize("level", LEVELS)
ROWS = "const @i : i64[3] = [1,4,-1]\nconst @j : i32[2] = [2,2]"


def function(body: str, consts: str = ROWS, outputs: str = "%y", after: str = "%s1, %t") -> Function:
    """A function of %x and %z, with two states of five rows. The last index of @i names row 4 again."""
    return relume.parse(
        f"func @main(%x : f32[3,4], %z : f32[5,4]) states(%s : f32[5,4], %t : f32[5,4]) {{\n{body}\n"
        f"return {outputs} states({after})\n}}\n{consts}"
    ).main


def lowered(fn: Function, level: int) -> Program:
    return pipeline.to_program(pipeline.optimize(fn, level=level, check=True), targets.AVX2)


def arrays(fn: Function) -> tuple[list[np.ndarray], list[np.ndarray]]:
    dice = np.random.default_rng(5)
    made = [dice.integers(-9, 10, value.dims).astype(np.float32) for value in (*fn.inputs, *fn.states)]
    return made[: len(fn.inputs)], made[len(fn.inputs) :]


def check(fn: Function, level: int) -> None:
    """The reference, compiled code, and every schedule and aliasing drawn give the same bits."""
    inputs, states = arrays(fn)
    outputs, after = evaluate(fn, inputs, states)
    want = [array.tobytes() for array in (*outputs, *after)]
    exe = relume.compile(fn, threads=1, optimize=level, check=True, cache=False)
    storage = Storage({value.name: array for value, array in zip(fn.states, states)})
    got = exe.run(dict(zip([value.name for value in fn.inputs], inputs)), states=storage)
    assert [*(got[n].tobytes() for n in fn.output_names), *(storage[v.name].tobytes() for v in fn.states)] == want
    program = lowered(fn, level)
    for seed in range(12):
        drawn = plan(schedule(program, "random", seed), reuse=seed % 3 > 0, seed=seed if seed % 2 else None)
        verify(drawn)
        found, left = interpreter.run(drawn, inputs, states)
        assert [array.tobytes() for array in (*found, *left)] == want


CHAINS = {
    "write, scatter": (
        "%s0 = state_write(%s, %z)\n%s1 = scatter_add(%s0, @i, %x)\n%r = state_read(%s1)\n%y = neg(%r)",
        "%s1, %t",
    ),
    "scatter, scatter": (
        "%s0 = scatter_add(%s, @i, %x)\n%s1 = scatter_update(%s0, @i, %x)\n%r = state_read(%t)\n%y = neg(%r)",
        "%s1, %t",
    ),
    "scatter, read": ("%s1 = scatter_update(%s, @i, %x)\n%r = state_read(%s1)\n%y = add(%r, %z)", "%s1, %t"),
    "scatter, write": (
        "%s0 = scatter_add(%s, @i, %x)\n%r = state_read(%s0)\n%y = neg(%r)\n%s1 = state_write(%s0, %y)",
        "%s1, %t",
    ),
    "read, scatter, read old": (
        "%r = state_read(%s)\n%s1 = scatter_add(%s, @i, %x)\n%n = state_read(%s1)\n%m = neg(%n)\n%y = neg(%r)",
        "%s1, %t",
    ),
    "old rows as updates": (
        "%r = state_read(%s)\n%u = slice(%r, starts=[1,0], stops=[4,4], steps=[1,1])\n"
        "%s1 = scatter_update(%s, @i, %u)\n%y = neg(%z)",
        "%s1, %t",
    ),
    "swap": (
        "%a = state_read(%s)\n%b = state_read(%t)\n%s1 = state_write(%s, %b)\n%t1 = state_write(%t, %a)\n%y = neg(%z)",
        "%s1, %t1",
    ),
    "swap, scatter both": (
        "%b = state_read(%t)\n%p = neg(%b)\n%a = state_read(%s)\n%q = neg(%a)\n%s0 = state_write(%s, %p)\n"
        "%t0 = state_write(%t, %q)\n%s1 = scatter_add(%s0, @i, %x)\n%t1 = scatter_update(%t0, @i, %x)\n%y = neg(%z)",
        "%s1, %t1",
    ),
    "two saves": (
        "%s0 = state_write(%s, %z)\n%y = neg(%z)\n%s1 = state_write(%s0, %y)",
        "%s1, %t",
    ),
    "the other state is only read": (
        "%s1 = scatter_add(%s, @i, %x)\n%n = state_read(%s1)\n%r = state_read(%t)\n%y = mul(%r, %n)",
        "%s1, %t",
    ),
    "untouched": ("%r = state_read(%s)\n%y = add(%r, %z)", "%s, %t"),
    "a state is an output": ("%y = state_read(%s)\n%s1 = scatter_add(%s, @i, %x)", "%s1, %t"),
}
chains = pytest.mark.parametrize(("body", "after"), CHAINS.values(), ids=CHAINS.keys())

NEEDS_ALL = "%r = state_read(%s)\n%s1 = scatter_add(%s, @i, %x)\n%n = state_read(%s1)\n%y = sub(%r, %n)"


@both_levels
@chains
def test_m11_m12_reads_see_their_version_in_every_schedule(body: str, after: str, level: int) -> None:
    check(function(body, after=after), level)


def test_m8_two_writers_of_one_version_are_refused_and_both_are_named() -> None:
    for op in ("state_write(%s, %z)", "scatter_add(%s, @i, %x)"):
        fn = function(f"%s1 = {op}\n%late = scatter_update(%s, @i, %x)\n%y = neg(%z)")
        with pytest.raises(VerifyError) as error:
            verify_graph(fn)
        assert "%s1" in str(error.value) and "%late" in str(error.value)


@both_levels
def test_m9_two_results_never_take_one_dying_operand(level: int) -> None:
    body = (
        '%a = neg(%z)\n%b = abs(%z)\n%p, %q = fused(%a, %b, kind="map") {(%u : f32[5,4], %v : f32[5,4]) '
        "%c = add(%u, %v)\n%d = sub(%u, %v) yield %c, %d}\n%s1 = state_write(%s, %p)\n%y = neg(%q)"
    )
    fn = function(body)
    check(fn, level)
    program = lowered(fn, level)
    taken = [(note.instr, note.operand) for note in program.reused]
    assert len(taken) == len(set(taken))
    two = next(i for i in program.instrs if [o.access for o in i.operands].count("out") == 2)
    notes = [note for note in program.reused if note.instr == two.id]
    if level == 0:  # At level 1 the operands are fused away.
        assert len(notes) == 2
        same = dataclasses.replace(notes[1], operand=notes[0].operand)
        victim = two.operands[notes[1].result].view.buffer.name
        at = program.allocations[two.operands[notes[0].operand].view.buffer.name]
        wrong = dataclasses.replace(
            program,
            allocations={**program.allocations, victim: at},
            reused=(*(note for note in program.reused if note != notes[1]), same),
        )
        with pytest.raises(VerifyError, match=f"#{two.id} "):
            verify(wrong)


def test_m10_only_ops_that_yield_a_state_have_an_effect() -> None:
    effects = {name for name, op in OPS.items() if op.has(Trait.EFFECT)}
    assert effects == {"state_write", "scatter_add", "scatter_update"}
    for level, (body, after) in itertools.product(LEVELS, CHAINS.values()):
        fn = function(body, after=after)
        wrote = {v.name for v, following in zip(fn.states, fn.next_states) if following is not v}
        program = lowered(fn, level)
        names = {buffer.name for instr in program.instrs for buffer in instr.writes if buffer.space is Space.STATE}
        assert names == wrote
        for node in fn.graph.nodes:
            assert node.op.has(Trait.EFFECT) == any(isinstance(result.type, State) for result in node.results)


@both_levels
def test_m11_the_order_of_nodes_does_not_matter(level: int) -> None:
    lines = ["%r = state_read(%s)", "%u = neg(%r)", "%s1 = scatter_add(%s, @i, %x)", "%n = state_read(%s1)",
             "%v = neg(%n)", "%y = mul(%z, %z)"]  # fmt: skip
    answers = set()
    for order in itertools.permutations(lines):
        place = {line.split()[0]: index for index, line in enumerate(order)}
        # A version is read before it is consumed, and everything is defined before its use.
        if place["%r"] < place["%u"] and place["%r"] < place["%s1"] < place["%n"] < place["%v"]:
            fn = function("\n".join(order), outputs="%u, %v, %y")
            found = interpreter.run(lowered(fn, level), *arrays(fn))
            answers.add(tuple(array.tobytes() for group in found for array in group))
    assert len(answers) == 1


@both_levels
def test_m12_a_second_reader_of_a_consumed_version_is_refused_with_both_named(level: int) -> None:
    program = lowered(function(CHAINS["read, scatter, read old"][0], outputs="%m, %y"), level)
    scatter = next(i for i in program.instrs if i.kernel.name == "scatter_add")
    old, new = (i for i in program.instrs if any(o.access == IN and o.view.buffer.name == "s" for o in i.operands))
    check = next(i for i in program.instrs if i.kernel.name == "row_numbers")
    rest = [instr for instr in program.instrs if instr not in (check, scatter, old, new)]
    verify(dataclasses.replace(program, instrs=(check, old, scatter, new, *rest), allocations={}, reused=()))
    for order, blamed, what in (
        ((scatter, old, new), (scatter, old), "was consumed"),
        ((old, new, scatter), (new,), "not there yet"),
    ):
        with pytest.raises(VerifyError, match=what) as error:
            verify(dataclasses.replace(program, instrs=(check, *order, *rest), allocations={}, reused=()))
        assert all(f"#{instr.id} " in str(error.value) for instr in blamed)


@both_levels
@pytest.mark.parametrize("body", [body for body, after in CHAINS.values() if after == "%s1, %t"])
def test_m12_a_state_that_is_only_read_may_share_the_memory_of_one_that_is_written(body: str, level: int) -> None:
    fn = function(body)
    inputs, (state, _) = arrays(fn)
    outputs, (following, _) = evaluate(fn, inputs, [state, state])
    for seed in range(4):
        machine = interpreter.Machine(plan(schedule(lowered(fn, level), "random", seed)), inputs, [state, state])
        machine.memory["t"] = machine.memory["s"]
        found, left = machine.run()
        assert [array.tobytes() for array in (*found, left[0])] == [array.tobytes() for array in (*outputs, following)]


@both_levels
def test_m13_a_part_of_the_old_version_is_an_explicit_snapshot_and_the_whole_is_refused(level: int) -> None:
    part = NEEDS_ALL.replace("%y = sub(%r, %n)", "%o = slice(%r, starts=[0,0], stops=[2,4], steps=[1,1])\n"
        "%k = gather(%n, @j, axis=0)\n%y = sub(%o, %k)")  # fmt: skip
    check(function(part), level)
    with pytest.raises(CompileError, match=r"scatter_add updates the state 's' in place and cannot: map -> %y"):
        lowered(function(NEEDS_ALL), level)


@both_levels
def test_m14_only_the_rows_named_are_written_and_nothing_of_the_size_of_the_table_is_copied(level: int) -> None:
    rows = 100_000
    fn = relume.parse(
        f"func @main(%i : i64[8], %g : f32[8,16]) states(%table : f32[{rows},16]) {{\n"
        "%r = state_read(%table)\n%e = gather(%r, %i, axis=0)\n%d = mul(%e, %g)\n"
        '%next = scatter_add(%table, %i, %d)\nreturn %e as "rows" states(%next)\n}'
    ).main
    program = lowered(fn, level)
    touching = [o for i in program.instrs for o in i.operands if o.access != IN and o.view.buffer.space is Space.STATE]
    assert [operand.access for operand in touching] == [INOUT]
    assert sum(buffer.elements for buffer in program.arena) <= 8 * 16 + 8  # The updates, and a number for each row.
    table = np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32)
    indices = np.array([5, 99_999, 77, 5, -3, 0, 1, 2])
    updates = np.ones((8, 16), np.float32)
    storage = Storage({"table": table})
    relume.compile(fn, threads=2, optimize=level, cache=False).run({"i": indices, "g": updates}, states=storage)
    got, want = storage["table"], table.copy()
    np.add.at(want, indices, table[indices])
    assert got.tobytes() == want.tobytes()
    assert set(np.flatnonzero((got != table).any(1))) == set(indices % rows)


def test_m15_legality_does_not_depend_on_optimisation() -> None:
    for body, after in (*CHAINS.values(), (NEEDS_ALL, "%s1, %t")):
        said = []
        for level in LEVELS:
            try:
                lowered(function(body, after=after), level)
                said.append("")
            except CompileError as error:
                said.append(error.what)
        assert said[0] == said[1]


def test_m16_the_four_kinds_are_told_apart_in_type_text_and_checks() -> None:
    fn = function(CHAINS["scatter, read"][0])
    text = print_function(fn)
    assert "states(%s : f32[5,4], %t : f32[5,4])" in text and ": state<f32[5,4]>" in text and "@i" in text
    spaces = {buffer.space for buffer in lowered(fn, 1).buffers}
    assert {Space.INPUT, Space.OUTPUT, Space.STATE, Space.CONSTANT} <= spaces
    for target in ("%x", "@c"):
        with pytest.raises(ModelError, match="is not a state"):
            function(f"%s1 = scatter_add({target}, @i, %x)\n%y = neg(%z)", ROWS + "\nconst @c : f32[5,4] = splat 0.0")
