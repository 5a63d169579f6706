"""The driver calls the kernels in order, with the right pointers and extents, and reports what fails."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import ADD, REFUSE, Run, buffer, chain, one, program, vector

from relume import codegen
from relume.base import dims
from relume.base.abi import Status
from relume.base.errors import CompileError
from relume.base.targets import AVX2, AVX512, Target
from relume.program.types import Instr, Space

N = dims.symbol("N")


@pytest.mark.parametrize("length", [1, 2, 7])
def test_static_chain_gives_the_sum(length: int) -> None:
    artifact = codegen.build(chain(100, length), AVX2, cache=None)
    x = np.arange(100, dtype=np.float32)
    run = Run(artifact, [x])
    assert run.run() == Status.OK
    assert np.array_equal(run.outputs[0], x * (length + 1))


def test_static_offsets_are_baked_and_reused() -> None:
    artifact = codegen.build(chain(100, 9), AVX2, cache=None)
    assert artifact.dims == ()
    assert artifact.offsets is not None
    assert max(artifact.offsets) == 448, "eight buffers of 400 bytes live two at a time"


def test_one_artifact_serves_all_extents() -> None:
    artifact = codegen.build(chain(N, 4), AVX2, cache=None)
    assert artifact.offsets is None
    assert artifact.dims == (N,)
    assert artifact.extents == (N,)
    for extent in (0, 1, 5, 1000, 120_000):  # the last one is large enough for the pool
        x = np.arange(extent, dtype=np.float32)
        run = Run(artifact, [x], N=extent)
        assert run.run() == Status.OK
        assert np.array_equal(run.outputs[0], x * 5)


def test_dims_are_listed_once_in_order_of_first_use() -> None:
    x, y = buffer("x", Space.INPUT, 3 * N + 8), buffer("y", Space.OUTPUT, N)
    instr = Instr(0, ADD, (vector("in", x, 2 * N, N), vector("in", x, N + 1, N, stride=2), vector("out", y)))
    artifact = codegen.build(program([instr]), AVX2, cache=None)
    assert artifact.dims == (8 * N, 4 * N + 4, N)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(1, 3), st.integers(0, 5), st.integers(1, 4), st.booleans())
def test_views_start_at_their_offset(offset: int, stride: int, other: int, extent: int, symbolic: bool) -> None:
    n = N if symbolic else extent
    x = buffer("x", Space.INPUT, 40)
    instr = Instr(
        3,
        ADD,
        (
            vector("in", x, offset, n, stride),
            vector("in", x, other + (N - extent if symbolic else 0), n),
            vector("out", buffer("y", Space.OUTPUT, n)),
        ),
    )
    data = np.arange(40, dtype=np.float32) ** 2
    run = Run(codegen.build(program([instr]), AVX2, cache=None), [data], N=extent)
    assert run.run() == Status.OK
    left = data[offset : offset + stride * extent : stride]
    assert np.array_equal(run.outputs[0], left + data[other : other + extent])


def test_a_failure_names_the_instruction_and_ends_the_run() -> None:
    artifact = codegen.build(one(REFUSE, 5), AVX2, cache=None)
    run = Run(artifact)
    run.outputs[0][3] = 42
    assert run.run() == Status.INDEX
    assert (run["failed"], run["detail0"], run["detail1"]) == (7, 3, 42)
    assert artifact.instructions[7] == "refuse #7"


def test_nothing_runs_when_the_stop_flag_is_set() -> None:
    x = np.ones(10, np.float32)
    run = Run(codegen.build(chain(10, 2), AVX2, cache=None), [x])
    run["stop"] = 1
    assert run.run() == Status.STOPPED
    assert run["failed"] == 10
    assert not run.outputs[0].any()


def test_a_program_without_instructions_runs() -> None:
    assert Run(codegen.build(program([]), AVX2, cache=None)).run() == Status.OK


def test_two_instructions_with_one_id_are_refused() -> None:
    instr = chain(4, 1).instrs[0]
    with pytest.raises(CompileError, match="same id"):
        codegen.build(program([instr, instr]), AVX2, cache=None)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda target: target.name)
def test_dumps_show_the_driver_every_kernel_once_and_the_support(target: Target) -> None:
    for text in (codegen.emit_llvm(chain(64, 5), target), codegen.emit_assembly(chain(64, 5), target)):
        heads = [line for line in text.splitlines() if line.startswith("; ---- ")]
        assert [head.split("_")[0] for head in heads] == ["; ---- driver ----", "; ---- relume", "; ---- support ----"]


def test_builds_are_equal_byte_for_byte() -> None:
    first = codegen.build(chain(N, 6), AVX2, cache=None)
    second = codegen.build(chain(N, 6), AVX2, cache=None)
    assert first.image == second.image
