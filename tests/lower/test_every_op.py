"""Every op that can be lowered, on every sample of its own, means in memory what its reference says."""

from __future__ import annotations

from collections.abc import Iterator

import interpreter
import numpy as np
import pytest

from relume.base.errors import InputError, RunError, UnsupportedError
from relume.base.targets import AVX2
from relume.graph.opdef import InferError, OpDef, Sample
from relume.graph.types import Function
from relume.kernels import KERNELS
from relume.lower import OPS as LOWERED
from relume.lower import lower
from relume.ops import OPS
from relume.ops.sampling import arrays_of, one_node
from relume.program.plan import plan
from relume.program.schedule import schedule
from relume.program.text import parse_program, print_program
from relume.program.types import Program
from relume.program.verify import verify
from relume.reference import evaluate

NOT_YET = {"if", "loop", "quantize", "dequantize", "random_uniform"}
"""Ops that have neither a lowering nor a decomposition so far."""


def cases(symbolic: bool = False) -> Iterator[object]:
    for name, op in OPS.items():
        for index, sample in enumerate(op.samples() if name in LOWERED else ()):
            if sample.error is None and (not symbolic or is_general(op, sample)):
                yield pytest.param(op, sample, id=f"{name}-{index}")


def is_general(op: OpDef, sample: Sample) -> bool:
    """Whether the sample means something with a symbol for every extent: nothing in it speaks of an extent."""
    arrays = arrays_of(sample)
    try:
        fn = one_node(op, sample, arrays, OPS, symbolic=True).main
        evaluate(fn, arrays[fn.state_count :], arrays[: fn.state_count])
    except (InferError, InputError, RunError):
        return False
    return True


def planned(fn: Function) -> Program:
    program = plan(schedule(lower(fn, AVX2)))
    verify(program)
    data = {buffer.name: buffer.data for buffer in program.constants if buffer.data is not None}
    assert parse_program(print_program(program), KERNELS, data) == program
    return program


def check(fn: Function, program: Program, arrays: list[np.ndarray], tolerance: float) -> None:
    states, inputs = arrays[: fn.state_count], arrays[fn.state_count :]
    want, want_states = evaluate(fn, inputs, states)
    got, got_states = interpreter.run(program, inputs, states)
    for mine, theirs in zip([*got, *got_states], [*want, *want_states]):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        if mine.dtype.kind in "biu":
            assert np.array_equal(mine, theirs)
            continue
        mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(theirs)
        assert np.array_equal(mine[~finite], theirs[~finite], equal_nan=True)
        limit = tolerance * np.abs(theirs[finite]).max(initial=0)
        assert np.abs(mine[finite] - theirs[finite]).max(initial=0) <= limit


@pytest.mark.parametrize(("op", "sample"), [*cases()])
def test_with_known_extents(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    fn = one_node(op, sample, arrays, OPS).main
    try:
        program = planned(fn)
    except UnsupportedError as error:
        # Only for element types without a kernel.
        ((_, name, reason),) = error.nodes
        assert name in ("matmul", "conv", "map") and reason.startswith("no kernel does this for"), error
        return
    check(fn, program, arrays, sample.tolerance)


@pytest.mark.parametrize(("op", "sample"), [*cases(symbolic=True)])
def test_with_an_unknown_symbol_for_every_extent(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    fn = one_node(op, sample, arrays, OPS, symbolic=True).main
    try:
        program = planned(fn)
    except UnsupportedError as error:
        reasons = ("no kernel does this for", "the blocks have", "the weights are", "no input has the extent")
        assert all(reason.startswith(reasons) for _, _, reason in error.nodes), error
        return
    check(fn, program, arrays, sample.tolerance)


def test_every_op_is_lowered_or_decomposes_or_is_known_to_be_missing() -> None:
    composites = {name for name, op in OPS.items() if callable(op.decompose)}
    assert set(OPS) - LOWERED - composites == NOT_YET
    assert set(OPS) >= LOWERED
