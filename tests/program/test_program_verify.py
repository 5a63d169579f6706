"""The verifier refuses every tampered program, and says which instructions are to blame."""

from __future__ import annotations

import dataclasses
import time

import pytest
from toy import KERNELS

from relume.base.errors import VerifyError
from relume.program.plan import plan
from relume.program.text import parse_program, print_program
from relume.program.types import Program
from relume.program.verify import verify

GOOD = """program "p" {
  input 0 %x : f32[64]
  output 0 %y : f32[64]
  state 0 %s : f32[8]
  state 1 %t : f32[8]
  constant 0 %w : f32[16]
  arena %halo : f32[256] in %halo
  arena %a : f32[64] in %a
  arena %b : f32[64] in %a
  arena %c : f32[64] in %c
  bind input "x" = %x [1,1,2,2,16]
  bind output "y" = %y [64]
  bind state "s" = %s [8]
  bind state "t" = %t [8]
  #0 map in %x [1,1,2,2,16], out %halo [1,1,2,2,16] by [256,256,64,16,1] at [80] {}
  #1 halo inout %halo [1,1,4,4,16] {blocked=True, pads=(1, 1, 1, 1)}
  #2 conv_blocked in %halo [1,1,4,4,16], in %w [16], out %a [1,1,2,2,16] {}
  #3 map in %a [64], out %b [64] {}
    reuses operand 0 for 1: %a is dead after this
  #4 map in %x [32], out %c [32] {}
  #5 map in %s [8], in %t [8], out %c [8] at [32] {}
  #6 map out %c [24] at [40] {}
  #7 map in %b [64], in %c [64], out %y [64] {}
  #8 map in %c [8], out %s [8] {}
  #9 map in %c [8] at [32], out %t [8] {}
}
"""

HALO = "  #1 halo inout %halo [1,1,4,4,16] {blocked=True, pads=(1, 1, 1, 1)}\n"


def program(text: str = GOOD) -> Program:
    return parse_program(text, KERNELS)


def test_a_right_program_passes() -> None:
    verify(program())
    verify(plan(dataclasses.replace(program(), allocations={}, reused=())))
    verify(dataclasses.replace(program(), allocations={}, reused=()))


@pytest.mark.parametrize(
    ("rule", "old", "new", "blamed"),
    [
        # Names.
        ("names", "#4 map", "#3 map", ("#3 map",)),
        ("names", 'bind output "y" = %y [64]', 'bind output "y" = %y [63]', ()),
        ("names", 'bind input "x" = %x', 'bind input "x" = %w', ()),
        ("names", "constant 0 %w", "constant 1 %w", ()),
        ("names", "state 1 %t", "state 5 %t", ()),
        ("names", "reuses operand 0 for 1", "reuses operand 0 for 4", ("#3 map",)),
        # Symbols.
        ("symbols", "[24] at [40]", "[24] at [K]", ("#6 map",)),
        ("symbols", "f32[16]\n", "f32[2*K]\n", ()),
        # Range.
        ("range", "in %x [32]", "in %x [65]", ("#4 map",)),
        ("range", "in %x [32]", "in %x [32] by [-1]", ("#4 map",)),
        ("range", "in %w [16]", "in %w [16] at [1]", ("#2 conv_blocked",)),
        ("range", "out %c [32]", "out %c [32] by [0]", ("#4 map",)),
        ("range", "out %c [32]", "out %c [4,8] by [4,1]", ("#4 map",)),
        ("range", "in %x [32]", "in %x [-1]", ("#4 map",)),
        # Who may be written.
        ("who may be written", "#4 map in %x [32], out %c [32]", "#4 map in %c [32], out %x [32]", ("#4 map",)),
        ("who may be written", "in %w [16]", "inout %w [16]", ("#2 conv_blocked",)),
        ("who may be written", "#9 map in %c [8] at [32]", "#9 map in %t [8]", ("#8 map", "#9 map")),
        # Written before read.
        ("written before read", "_blocked in %halo [1,1,4,4,16]", "_blocked in %c [64]", ("#2 conv_blocked",)),
        ("written before read", HALO, "", ("#0 map", "#2 conv_blocked")),
        ("written before read", "pads=(1, 1, 1, 1)", "pads=(1, 1, 0, 1)", ("#0 map", "#1 halo")),
        ("written before read", "out %halo [1,1,2,2,16] by", "out %halo [1,1,1,2,16] by", ("#0 map", "#1 halo")),
        ("written before read", "[24] at [40]", "[23] at [40]", ("#6 map", "#7 map")),
        ("written before read", "[24] at [40]", "[12] by [2] at [40]", ("#6 map", "#7 map")),
        ("written before read", "  #4 map in %x [32], out %c [32] {}\n", "", ("#6 map", "#7 map")),
        # Outputs.
        ("outputs", "in %b [64], in %c [64], out %y [64]", "in %b [63], in %c [63], out %y [63]", ("#7 map",)),
        ("outputs", "out %y [64]", "out %c [64]", ()),
        # One reader at a time.
        ("one reader at a time", "#3 map in %a [64], out %b [64]", "#3 map in %a [8], out %a [8] at [4]", ("#3 map",)),
        ("one reader at a time", "in %x [32], out %c [32]", "out %c [32], out %c [32] at [31]", ("#4 map",)),
        # Aliasing.
        ("aliasing", "    reuses operand 0 for 1: %a is dead after this\n", "", ("#3 map",)),
        ("aliasing", "#3 map in", "#3 reduce in", ("#3 reduce",)),
        ("aliasing", "in %a [64], out %b [64]", "in %a [8,8], out %b [8,8] by [1,8]", ("#3 map",)),
        ("aliasing", "in %b [64], in %c [64]", "in %a [64], in %c [64]", ("#3 map", "#7 map")),
        ("aliasing", "%c : f32[64] in %c", "%c : f32[64] in %a", ("#4 map", "#7 map")),
    ],
)  # fmt: skip
def test_a_tampered_program_is_refused(rule: str, old: str, new: str, blamed: tuple[str, ...]) -> None:
    assert GOOD.count(old) == 1
    tampered = program(GOOD.replace(old, new))
    with pytest.raises(VerifyError) as error:
        verify(tampered)
    assert f"the rule {rule!r}" in str(error.value)
    for name in blamed:
        assert name in str(error.value)


