"""Between floats and quantised integers, in the semantics of ONNX: q stands for (q - zero_point) * scale.

Every step is one IEEE operation in the type of the scale, so that all targets give the same integers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dtypes
from relume.base.dims import Dim
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, OpDef, Sample
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved
from relume.ops.inference import FLOAT, infer_tensors

_STORED = (dtypes.i8, dtypes.u8, dtypes.i16, dtypes.u16)
_PER_TENSOR = -1


def _want_parameters(x: Tensor, scale: Tensor, zero_point: Tensor, attrs: Mapping[str, Attr]) -> None:
    inference.want_kind("scale", scale, FLOAT)
    shape: tuple[Dim, ...] = ()
    if attrs["axis"] != _PER_TENSOR:
        shape = (x.dims[inference.axis_attr(attrs, x.rank)],)
    for name, tensor in (("scale", scale), ("zero_point", zero_point)):
        inference.want_rank(name, tensor, len(shape))
        for got, expected in zip(tensor.dims, shape):
            inference.want_dim(f"the extent of {name}", got, expected)


def _along(parameter: np.ndarray, x: np.ndarray, attrs: Mapping[str, Attr]) -> np.ndarray:
    """A parameter in a shape that broadcasts with x."""
    if attrs["axis"] == _PER_TENSOR:
        return parameter
    return parameter.reshape([-1 if axis == attrs["axis"] else 1 for axis in range(x.ndim)])


@infer_tensors
def _infer_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_same_dtype(x, scale)
    inference.want_dtype("zero_point", zero_point, *_STORED)
    _want_parameters(x, scale, zero_point, attrs)
    return Tensor(zero_point.dtype, x.dims)


def _quantize(
    x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, *, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    bounds = np.iinfo(zero_point.dtype)
    with np.errstate(all="ignore"):
        steps = np.rint(x / _along(scale, x, attrs)).astype(np.float64)
        # Whole numbers from here on, far below 2**53 where they matter: exact.
        shifted = steps + _along(zero_point, x, attrs)
        stored = np.where(np.isnan(shifted), bounds.min, np.clip(shifted, bounds.min, bounds.max))
    return (stored.astype(zero_point.dtype),)


quantize = OpDef(
    name="quantize",
    doc="saturate(round(x / scale) + zero_point) in the type of zero_point; halves round to the even number, NaN gives "
    "the minimum of the type. scale and zero_point are scalars, or vectors along `axis` (-1: scalars).",
    operands=("x", "scale", "zero_point"),
    infer=_infer_quantize,
    reference=_quantize,
    samples=lambda: [
        Sample((("f32", (2, 5)), np.float32(0.1), np.int8(3)), {"axis": -1}),
        Sample((("f32", (3, 4)), np.array([0.5, 0.25, 2], np.float32), np.array([0, 128, 255], np.uint8)), {"axis": 0}),
        Sample((("f32", (2, 3)), np.array([0.5, 0.25, 2], np.float32), np.zeros(3, np.int16)), {"axis": 1}),
        Sample(
            (np.array([0.5, 1.5, -2.5, 1e30, -np.inf, np.inf, np.nan], np.float32), np.float32(1), np.uint8(7)),
            {"axis": -1},
        ),
        Sample((("f32", (0,)), np.float32(1), np.int8(0)), {"axis": -1}),
        Sample((("f32", (2, 3)), ("f32", (2,)), ("i8", (2,))), {"axis": 1}, error="extent of scale"),
        Sample((("f32", (2, 3)), ("f32", (2,)), ("i8", ())), {"axis": 0}, error="zero_point has rank"),
        Sample((("f32", (2,)), ("f32", ()), ("i64", ())), {"axis": -1}, error="zero_point cannot be i64"),
    ],
    attrs=(AttrDef("axis", "int", _PER_TENSOR),),
    gradient=NO_GRADIENT("integer valued; a straight-through estimate must be asked for"),
    to_onnx=NOT_YET,
)


@infer_tensors
def _infer_dequantize(x: Tensor, scale: Tensor, zero_point: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_dtype("x", x, *_STORED, dtypes.i32)
    inference.want_same_dtype(x, zero_point)
    _want_parameters(x, scale, zero_point, attrs)
    return Tensor(scale.dtype, x.dims)


def _dequantize(
    x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, *, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    difference = x.astype(np.int64) - _along(zero_point, x, attrs)
    with np.errstate(all="ignore"):
        return (np.asarray(difference.astype(scale.dtype) * _along(scale, x, attrs)),)


dequantize = OpDef(
    name="dequantize",
    doc="(x - zero_point) * scale: the exact difference, rounded to the type of scale, times scale. scale and "
    "zero_point are scalars, or vectors along `axis` (-1: scalars).",
    operands=("x", "scale", "zero_point"),
    infer=_infer_dequantize,
    reference=_dequantize,
    samples=lambda: [
        Sample((("i8", (2, 5)), np.float32(0.1), np.int8(3)), {"axis": -1}),
        Sample((("u8", (3, 4)), np.array([0.5, 0.25, 2], np.float32), np.array([0, 128, 255], np.uint8)), {"axis": 0}),
        Sample((np.array([2**31 - 1, -(2**31)], np.int32), np.float32(1e-3), np.int32(-1)), {"axis": -1}),
        Sample((("i16", (0, 2)), np.ones(2, np.float32), np.zeros(2, np.int16)), {"axis": 1}),
        Sample((("i8", (2,)), ("f32", ()), ("u8", ())), {"axis": -1}, error="element types differ"),
        Sample((("f32", (2,)), ("f32", ()), ("f32", ())), {"axis": -1}, error="x cannot be f32"),
        Sample((("i8", (2,)), ("i32", ()), ("i8", ())), {"axis": -1}, error="scale cannot be i32"),
    ],
    attrs=(AttrDef("axis", "int", _PER_TENSOR),),
    to_onnx=NOT_YET,
)

OPS = (quantize, dequantize)
