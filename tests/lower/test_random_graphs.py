"""Random graphs: lowered, reordered at random, with random in-place choices, they mean what the reference says."""

from __future__ import annotations

import interpreter
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_functions import drawn

from relume.base.errors import CompileError
from relume.base.targets import AVX2
from relume.graph.types import Function
from relume.lower import lower
from relume.passes.dce import dce
from relume.passes.fuse import fuse
from relume.program.plan import SAMPLES, arena_bytes, plan
from relume.program.schedule import schedule
from relume.program.verify import verify
from relume.reference import evaluate


def check(fn: Function, inputs: list[np.ndarray], states: list[np.ndarray], fused: bool, seed: int) -> None:
    """Every order and every choice of aliasing against the reference."""
    want = evaluate(fn, inputs, states)
    graph = dce(fn.graph)
    program = lower(fn.with_graph(fuse(graph) if fused else graph), AVX2)
    verify(program)
    for order, choice in (
        ("program", None),
        ("memory", None),
        ("random", None),
        ("random", seed),
        ("random", seed + 1),
    ):
        planned = plan(schedule(program, order, seed + (choice or 0)), seed=choice)
        verify(planned)
        if order == "program":
            bytes_before = [arena_bytes(planned, sample) for sample in SAMPLES]
        elif order == "memory":
            assert all(now <= then for now, then in zip([arena_bytes(planned, s) for s in SAMPLES], bytes_before))
        got = interpreter.run(planned, inputs, states)
        agree(got[0], want[0])
        agree(got[1], want[1])


def agree(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for mine, theirs in zip(got, want):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_m12_any_order_and_any_legal_aliasing_mean_the_same(symbolic: bool, fused: bool, seed: int) -> None:
    check(*drawn(seed, symbolic), fused, seed)


@pytest.mark.parametrize("symbolic", [False, True])
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 30), fused=st.booleans())
def test_m11_m12_updates_in_place_mean_the_same_or_are_refused(symbolic: bool, seed: int, fused: bool) -> None:
    try:
        check(*drawn(seed, symbolic, in_place=True), fused, seed)
    except CompileError as error:
        assert type(error) is CompileError and "in place and cannot" in error.what, error
