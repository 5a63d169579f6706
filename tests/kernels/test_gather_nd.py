"""`gather_nd`, `scatter_nd` and `iota`."""

from __future__ import annotations

import numpy as np
import pytest
from harness import KernelFailed, run_kernel
from variants import run_all

from relume.base.abi import Status
from relume.kernels.gather import GATHER_ND
from relume.kernels.iota import IOTA
from relume.kernels.scatter_nd import REDUCTIONS, SCATTER_ND
from relume.ops import OPS
from relume.ops.sampling import arrays_of

RNG = np.random.default_rng(29)


def indices_of(shape: tuple[int, ...], *extents: int) -> list[np.ndarray]:
    return [RNG.integers(-extent, extent, shape) for extent in extents]


def gathered(x: np.ndarray, indices: list[np.ndarray], batch: int) -> np.ndarray:
    want = OPS["gather_nd"].reference(x, *indices, attrs={"batch": batch}, regions=())[0]
    operands = [("in", x), *(("in", index) for index in indices), ("out", np.zeros(want.shape, x.dtype))]
    (got,) = run_all(GATHER_ND, operands, {"batch": batch})
    np.testing.assert_array_equal(got, want)
    return got


def scattered(x: np.ndarray, updates: np.ndarray, indices: list[np.ndarray], batch: int, reduction: str) -> None:
    attrs = {"batch": batch, "reduction": reduction}
    want = OPS["scatter_nd"].reference(x, updates, *indices, attrs=attrs, regions=())[0]
    operands = [("in", updates), *(("in", index) for index in indices), ("inout", x)]
    (got,) = run_all(SCATTER_ND, operands, attrs)
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("inner", [(), (1,), (17,), (3, 20), (4, 0)])
@pytest.mark.parametrize("batch", [0, 1])
def test_rows_are_taken_by_two_indices(inner: tuple[int, ...], batch: int) -> None:
    shared = (3,) * batch
    x = RNG.standard_normal((*shared, 5, 7, *inner)).astype(np.float32)
    gathered(x, indices_of((*shared, 4, 6), 5, 7), batch)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float16, np.int64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_along_one_axis_of_any_layout(dtype: type, axis: int) -> None:
    x = RNG.integers(0, 2, (6, 20, 18)).astype(dtype)
    order = (*(n for n in range(3) if n != axis), axis)
    index = indices_of((5, 19, 17), x.shape[axis])[0].transpose(order)
    got = gathered(x.transpose(order), [index], 2)
    wrapped = np.where(index < 0, index + x.shape[axis], index)
    smaller = x.transpose(order)[: index.shape[0], : index.shape[1]]
    np.testing.assert_array_equal(got, np.take_along_axis(smaller, wrapped, -1))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("inner", [(), (17,), (3, 20)])
@pytest.mark.parametrize("batch", [0, 2])
def test_updates_go_in_by_order(reduction: str, inner: tuple[int, ...], batch: int) -> None:
    shared = (2, 3)[:batch]
    x = RNG.standard_normal((*shared, 4, 3, *inner)).astype(np.float32)
    updates = RNG.standard_normal((*shared, 5, 7, *inner)).astype(np.float32)
    scattered(x, updates, indices_of((*shared, 5, 7), 4, 3), batch, reduction)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_elements_of_a_part_of_the_batch(dtype: type, reduction: str) -> None:
    x = RNG.integers(0, 100, (20, 18, 7)).astype(dtype)
    updates = RNG.integers(0, 100, (9, 19, 17)).astype(dtype).transpose(1, 2, 0)
    scattered(x, updates, [RNG.integers(-7, 7, (19, 17, 9)).astype(np.int32)], 2, reduction)


def test_large_ones_are_made_in_several_tasks() -> None:
    x = RNG.standard_normal((300, 400)).astype(np.float32)
    gathered(x, indices_of((300, 500), 400), 1)
    scattered(x, RNG.standard_normal((300, 500)).astype(np.float32), indices_of((300, 500), 400), 1, "add")
    scattered(x, RNG.standard_normal((500, 400)).astype(np.float32), indices_of((500,), 300), 0, "none")


@pytest.mark.parametrize("bad", [5, -6, 2**40, -(2**63)])
@pytest.mark.parametrize("runtime", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_an_index_out_of_range_ends_the_run_and_touches_nothing_outside(bad: int, runtime: bool, place: int) -> None:
    indices = [np.array([0, 4, 2, 1]), np.array([0, 4, -5, 1])]
    indices[place][3] = bad
    memory = np.zeros((7, 5, 3), np.float32)
    x, rows = memory[1:6], np.ones((4, 3), np.float32)
    given = [("in", index) for index in indices]
    for kernel, operands in (
        (GATHER_ND, [("in", x), *given, ("out", np.zeros((4, 3), np.float32))]),
        (SCATTER_ND, [("in", rows), *given, ("inout", x)]),
    ):
        with pytest.raises(KernelFailed) as failure:
            run_kernel(kernel, operands, {"batch": 0, "reduction": "add"}, runtime_extents=runtime)
        assert (failure.value.status, failure.value.detail0, failure.value.detail1) == (Status.INDEX, bad, 5)
    assert not memory[0].any() and not memory[6].any() and x.sum() == 9


def test_nothing_is_taken_from_nothing() -> None:
    gathered(np.zeros((0, 3), np.float32), indices_of((0, 2), 3), 1)
    scattered(np.zeros((3, 0), np.float32), np.zeros((2, 0), np.float32), indices_of((2,), 3), 0, "add")
    with pytest.raises(KernelFailed):
        empty = [("in", np.zeros(0, np.float32)), ("in", np.zeros(1, np.int64)), ("out", np.zeros(1, np.float32))]
        run_kernel(GATHER_ND, empty, {"batch": 0}, runtime_extents=True)


@pytest.mark.parametrize("sample", [s for s in OPS["scatter_nd"].samples() if s.error is None])
def test_every_sample_in_every_way(sample: object) -> None:
    x, updates, *indices = arrays_of(sample)  # type: ignore[arg-type]
    scattered(x, updates, indices, sample.attrs["batch"], sample.attrs["reduction"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [0, 1, 33, 40000])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.float16])
def test_counting(count: int, dtype: type) -> None:
    (got,) = run_all(IOTA, [("out", np.zeros(count, dtype))], {})
    np.testing.assert_array_equal(got, np.arange(count).astype(dtype))
    (spread,) = run_all(IOTA, [("out", np.zeros((count, 3), dtype)[:, 1])], {})
    np.testing.assert_array_equal(spread, got)