def test_another_allocation_that_is_free_by_then_is_as_good() -> None:
    verify(program(GOOD.replace("%b : f32[64] in %a", "%b : f32[64] in %halo")))


def test_moved_instructions_are_refused() -> None:
    given = program()
    for low, high in ((0, 1), (1, 2), (2, 3), (6, 7)):
        order = list(given.instrs)
        order[low], order[high] = order[high], order[low]
        with pytest.raises(VerifyError):
            verify(dataclasses.replace(given, instrs=tuple(order)))


def test_overlapping_offsets_are_refused() -> None:
    given = program()
    right = {"halo": 0, "a": 1024, "c": 1280}
    verify(given, right)
    verify(given, {**right, "c": 0})  # %halo is dead by then.
    for wrong in ({**right, "a": 960}, {**right, "c": 1100}):
        with pytest.raises(VerifyError, match="aliasing"):
            verify(given, wrong)
    with pytest.raises(VerifyError, match="has no offset"):
        verify(given, {"halo": 0, "a": 1024})


def test_two_buffers_of_one_name_are_refused() -> None:
    given = program()
    with pytest.raises(VerifyError, match="one name"):
        verify(dataclasses.replace(given, buffers=(*given.buffers, given.buffers[0])))


SYMBOLIC = """program "p" {
  input 0 %x : f32[4*N]
  output 0 %y : f32[8*N]
  arena %a : f32[8*N+4]
  bind input "x" = %x [N,4]
  bind output "y" = %y [2*N,4]
  #0 map in %x [N,4], out %a [N,4] {}
  #1 map in %x [N,4], out %a [N,4] at [4*N] {}
  #2 map in %a [2*N,4], out %y [2*N,4] {}
}
"""


def test_unknown_extents_are_checked_under_samples() -> None:
    verify(program(SYMBOLIC))
    for old, new, rule in (
        ("out %a [N,4] at [4*N]", "out %a [N,4] at [4*N+4]", "written before read"),
        ("out %a [N,4] at [4*N]", "out %a [N,4] at [8*N]", "range"),
        ("in %a [2*N,4], out %y [2*N,4]", "in %a [N,4], out %y [N,4]", "outputs"),
    ):
        with pytest.raises(VerifyError, match=rule):
            verify(program(SYMBOLIC.replace(old, new)))


def test_an_extent_that_only_some_inputs_have_is_no_fault() -> None:
    # Legal where N is even; the sample values are.
    verify(program(SYMBOLIC.replace("[N,4]", "[2*(N//2),4]").replace('"x" = %x [2*(N//2),4]', '"x" = %x [N,4]')))


def test_m15_two_hundred_instructions_are_verified_in_milliseconds() -> None:
    lines = ["  #0 map in %x [64], out %b0 [64] {}"]
    lines += [f"  #{n} map in %b{n - 1} [64], in %x [8,8] by [1,8], out %b{n} [64] {{}}" for n in range(1, 200)]
    lines += ["  #200 map in %b199 [64], out %y [64] {}"]
    arena = "".join(f"  arena %b{n} : f32[64]\n" for n in range(200))
    text = (
        'program "p" {\n  input 0 %x : f32[64]\n  output 0 %y : f32[64]\n'
        f'{arena}  bind input "x" = %x [64]\n  bind output "y" = %y [64]\n' + "\n".join(lines) + "\n}\n"
    )
    planned = plan(program(text))
    assert len(planned.reused) == 199
    times = []
    for _ in range(5):
        begin = time.process_time()
        verify(planned)
        times.append(time.process_time() - begin)
    assert min(times) < 0.05, "under 30 ms on a quiet machine"
    assert program(print_program(planned)) == planned
