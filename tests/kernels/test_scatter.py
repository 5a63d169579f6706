"""`row_numbers`, `scatter_add` and `scatter_update`."""

from __future__ import annotations

import numpy as np
import pytest
from harness import KernelFailed, run_kernel
from variants import run_all

from relume.base.abi import Status
from relume.kernels.scatter import ROW_NUMBERS, SCATTER_ADD, SCATTER_UPDATE
from relume.ops import OPS
from relume.program.types import KernelDef

RNG = np.random.default_rng(23)

both = pytest.mark.parametrize("kernel", [SCATTER_ADD, SCATTER_UPDATE], ids=str)


def expected(kernel: KernelDef, state: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return OPS[kernel.name].reference(state, indices, updates, attrs={}, regions=())[0]


def row_numbers(indices: np.ndarray, extent: int, runtime: bool = False) -> np.ndarray:
    """Garbage where nothing is written: a row that is in no state."""
    operands = [("in", indices), ("out", np.full(len(indices), -9))]
    run_kernel(ROW_NUMBERS, operands, {}, (extent,), runtime_extents=runtime)
    return operands[1][1]


def check(kernel: KernelDef, state: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> None:
    numbers = row_numbers(indices, len(state))
    assert (numbers == np.where(indices < 0, indices + len(state), indices)).all()
    (got,) = run_all(kernel, [("inout", state), ("in", numbers), ("in", updates)], {})
    assert got.tobytes() == expected(kernel, state, indices, updates).tobytes()


@both
@pytest.mark.parametrize("inner", [(), (1,), (15,), (16,), (33,), (3, 20), (4, 0)])
@pytest.mark.parametrize("index_type", [np.int64, np.int32])
def test_rows_are_written_in_the_order_of_the_indices(
    kernel: KernelDef, inner: tuple[int, ...], index_type: type
) -> None:
    indices = np.array([0, 6, -1, -7, 2, 2], index_type)
    updates = RNG.standard_normal((6, *inner)).astype(np.float32)
    check(kernel, RNG.standard_normal((7, *inner)).astype(np.float32), indices, updates)


@both
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint64, np.float16, np.float64])
def test_rows_of_any_type_and_updates_of_any_layout(kernel: KernelDef, dtype: type) -> None:
    wide = RNG.integers(0, 100, (18, 9, 20)).astype(dtype)
    indices = np.array([3, 0, -1, 3, 3, 1, 2])[::-1]
    for updates in (wide.transpose(1, 2, 0)[:7, :, 0], wide.transpose(1, 0, 2)[1:8, ::2], wide[0, :1].repeat(7, 0)):
        check(kernel, RNG.integers(0, 100, (4, *updates.shape[1:])).astype(dtype), indices, updates)


def test_truth_values_are_overwritten() -> None:
    check(SCATTER_UPDATE, np.zeros((3, 17), bool), np.array([2, 0, 2]), RNG.standard_normal((3, 17)) > 0)


@both
def test_long_rows_are_shared_out_in_columns(kernel: KernelDef) -> None:
    indices = RNG.integers(-50, 50, 3000)
    updates = RNG.standard_normal((3000, 100)).astype(np.float32)
    check(kernel, RNG.standard_normal((50, 100)).astype(np.float32), indices, updates)


@pytest.mark.parametrize("bad", [5, -6, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("runtime", [False, True])
def test_m14_the_first_index_out_of_range_ends_the_check(bad: int, runtime: bool) -> None:
    with pytest.raises(KernelFailed) as failure:
        row_numbers(np.array([0, 4, -5, bad, 99]), 5, runtime)
    assert (failure.value.status, failure.value.detail0, failure.value.detail1) == (Status.INDEX, bad, 5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_indices_of_any_layout_become_row_numbers(dtype: type) -> None:
    given = np.arange(40_000).astype(dtype)[::-2]
    for runtime in (False, True):
        want = np.where(given < 0, given.astype(np.int64) + 40_000, given)
        np.testing.assert_array_equal(row_numbers(given, 40_000, runtime), want)


@both
def test_no_rows_and_no_indices(kernel: KernelDef) -> None:
    check(kernel, np.zeros((0, 3), np.float32), np.zeros(0, np.int64), np.zeros((0, 3), np.float32))
    check(kernel, np.zeros((4, 0), np.float32), np.zeros(2, np.int64), np.zeros((2, 0), np.float32))
    for extent in (0, 1):
        with pytest.raises(KernelFailed):
            row_numbers(np.ones(1, np.int64), extent)
