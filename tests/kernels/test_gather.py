"""`gather`, and `extents`."""

from __future__ import annotations

import numpy as np
import pytest
from harness import KernelFailed, emit, run_kernel
from variants import run_all

from relume.base.abi import Status
from relume.base.errors import CompileError
from relume.kernels.extents import EXTENTS
from relume.kernels.gather import GATHER

RNG = np.random.default_rng(17)


@pytest.mark.parametrize("inner", [(), (1,), (15,), (16,), (33,), (3, 20), (4, 0)])
@pytest.mark.parametrize("index_type", [np.int64, np.int32])
def test_rows_are_taken_and_negative_indices_count_from_the_end(inner: tuple[int, ...], index_type: type) -> None:
    x = RNG.standard_normal((3, 7, *inner)).astype(np.float32)
    indices = np.array([0, 6, -1, -7, 2, 2], index_type)
    result = np.zeros((3, 6, *inner), np.float32)
    (got,) = run_all(GATHER, [("in", x), ("in", indices), ("out", result)], {})
    np.testing.assert_array_equal(got, np.take(x, indices, axis=1))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float16, np.float64])
def test_rows_of_any_type_and_layout(dtype: type) -> None:
    x = (RNG.standard_normal((18, 9, 2)) > 0).astype(dtype)
    for view in (x.transpose(2, 1, 0), x.transpose(1, 2, 0)[::-1], x[::2]):
        indices = np.array([1, 0, -1])[::-1]
        result = np.zeros((view.shape[0], 3, view.shape[2]), dtype)
        (got,) = run_all(GATHER, [("in", view), ("in", indices), ("out", result)], {})
        np.testing.assert_array_equal(got, view[:, indices])


@pytest.mark.parametrize("bad", [5, -6, 2**40, -(2**63)])
@pytest.mark.parametrize("runtime", [False, True])
def test_an_index_out_of_range_ends_the_run_and_says_which(bad: int, runtime: bool) -> None:
    x, indices = np.zeros((1, 5, 4), np.float32), np.array([0, 4, bad, 1])
    with pytest.raises(KernelFailed) as failure:
        run_kernel(
            GATHER,
            [("in", x), ("in", indices), ("out", np.zeros((1, 4, 4), np.float32))],
            {},
            runtime_extents=runtime,
        )
    assert (failure.value.status, failure.value.detail0, failure.value.detail1) == (Status.INDEX, bad, 5)


def test_no_indices_and_nothing_to_take_them_from() -> None:
    x = np.zeros((2, 0, 3), np.float32)
    (got,) = run_all(GATHER, [("in", x), ("in", np.zeros(0, np.int64)), ("out", np.zeros((2, 0, 3), np.float32))], {})
    assert got.size == 0


def test_large_tables_are_gathered_in_several_tasks() -> None:
    x = RNG.standard_normal((1, 1000, 64)).astype(np.float32)
    indices = RNG.integers(-1000, 1000, 5000)
    (got,) = run_all(GATHER, [("in", x), ("in", indices), ("out", np.zeros((1, 5000, 64), np.float32))], {})
    np.testing.assert_array_equal(got, x[:, indices])


@pytest.mark.parametrize("values", [(), (7,), (3, -1, 2**40, 3)])
def test_extents_become_data(values: tuple[int, ...]) -> None:
    (got,) = run_all(EXTENTS, [("out", np.zeros(len(values), np.int64))], {}, values)
    assert got.tolist() == list(values)


def test_extents_must_fit_the_vector() -> None:
    with pytest.raises(CompileError, match=r"i64\[2\]"):
        emit(EXTENTS, [("out", np.zeros(3, np.int64))], {}, (1, 2))
