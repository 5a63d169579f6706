"""A short slice of `make fuzz`."""

from __future__ import annotations

import pytest
from fuzzing import Fuzzer, report
from machine import Kernels

PROGRAMS = 8
KERNELS = Kernels()


@pytest.mark.parametrize("first", range(0, 4 * PROGRAMS, PROGRAMS))
def test_m12_no_schedule_and_no_aliasing_changes_a_bit(first: int) -> None:
    fuzzer = Fuzzer(schedules=8, choices=32, kernels=KERNELS)
    for seed in range(first, first + PROGRAMS):
        try:
            fuzzer.check(seed)
        except Exception as error:
            raise AssertionError(report(fuzzer, seed)) from error
    assert fuzzer.counts.programs > PROGRAMS // 2
    assert fuzzer.counts.aliasings > 2 * fuzzer.counts.programs, fuzzer.counts  # There is something to choose.
    assert fuzzer.counts.multiple and fuzzer.counts.stateful, fuzzer.counts
