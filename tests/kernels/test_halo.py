"""`halo`: the border is filled, the inside is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from variants import run_all

from relume.kernels.halo import HALO


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 0, 0, 0), (2, 0, 0, 3), (0, 4, 1, 0), (3, 3, 3, 3)])
@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (1, 1, 6, 6), (1, 2, 40, 70), (0, 2, 8, 8)])
@pytest.mark.parametrize("value", [0.0, -np.inf])
def test_the_border_is_filled_and_the_inside_kept(pads: tuple[int, ...], shape: tuple[int, ...], value: float) -> None:
    x = np.random.default_rng(3).standard_normal((*shape, 16)).astype(np.float32)
    top, left, bottom, right = pads
    want = np.full_like(x, value)
    inside = (..., slice(top, shape[2] - bottom), slice(left, shape[3] - right), slice(None))
    want[inside] = x[inside]
    (got,) = run_all(HALO, [("inout", x)], {"pads": pads, "blocked": True, "value": value})
    np.testing.assert_array_equal(got, want)
