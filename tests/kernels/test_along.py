"""`cumulative` and `top_k`."""

from __future__ import annotations

import numpy as np
import pytest
from variants import run_all

from relume.kernels.cumulative import CUMULATIVE
from relume.kernels.top_k import TOP_K
from relume.ops import OPS

RNG = np.random.default_rng(31)


def totalled(x: np.ndarray, kind: str, exclusive: bool) -> None:
    attrs = {"axis": x.ndim - 1, "kind": kind, "exclusive": exclusive, "reverse": False}
    want = OPS["cumulative"].reference(x, attrs=attrs, regions=())[0]
    params = {"kept": x.ndim - 1, "kind": kind, "exclusive": exclusive}
    (got,) = run_all(CUMULATIVE, [("in", x), ("out", np.zeros(x.shape, x.dtype))], params)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8])
def test_totals_have_the_bits_of_the_reference(kind: str, exclusive: bool, dtype: type) -> None:
    x = (RNG.standard_normal((3, 19, 35)) * 3).astype(np.int8).astype(dtype)
    for view in (x, x.transpose(2, 0, 1), x[:, ::-2]):
        totalled(view, kind, exclusive)


def test_totals_of_one_and_of_many() -> None:
    totalled(RNG.standard_normal((3, 1)).astype(np.float32), "sum", True)
    totalled(RNG.standard_normal((2, 0)).astype(np.float32), "sum", True)
    totalled(RNG.standard_normal(50000).astype(np.float32), "sum", False)
    totalled(RNG.standard_normal((400, 300)).astype(np.float32).T, "sum", False)


def ranked(x: np.ndarray, k: int, largest: bool) -> None:
    want = OPS["top_k"].reference(x, attrs={"axis": x.ndim - 1, "k": k, "largest": largest}, regions=())
    shape = (*x.shape[:-1], k)
    results = [("out", np.zeros(shape, x.dtype)), ("out", np.zeros(shape, np.int64))]
    got = run_all(TOP_K, [("in", x), *results], {"largest": largest})
    for mine, theirs in zip(got, want):
        assert mine.tobytes() == np.ascontiguousarray(theirs).tobytes()


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.uint64, np.int8, np.uint8])
def test_ranks_with_many_equals(dtype: type, largest: bool) -> None:
    x = RNG.integers(0, 12, (3, 4, 50)).astype(dtype)
    for k in (1, 17, 50):
        ranked(x, k, largest)
    ranked(x.transpose(0, 2, 1), 3, largest)


@pytest.mark.parametrize("largest", [False, True])
def test_ranks_of_special_values(largest: bool) -> None:
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 1, -1], np.float32)
    for k in (1, 2, 5, 9):
        ranked(RNG.permuted(np.tile(special, (20, 1)), axis=1), k, largest)
    for info in (np.iinfo(np.int64), np.iinfo(np.uint64)):
        ranked(np.array([info.max, info.min, 0, info.max], info.dtype), 3, largest)


@pytest.mark.parametrize("largest", [False, True])
def test_ranks_of_long_and_sorted_rows(largest: bool) -> None:
    for x in (np.arange(3000), np.arange(3000)[::-1], np.zeros(3000), RNG.standard_normal(3000)):
        ranked(np.ascontiguousarray(x, np.float32), 700, largest)
    ranked(RNG.standard_normal((500, 40)).astype(np.float32), 5, largest)
    ranked(np.zeros((2, 0), np.float32), 0, largest)
