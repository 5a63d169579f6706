"""Dependence: exactly what touches the same elements and writes; any order that keeps it is legal."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given as drawing
from hypothesis import settings
from hypothesis import strategies as st
from toy import KERNELS

from relume.program.plan import arena_bytes, plan
from relume.program.schedule import dependences, schedule
from relume.program.text import parse_program, print_program
from relume.program.types import Program


def program(*lines: str) -> Program:
    """Instructions over a few buffers of 8 elements."""
    arena = "".join(f"  arena %{name} : f32[8]\n" for name in "abcd")
    states = "".join(
        f'  state {index} %{name} : f32[8]\n  bind state "{name}" = %{name} [8]\n' for index, name in enumerate("st")
    )
    ends = '  input 0 %x : f32[8]\n  bind input "x" = %x [8]\n  output 0 %y : f32[8]\n  bind output "y" = %y [8]\n'
    calls = [line if line.startswith(("map", "reduce")) else f"map {line}" for line in lines]
    body = "".join(f"  #{index} {call} {{}}\n" for index, call in enumerate(calls))
    return parse_program(f'program "p" {{\n{ends}{states}{arena}{body}}}\n', KERNELS)


def needs(*lines: str) -> list[tuple[int, ...]]:
    return list(dependences(program(*lines)))


def test_a_read_comes_after_the_write() -> None:
    assert needs("out %a [8]", "out %b [8]", "in %a [8], out %c [8]") == [(), (), (0,)]


def test_a_write_comes_after_the_reads() -> None:
    assert needs("out %a [8]", "in %a [8], out %b [8]", "in %a [8], out %c [8]", "out %a [8]") == [
        (),
        (0,),
        (0,),
        (0, 1, 2),
    ]


def test_two_writes_keep_their_order() -> None:
    assert needs("out %a [8]", "out %a [4]", "out %a [4] at [4]") == [(), (0,), (0,)]


def test_disjoint_parts_do_not_depend_on_each_other() -> None:
    # The two columns of a 4 by 2 matrix are interleaved in memory, and still apart.
    assert needs("out %a [4] by [2]", "out %a [4] by [2] at [1]", "in %a [4] by [2], out %b [4]") == [(), (), (0,)]


def test_a_read_of_two_parts_waits_for_both() -> None:
    assert needs("out %a [4]", "out %a [4] at [4]", "in %a [2] at [3], out %b [2]") == [(), (), (0, 1)]


def test_inout_is_a_read_and_a_write() -> None:
    assert needs("out %a [8]", "inout %a [8]", "in %a [8], out %b [8]") == [(), (0,), (1,)]


def test_inputs_make_no_dependence() -> None:
    assert needs("in %x [8], out %a [8]", "in %x [8], out %b [8]") == [(), ()]


def test_m11_a_state_is_read_before_any_state_is_written() -> None:
    # A caller may bind %s and %t to one storage.
    assert needs("in %s [8], out %a [8]", "in %t [8], out %b [8]", "in %a [8], out %t [8]") == [(), (), (0, 1)]


def test_buffers_in_place_of_each_other_keep_their_order() -> None:
    lines = ("out %a [8]", "in %a [8], out %b [8]", "in %b [8], out %c [8]")
    assert [note.operand for note in plan(program(*lines)).reused] == [0, 0]
    assert dependences(plan(program(*lines))) == ((), (0,), (0, 1))


def test_the_given_order_stays() -> None:
    given = program("out %b [8]", "out %a [8]", "in %b [8], out %y [8]")
    assert schedule(given) is given


def test_random_orders_keep_every_dependence_and_differ() -> None:
    given = program(
        *(f"out %{name} [8]" for name in "abcd"), "in %a [8], in %b [8], out %y [4]", "in %c [8], out %y [4] at [4]"
    )
    orders = set()
    for seed in range(50):
        order = [instr.id for instr in schedule(given, "random", seed).instrs]
        orders.add(tuple(order))
        assert sorted(order) == list(range(6))
        for position, before in enumerate(dependences(given)):
            assert all(order.index(other) < order.index(position) for other in before)
        assert order == [instr.id for instr in schedule(given, "random", seed).instrs], "a seed is one order"
    assert len(orders) > 20


def test_there_is_no_other_order() -> None:
    with pytest.raises(ValueError, match="one of program, memory, random"):
        schedule(program(), "best")


WIDE = ("reduce in %x [8], out %a [8]", "reduce in %x [8], out %b [8]")
NARROW = (
    "reduce in %a [8], out %c [2]",
    "reduce in %b [8], out %d [2]",
    "map in %c [2], in %d [2], out %y [2]",
)


def small_ends(*lines: str) -> Program:
    """Two wide values, %a and %b, and two that are small, %c and %d."""
    given = program(*lines)
    text = print_program(given)
    return parse_program(text.replace("%c : f32[8]", "%c : f32[2]").replace("%d : f32[8]", "%d : f32[2]"), KERNELS)


def wide(text: str) -> str:
    """The same with 64 times as many elements, so that what differs is more than alignment."""
    return re.sub(r"\[(\d+)\]", lambda match: f"[{64 * int(match[1])}]", text)


def test_for_memory_a_wide_value_is_used_up_before_the_next_is_made() -> None:
    given = parse_program(wide(print_program(small_ends(*WIDE, *NARROW))), KERNELS)
    found = schedule(given, "memory")
    assert [instr.id for instr in found.instrs] == [0, 2, 1, 3, 4]
    assert arena_bytes(plan(given)) == 2 * 2048 + 512, "both wide ones, and a small one"
    assert arena_bytes(plan(found)) == 2048 + 2 * 512


def test_for_memory_the_program_stays_where_nothing_is_gained() -> None:
    given = program("out %a [8]", "in %a [8], out %b [8]", "in %b [8], out %y [8]")
    assert schedule(given, "memory") is given


def test_for_memory_states_are_written_last() -> None:
    state = ("map in %x [8], out %s [8]",)
    given = parse_program(wide(print_program(small_ends(*state, *WIDE, *NARROW))), KERNELS)
    assert [instr.id for instr in schedule(given, "memory").instrs] == [1, 3, 2, 4, 5, 0]


@settings(max_examples=150, deadline=None)
@drawing(st.integers(0, 1 << 30))
def test_for_memory_every_dependence_is_kept_and_the_arena_is_never_larger(seed: int) -> None:
    dice = random.Random(seed)
    lines, written = [], ["x"]
    for _ in range(dice.randint(1, 12)):
        operands = [f"in %{name} [8]" for name in dice.sample(written, min(len(written), dice.randint(1, 2)))]
        result = dice.choice("abcdsty")
        half = "[4]" + dice.choice(("", " at [4]")) if result in written and dice.random() < 0.3 else "[8]"
        operands = [operand for operand in operands if f"%{result} " not in operand]
        lines.append(", ".join([*operands, f"out %{result} {half}"]))
        written = sorted({*written, result})
    given = program(*lines)
    found = schedule(given, "memory")
    order = [instr.id for instr in found.instrs]
    assert sorted(order) == list(range(len(lines)))
    for position, before in enumerate(dependences(given)):
        assert all(order.index(other) < order.index(position) for other in before)
    assert arena_bytes(plan(found)) <= arena_bytes(plan(given))
    assert found == schedule(given, "memory")
