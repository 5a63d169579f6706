"""How the references round: one rounding of a result that was computed in float64.

The meaning of a float32 sum, product of matrices or transcendental is its real value rounded to float32. Products of
two float32 are exact in float64 and sums of millions of them keep about 30 spare bits, so accumulating in float64
and rounding once gives that value (but for ties within a hair of two floats), in any order and on any machine. What a
kernel loses against it is then the kernel's own error and not the sum of two. Additions, products, quotients and
square roots of single elements are IEEE operations of the type itself; no wider type is used for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import numpy as np

from relume.base.dtypes import DType, bf16, from_numpy

Resolved = Mapping[str, Any]
"""Attributes as a reference sees them: complete, and with an int for every symbol."""


def widen(array: np.ndarray) -> np.ndarray:
    """Floats as float64; integers stay what they are, and wrap."""
    return array.astype(np.float64) if from_numpy(array.dtype).is_float else array


def narrow(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounds once to `dtype`, ties to even; what is too large becomes infinite."""
    array = np.asarray(array)
    with np.errstate(all="ignore"):
        if dtype == bf16.numpy and array.dtype.itemsize > 4:
            # ml_dtypes goes by way of float32, which would round twice.
            if array.dtype.kind in "iu":
                array = _fifty_three_bits(array)
            array = _to_odd(array.astype(np.float64))
        return array.astype(dtype)


def _to_odd(wide: np.ndarray) -> np.ndarray:
    """float64 as float32, rounded to odd where inexact: rounding that again to fewer bits rounds only once.

    Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Transactions on Computers 2008.
    """
    near = wide.astype(np.float32)
    inexact = np.isfinite(wide) & (near.astype(np.float64) != wide)
    away = inexact & (np.abs(near.astype(np.float64)) > np.abs(wide))
    bits = near.view(np.uint32) - away.astype(np.uint32)  # toward zero first: the bits order magnitudes
    return (bits | inexact.astype(np.uint32)).view(np.float32)


def _fifty_three_bits(whole: np.ndarray) -> np.ndarray:
    """64-bit integers that float64 holds exactly, rounded to odd where larger ones are not: see `_to_odd`."""
    kind = whole.dtype.type
    sticky = np.where(whole & kind(0x7FF), kind(0x800), kind(0))
    rounded = (whole >> kind(11) << kind(11)) | sticky
    large = whole >= kind(1 << 53)
    if whole.dtype.kind == "i":
        large |= whole < kind(-(1 << 53))
    return np.where(large, rounded, whole)


def quietly(function: Callable[..., np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
    """Makes a `Reference` of a function of the arrays alone. Warns never: overflow and NaN have defined results."""

    @wraps(function)
    def reference(*arrays: np.ndarray, attrs: object, regions: object) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            return (np.asarray(function(*arrays)),)

    return reference


def rounded_once(function: Callable[..., np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
    """Makes a `Reference` of a float function: computed in float64, rounded once to the type of the operands."""

    @wraps(function)
    def wide(*arrays: np.ndarray) -> np.ndarray:
        return narrow(function(*(array.astype(np.float64) for array in arrays)), arrays[0].dtype)

    return quietly(wide)


def lowest(dtype: DType) -> float | int:
    """The neutral element of max: -inf for floats, else the minimum of the type."""
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float | int:
    """The neutral element of min: inf for floats, else the maximum of the type."""
    return np.inf if dtype.is_float else int(np.iinfo(dtype.numpy).max)
