"""Dependence: exactly what touches the same elements and writes; any order that keeps it is legal."""

from __future__ import annotations

import pytest
from toy import KERNELS

from relume.program.plan import plan
from relume.program.schedule import dependences, schedule
from relume.program.text import parse_program
from relume.program.types import Program


def program(*lines: str) -> Program:
    """Instructions over a few buffers of 8 elements."""
    arena = "".join(f"  arena %{name} : f32[8]\n" for name in "abcd")
    states = "".join(
        f'  state {index} %{name} : f32[8]\n  bind state "{name}" = %{name} [8]\n' for index, name in enumerate("st")
    )
    ends = '  input 0 %x : f32[8]\n  bind input "x" = %x [8]\n  output 0 %y : f32[8]\n  bind output "y" = %y [8]\n'
    body = "".join(f"  #{index} map {line} {{}}\n" for index, line in enumerate(lines))
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
    with pytest.raises(ValueError, match="'program' or 'random'"):
        schedule(program(), "best")
