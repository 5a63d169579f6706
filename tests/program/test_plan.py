"""In-place decisions: taken where they are legal, and nowhere else."""

from __future__ import annotations

import dataclasses

import pytest
from toy import KERNELS

from relume.base import dims
from relume.base.errors import CompileError
from relume.program.plan import lifetimes, plan, sizes
from relume.program.text import parse_program
from relume.program.types import Program
from relume.program.verify import verify

HEAD = """program "p" {
  input 0 %x : f32[8]
  output 0 %y : f32[8]
  state 0 %s : f32[8]
  constant 0 %w : f32[8]
  arena %a : f32[8]
  arena %b : f32[8]
  arena %c : f32[8]
  arena %d : f32[8]
  arena %long : f32[16]
  arena %wide : f64[4]
  arena %ints : i32[8]
  bind input "x" = %x [8]
  bind output "y" = %y [8]
  bind state "s" = %s [8]
"""


def program(*lines: str) -> Program:
    body = "".join(f"  #{index} {line} {{}}\n" for index, line in enumerate(lines))
    return parse_program(HEAD + body + "}\n", KERNELS)


def shared(*lines: str) -> set[tuple[str, str]]:
    """Pairs (result's buffer, operand's buffer) that `plan` puts in one place; what it makes is verified."""
    planned = plan(program(*lines))
    by_id = {instr.id: instr for instr in planned.instrs}
    verify(dataclasses.replace(planned, outputs=()))
    out = set()
    for note in planned.reused:
        result, operand = (by_id[note.instr].operands[index].view.buffer.name for index in (note.result, note.operand))
        assert planned.allocations[result] == planned.allocations[operand]
        out.add((result, operand))
    return out


FILL_A, FILL_B = "map out %a [8]", "map out %b [8]"


def test_a_dying_operand_gives_its_memory() -> None:
    assert shared(FILL_A, "map in %a [8], out %b [8]", "map in %b [8], out %c [8]") == {("b", "a"), ("c", "b")}


def test_an_element_type_of_the_same_size_will_do() -> None:
    assert shared(FILL_A, "map in %a [8], out %ints [8]") == {("ints", "a")}


def test_the_first_operand_that_dies_is_taken() -> None:
    lines = (FILL_A, FILL_B, "map in %a [8], in %b [8], out %c [8]", "map in %a [8], out %y [8]")
    assert shared(*lines) == {("c", "b")}


@pytest.mark.parametrize(
    ("why", "lines"),
    [
        ("the operand is read later", (FILL_A, "map in %a [8], out %b [8]", "map in %a [8], out %y [8]")),
        ("the operand is an input", ("map in %x [8], out %a [8]",)),
        ("the operand is a state", ("map in %s [8], out %a [8]",)),
        ("the operand is a constant", ("map in %w [8], out %a [8]",)),
        ("the result is an output", (FILL_A, "map in %a [8], out %y [8]")),
        ("the strides differ", (FILL_A, "map in %a [2,4], out %b [2,4] by [1,2]")),
        ("the buffers differ in size", ("map out %long [16]", "map in %long [8], out %b [8]")),
        ("the elements differ in size", (FILL_A, "map in %a [4], out %wide [4]")),
        ("the offsets differ", (FILL_A, "map in %a [4], out %b [4] at [4]")),
        ("the operand is broadcast", (FILL_A, "map in %a [8,1] by [0,1], out %b [8,1]")),
        ("the operand is read in another way too", (FILL_A, "map in %a [2,4], in %a [2,4] by [1,2], out %b [2,4]")),
        ("the result has been written before", (FILL_A, "map out %b [4]", "map in %a [4] at [4], out %b [4] at [4]")),
        ("the kernel does not allow it", (FILL_A, "reduce in %a [8], out %b [8]")),
    ],
)
def test_nothing_is_shared_where(why: str, lines: tuple[str, ...]) -> None:
    assert shared(*lines) == set(), why


def test_an_operand_given_twice_in_one_way_is_taken() -> None:
    assert shared(FILL_A, "map in %a [8], in %a [8], out %b [8]") == {("b", "a")}


def test_m9_two_results_take_two_operands_and_never_one() -> None:
    assert shared(FILL_A, FILL_B, "map in %a [8], in %b [8], out %c [8], out %d [8]") == {("c", "a"), ("d", "b")}
    assert shared(FILL_A, "map in %a [8], out %c [8], out %d [8]") == {("c", "a")}


def test_without_reuse_every_buffer_is_its_own_allocation() -> None:
    planned = plan(program(FILL_A, "map in %a [8], out %b [8]"), reuse=False)
    assert planned.reused == ()
    assert dict(planned.allocations) == {"a": "a", "b": "b"}


def test_a_chain_in_place_is_one_allocation_that_lives_throughout() -> None:
    planned = plan(
        program(FILL_A, "map in %a [8], out %b [8]", FILL_A.replace("%a", "%d"), "map in %b [8], out %c [8]")
    )
    assert lifetimes(planned) == {"a": (0, 3), "d": (2, 2)}
    assert sizes(planned) == {"a": 32, "d": 32}


def test_unknown_extents_share_where_they_are_the_same_expression() -> None:
    text = HEAD.replace("f32[8]", "f32[8*N]").replace(" [8]", " [N,8]") + (
        "  #0 map out %a [N,8] {}\n  #1 map in %a [N,8], out %b [N,8] {}\n}\n"
    )
    planned = plan(parse_program(text, KERNELS))
    assert [note.operand for note in planned.reused] == [0]
    assert sizes(planned) == {"a": 32 * dims.symbol("N")}


def test_must_reuse_is_kept() -> None:
    lines = (FILL_A, "scatter in %a [8], in %x [8], out %b [8]")
    assert shared(*lines) == {("b", "a")}
    assert plan(program(*lines), reuse=False).reused[0].reason == "the kernel works in place"


def test_must_reuse_that_cannot_be_kept_names_the_other_reader() -> None:
    given = program(FILL_A, "scatter in %a [8], in %x [8], out %b [8]", "map in %a [8], out %c [8]")
    with pytest.raises(CompileError) as error:
        plan(given)
    assert "%a is still used by #2 map" in str(error.value)
    assert "#1 scatter" in str(error.value)


def test_must_reuse_takes_a_buffer_that_is_both_already() -> None:
    given = program("map in %x [8], out %a [8]", "scatter in %a [8], in %x [8], out %a [8]")
    assert plan(given).reused == ()


def test_a_seed_draws_among_the_legal_choices() -> None:
    given = program(FILL_A, FILL_B, "map in %a [8], in %b [8], out %c [8]")
    drawn = {tuple(note.operand for note in plan(given, seed=seed).reused) for seed in range(40)}
    assert drawn == {(), (0,), (1,)}
