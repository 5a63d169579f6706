"""Element types.

A `DType` is one of a closed set of frozen instances; compare with `is`. Types that NumPy does not have
(bf16, float8) are kept as `ml_dtypes` arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type: `name` as printed (`f32`), its NumPy type, its size in bytes and its kind."""

    name: str
    numpy: np.dtype
    kind: str
    """`float`, `int`, `uint` or `bool`."""

    @property
    def bytes(self) -> int:
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("float", "int")

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


f64 = DType("f64", np.dtype(np.float64), "float")
f32 = DType("f32", np.dtype(np.float32), "float")
f16 = DType("f16", np.dtype(np.float16), "float")
bf16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), "float")
i64 = DType("i64", np.dtype(np.int64), "int")
i32 = DType("i32", np.dtype(np.int32), "int")
i16 = DType("i16", np.dtype(np.int16), "int")
i8 = DType("i8", np.dtype(np.int8), "int")
u64 = DType("u64", np.dtype(np.uint64), "uint")
u32 = DType("u32", np.dtype(np.uint32), "uint")
u16 = DType("u16", np.dtype(np.uint16), "uint")
u8 = DType("u8", np.dtype(np.uint8), "uint")
bool_ = DType("bool", np.dtype(np.bool_), "bool")

ALL: tuple[DType, ...] = (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_)
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY: dict[np.dtype, DType] = {dtype.numpy: dtype for dtype in ALL}


def from_numpy(dtype: np.dtype) -> DType:
    """The `DType` of a NumPy dtype. Raises `KeyError` for one that Relume does not have (strings, complex)."""
    return _BY_NUMPY[np.dtype(dtype).newbyteorder("=")]
