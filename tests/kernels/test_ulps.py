"""A slice of `benchmarks/ulp.py`: every element-wise function within its bound, on both schedules alike."""

from __future__ import annotations

import pytest
from ulps import FUNCTIONS, Measured, measure

from relume.base import dtypes
from relume.base.dtypes import DType

CASES = [(function, dtype) for function in FUNCTIONS for dtype in function.dtypes]


@pytest.mark.parametrize(("function", "dtype"), CASES, ids=[f"{function}-{dtype}" for function, dtype in CASES])
def test_no_argument_is_beyond_the_bound(function: Measured, dtype: DType) -> None:
    result = measure(function, dtype, 24 if dtype is dtypes.f32 else 8)
    # A short float may be rounded twice, from f32.
    assert result.ulp <= (function.bound if dtype.bytes > 2 else max(1.0, function.bound)), result.at
    assert result.equal_bits


def test_four_units_are_the_most_that_is_allowed() -> None:
    assert all(function.bound <= 4 for function in FUNCTIONS)
