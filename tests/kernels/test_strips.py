"""`strips`: attention a few rows at a time has the bits of its three kernels one after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from harness import compile_kernel, run_kernel
from variants import run_all

from relume.kernels.elementwise import Step
from relume.kernels.matmul import MATMUL_PACKED
from relume.kernels.rows import ROWS
from relume.kernels.strips import STRIPS
from relume.program.types import Param

RNG = np.random.default_rng(5)

PLAIN = (("body", ()), ("outs", (0,)))
SOFTMAX: tuple[Step, ...] = (
    ("add", (0, 1), (), "f32"),
    ("reduce_max", (2,), (), "f32"),
    ("sub", (2, 3), (), "f32"),
    ("exp", (4,), (), "f32"),
    ("reduce_sum", (5,), (), "f32"),
    ("div", (5, 6), (), "f32"),
)


def panels(x: np.ndarray) -> np.ndarray:
    """[.., K, N] -> [.., N / 16, K, 16]."""
    *batch, k, n = x.shape
    padded = np.zeros((*batch, k, -(-n // 16) * 16), x.dtype)
    padded[..., :n] = x
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, k, -1, 16), -3, -2))


def attention(batch: int, body: Sequence[Step]) -> dict[str, Param]:
    return {
        "batch": batch,
        "rows": (True, False, False, True, True),
        "between": ("f32", "f32"),
        "parts": (
            ("matmul_packed", (0, 1), (-1,), (), PLAIN),
            ("rows", (-1, 3), (-2,), (1,), (("body", tuple(body)), ("outs", (7,)))),
            ("matmul_packed", (-2, 2), (4,), (), PLAIN),
        ),
    }


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("batch", "rows", "columns"), [((), 1, 5), ((2,), 43, 33), ((3, 2), 100, 1)])
def test_strips_have_the_bits_of_their_parts(batch: tuple[int, ...], rows: int, columns: int) -> None:
    q, k, v = draw(*batch, rows, 7), panels(draw(*batch, 7, columns)), panels(draw(*batch, columns, 20))
    mask = np.broadcast_to(draw(columns), (*batch, rows, columns))
    scores, want = np.empty(mask.shape, np.float32), np.empty((*batch, rows, 20), np.float32)
    run_kernel(MATMUL_PACKED, [("in", q), ("in", k), ("out", scores)], dict(PLAIN))
    run_kernel(
        ROWS, [("in", scores), ("in", mask), ("out", scores)], {"body": SOFTMAX, "outs": (7,)}, [columns]
    )  # In place.
    run_kernel(MATMUL_PACKED, [("in", scores), ("in", v), ("out", want)], dict(PLAIN))
    operands = [("in", q), ("in", k), ("in", v), ("in", mask), ("out", np.empty_like(want))]
    (got,) = run_all(STRIPS, operands, attention(len(batch), SOFTMAX), [rows, columns, columns])
    assert got.tobytes() == want.tobytes()


def test_a_wide_strip_is_low() -> None:
    def tasks(rows: int, columns: int, runtime: bool) -> int:
        q, k, v = (np.zeros(shape, np.float32) for shape in ((rows, 1), (-(-columns // 16), 1, 16), (1, columns, 16)))
        mask, y = np.zeros((rows, columns), np.float32), np.zeros((rows, 2), np.float32)
        operands = [("in", q), ("in", k), ("in", v), ("in", mask), ("out", y)]
        params, scalars = attention(0, SOFTMAX), [rows, columns, columns]
        return compile_kernel(STRIPS, operands, params, scalars, runtime_extents=runtime).tasks

    for runtime in (False, True):
        assert tasks(84, 100, runtime) == 2
        assert tasks(84, 4096, runtime) == 11
        assert tasks(5, 100_000, runtime) == 5
