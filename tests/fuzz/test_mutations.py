"""A planner or a scheduler with a fault is found: by the program verifier, and by the comparison without it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fuzzing import Fuzzer
from machine import Kernels, Mismatch

from relume.base.errors import VerifyError
from relume.program import plan as planning
from relume.program import schedule as scheduling
from relume.program.types import Program

KERNELS = Kernels()

Patch = Callable[[pytest.MonkeyPatch], None]


def free_early(patch: pytest.MonkeyPatch) -> None:
    """Every lifetime ends one instruction early: for in-place decisions and for the layout."""
    true = planning.buffer_lifetimes

    def early(program: Program) -> dict[str, planning.Lifetime]:
        return {name: (first, max(first, last - 1)) for name, (first, last) in true(program).items()}

    patch.setattr(planning, "buffer_lifetimes", early)


def lay_out_early(patch: pytest.MonkeyPatch) -> None:
    """The same for the layout alone: in-place decisions are right, and the memory is given away while it is read."""
    true = planning.lifetimes

    def early(program: Program) -> dict[str, planning.Lifetime]:
        return {name: (first, max(first, last - 1)) for name, (first, last) in true(program).items()}

    patch.setattr(planning, "lifetimes", early)


def drop_dependence(patch: pytest.MonkeyPatch) -> None:
    """One of a program's dependences is forgotten. (Others may imply it: then nothing is wrong.)"""
    true = scheduling.dependences

    def dropped(program: Program) -> tuple[tuple[int, ...], ...]:
        needs = true(program)
        edges = [(position, other) for position, before in enumerate(needs) for other in before]
        gone = random.Random(len(edges)).choice(edges) if edges else None
        return tuple(
            tuple(other for other in before if (position, other) != gone) for position, before in enumerate(needs)
        )

    patch.setattr(scheduling, "dependences", dropped)


def share_operand(patch: pytest.MonkeyPatch) -> None:
    """Two results of one instruction may take the same operand."""
    true = planning._obstacle
    patch.setattr(planning, "_obstacle", lambda *arguments: true(*arguments[:-1], set()))


def search(verified: bool, programs: int) -> tuple[int, str]:
    """After how many programs the fault is found, and by what. Raises where it is not."""
    fuzzer = Fuzzer(schedules=4, choices=16, verified=verified, kernels=KERNELS)
    for seed in range(programs):
        try:
            fuzzer.check(seed)
        except VerifyError as error:
            return seed + 1, f"the verifier: {error.what}"
        except Mismatch as error:
            return seed + 1, f"the comparison: {str(error).splitlines()[0]}"
    raise AssertionError(f"not found in {programs} programs: {fuzzer.counts}")


@pytest.mark.parametrize(
    ("mutate", "rule"),
    [(free_early, "aliasing"), (drop_dependence, "written before read"), (share_operand, "aliasing")],
)
def test_the_verifier_refuses(monkeypatch: pytest.MonkeyPatch, mutate: Patch, rule: str) -> None:
    mutate(monkeypatch)
    _, by = search(verified=True, programs=10)
    assert by.startswith(f"the verifier: the program breaks the rule '{rule}'"), by


@pytest.mark.parametrize("mutate", [free_early, lay_out_early, drop_dependence, share_operand])
def test_the_comparison_finds_without_the_verifier(monkeypatch: pytest.MonkeyPatch, mutate: Patch) -> None:
    mutate(monkeypatch)
    _, by = search(verified=False, programs=10)
    assert by.startswith("the comparison"), by
