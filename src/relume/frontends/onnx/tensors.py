"""ONNX tensors and element types in terms of NumPy and `relume.base.dtypes`."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.base.errors import LimitError, ModelError
from relume.frontends.onnx.external import Folder
from relume.frontends.onnx.limits import MAX_TENSOR_BYTES
from relume.frontends.onnx.pieces import Pieces

_DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: dtypes.f32,
    TensorProto.DOUBLE: dtypes.f64,
    TensorProto.FLOAT16: dtypes.f16,
    TensorProto.BFLOAT16: dtypes.bf16,
    TensorProto.INT64: dtypes.i64,
    TensorProto.INT32: dtypes.i32,
    TensorProto.INT16: dtypes.i16,
    TensorProto.INT8: dtypes.i8,
    TensorProto.UINT64: dtypes.u64,
    TensorProto.UINT32: dtypes.u32,
    TensorProto.UINT16: dtypes.u16,
    TensorProto.UINT8: dtypes.u8,
    TensorProto.BOOL: dtypes.bool_,
}
_ELEM_TYPES: dict[DType, int] = {dtype: number for number, dtype in _DTYPES.items()}
_SCHEMA_NAMES = {"f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16"}

# The typed field that holds each element type when `raw_data` is absent.
_FIELDS: dict[DType, str] = {
    dtypes.f32: "float_data",
    dtypes.f64: "double_data",
    dtypes.i64: "int64_data",
    dtypes.u64: "uint64_data",
    dtypes.u32: "uint64_data",
}
_HEADER = frozenset({"dims", "data_type", "name", "doc_string", "data_location", "external_data", "metadata_props"})
"""The fields of a tensor that hold no data (and not `segment`, which no tool writes)."""


def is_supported(elem_type: int, where: str) -> bool:
    """Whether there is a dtype for an ONNX element type. Raises `ModelError` for a number that ONNX does not have."""
    if elem_type in _DTYPES:
        return True
    if elem_type == TensorProto.UNDEFINED or elem_type not in TensorProto.DataType.values():
        raise ModelError(
            f"unknown elem_type {elem_type}",
            where=where,
            expected="a number of TensorProto.DataType other than 0",
            got=elem_type,
            hint="export the model again: the type was lost, or the file is damaged",
        )
    return False


def dtype_of(elem_type: int) -> DType:
    """The dtype of a supported ONNX element type. Raises `KeyError` for others (strings, complex, float8 ...)."""
    return _DTYPES[elem_type]


def elem_type_of(dtype: DType) -> int:
    """The ONNX element type of a dtype."""
    return _ELEM_TYPES[dtype]


def schema_name(dtype: DType) -> str:
    """How ONNX schemas spell it: `tensor(float)`."""
    name = dtype.name
    if dtype.is_integer:
        name = name.replace("i", "int", 1) if dtype.kind == "int" else name.replace("u", "uint", 1)
    return f"tensor({_SCHEMA_NAMES.get(name, name)})"


def check_size(dtype: DType, extents: tuple[int, ...], where: str) -> int:
    """The number of bytes of a tensor. Raises `LimitError` where no machine could hold it."""
    size = math.prod(extents) * dtype.bytes
    if size > MAX_TENSOR_BYTES:
        raise LimitError(
            f"a tensor of {size} bytes is too large",
            where=where,
            expected=f"at most {MAX_TENSOR_BYTES} bytes",
            got=f"{dtype}[{','.join(map(str, extents))}]",
        )
    return size


def check(proto: TensorProto, pieces: Pieces, where: str) -> None:
    """Compares what the header of a tensor claims with what is there; allocates nothing.

    `proto` is of a supported type. Raises `ModelError`, `UnsupportedError`, `LimitError`.
    """
    dtype, shape = dtype_of(proto.data_type), tuple(proto.dims)
    if any(extent < 0 for extent in shape):
        raise ModelError("a stored tensor has a negative extent", where=where, got=list(shape))
    if proto.data_location == TensorProto.EXTERNAL:
        check_size(dtype, shape, where)
        return
    filled = {field.name for field, _ in proto.ListFields()} - _HEADER
    field = "raw_data" if "raw_data" in filled else _FIELDS.get(dtype, "int32_data")
    expected = math.prod(shape) * (dtype.bytes if field == "raw_data" else 1)
    data = pieces.raw_data(proto) if field == "raw_data" else getattr(proto, field)
    present, stray = len(data), sorted(filled - {field})
    if present != expected or stray:
        unit = "bytes of raw_data" if field == "raw_data" else f"values in {field}"
        raise ModelError(
            "the data of a tensor does not fit its shape",
            where=where,
            expected=f"{expected} {unit} for {dtype}[{','.join(map(str, shape))}]",
            got=f"{present} {unit}" + (f", and something in {', '.join(stray)}" if stray else ""),
            hint="the file is damaged or was written by a faulty exporter: export the model again",
        )


def array(proto: TensorProto, pieces: Pieces, folder: Folder, where: str) -> np.ndarray:
    """A checked tensor as an array. Pieces and external data (a view of a map) are not copied."""
    dtype, shape = dtype_of(proto.data_type), tuple(proto.dims)
    if proto.data_location == TensorProto.EXTERNAL:
        entries = {entry.key: entry.value for entry in proto.external_data}
        return _view(folder.view(entries, math.prod(shape) * dtype.bytes, where), dtype).reshape(shape)
    if proto.HasField("raw_data"):
        return _view(pieces.raw_data(proto), dtype).reshape(shape)
    return onnx.numpy_helper.to_array(proto).astype(dtype.numpy, copy=False).reshape(shape)


def _view(data: np.ndarray, dtype: DType) -> np.ndarray:
    """ONNX stores little-endian; a bool is any non-zero byte."""
    if dtype is dtypes.bool_:
        return data != 0
    if data.ctypes.data % dtype.bytes:  # An odd offset in the file: kernels want aligned elements.
        data = data.copy()
    if dtype in (dtypes.bf16,):
        return data.view("<u2").astype(np.uint16, copy=False).view(dtype.numpy)
    return data.view(dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False)
