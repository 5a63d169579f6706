"""Ops worth keeping whole, each with a decomposition that every backend can use instead."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from relume.graph.builder import Builder
from relume.graph.opdef import NOT_YET, AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Constant, Tensor, Value
from relume.ops import elementwise, inference, reduce, shape
from relume.ops.arithmetic import Resolved, rounded_once
from relume.ops.inference import FLOAT, infer_tensors

_COMPOSITE = frozenset({Trait.COMPOSITE, Trait.INEXACT})


def _scalar(build: Builder, value: float, like: Value) -> Constant:
    return build.constant(np.asarray(value, like.dtype.numpy))


def _epsilon(attrs: Mapping[str, Attr]) -> float:
    epsilon = inference.number(attrs, "epsilon")
    if not epsilon >= 0:
        raise InferError("epsilon is out of range", "at least 0", epsilon)
    return epsilon


# --- softmax --------------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_softmax(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, FLOAT)
    inference.axis_attr(attrs, x.rank)
    return x


def _softmax(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    def of(wide: np.ndarray) -> np.ndarray:
        axis = attrs["axis"]
        powers = np.exp(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=axis, keepdims=True)

    return rounded_once(of)(x, attrs=attrs, regions=())


def _decompose_softmax(build: Builder, x: Value, *, attrs: Mapping[str, Attr]) -> tuple[Value, ...]:
    # Without the maximum e ** x would overflow; subtracting it changes nothing in the quotient. The sum is at least 1
    # then, so that to multiply by its reciprocal loses half a unit in the last place, and divides once for a row.
    axes = (attrs["axis"],)
    largest = build.apply(reduce.reduce_max, x, axes=axes, keep=True)
    powers = build.apply(elementwise.exp, build.apply(elementwise.sub, x, largest))
    total = build.apply(reduce.reduce_sum, powers, axes=axes, keep=True)
    return (build.apply(elementwise.mul, powers, build.apply(elementwise.reciprocal, total)),)


softmax = OpDef(
    name="softmax",
    doc="e ** x / sum of e ** x along `axis`.",
    operands=("x",),
    infer=_infer_softmax,
    reference=_softmax,
    samples=lambda: [
        Sample((("f32", (7,)),), {"axis": 0}),
        Sample((("f32", (3, 10)),), {"axis": 1}),
        Sample((("f32", (2, 5, 3)),), {"axis": 1}),
        Sample((("f32", (4, 1)),), {"axis": 1}),
        Sample((("f32", (0, 3)),), {"axis": 1}),
        Sample((np.array([[1000, 999, -1000], [-np.inf, 0, 1]], np.float32),), {"axis": 1}),
        Sample((("f64", (3, 4)),), {"axis": 0}),
        Sample((("f32", (3, 4)),), {"axis": 2}, error="axis is out of range"),
        Sample((("i64", (3, 4)),), {"axis": 0}, error="cannot be i64"),
    ],
    attrs=(AttrDef("axis", "int"),),
    decompose=_decompose_softmax,
    to_onnx="Softmax",
    traits=_COMPOSITE,
)

# --- layer_norm -----------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_layer_norm(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, FLOAT)
    inference.axes_attr(attrs, x.rank)
    _epsilon(attrs)
    for name, tensor in (("scale", scale), ("bias", bias)):
        if tensor is not None:
            inference.want_same_dtype(x, tensor)
            inference.want_broadcast_to(name, tensor.dims, x.dims)
    operands = [tensor.dims for tensor in (scale, bias) if tensor is not None]
    return Tensor(x.dtype, inference.broadcast(x.dims, *operands))


def _layer_norm(*arrays: np.ndarray, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    def of(x: np.ndarray, scale: np.ndarray, *bias: np.ndarray) -> np.ndarray:
        axes: tuple[int, ...] = attrs["axes"]
        count = math.prod(x.shape[axis] for axis in axes)
        centred = x - x.sum(axis=axes, keepdims=True) / count if x.size else x
        variance = (centred * centred).sum(axis=axes, keepdims=True) / max(count, 1)
        y = centred / np.sqrt(variance + _epsilon(attrs)) * scale
        return y + bias[0] if bias else y

    return rounded_once(of)(*arrays, attrs=attrs, regions=())


def _decompose_layer_norm(
    build: Builder, x: Value, scale: Value, bias: Value | None = None, *, attrs: Mapping[str, Attr]
) -> tuple[Value, ...]:
    axes = attrs["axes"]
    centred = build.apply(elementwise.sub, x, build.apply(reduce.reduce_mean, x, axes=axes, keep=True))
    square = build.apply(elementwise.mul, centred, centred)
    variance = build.apply(reduce.reduce_mean, square, axes=axes, keep=True)
    shifted = build.apply(elementwise.add, variance, _scalar(build, _epsilon(attrs), x))
    factor = build.apply(elementwise.reciprocal, build.apply(elementwise.sqrt, shifted))
    y = build.apply(elementwise.mul, build.apply(elementwise.mul, centred, factor), scale)
    return (y if bias is None else build.apply(elementwise.add, y, bias),)


layer_norm = OpDef(
    name="layer_norm",
    doc="(x - m) / sqrt(v + epsilon) * scale + bias, with m and v the mean and the (biased) variance of x over `axes`; "
    "scale and bias broadcast to x.",
    operands=("x", "scale", "bias?"),
    infer=_infer_layer_norm,
    reference=_layer_norm,
    samples=lambda: [
        Sample((("f32", (3, 8)), ("f32", (8,)), ("f32", (8,))), {"axes": (1,), "epsilon": 1e-5}),
        Sample((("f32", (2, 3, 5)), ("f32", (3, 5))), {"axes": (1, 2), "epsilon": 1e-5}),
        Sample((("f32", (2, 4, 3, 3)), ("f32", (4, 1, 1)), ("f32", (4, 1, 1))), {"axes": (2, 3), "epsilon": 1e-3}),
        Sample((("f32", (0, 8)), ("f32", (8,)), ("f32", (8,))), {"axes": (1,), "epsilon": 1e-5}),
        Sample((("f64", (3, 8)), ("f64", ()), ("f64", ())), {"axes": (0,), "epsilon": 1e-5}),
        Sample((("f32", (3, 8)), ("f32", (3,)), ("f32", (8,))), {"axes": (1,)}, error="scale does not broadcast"),
        Sample((("f32", (3, 8)), ("f32", (8,))), {"axes": (2,)}, error="axes are out of range"),
        Sample((("f32", (3, 8)), ("f32", (8,))), {"axes": (1,), "epsilon": -1.0}, error="epsilon"),
    ],
    attrs=(AttrDef("axes", "ints"), AttrDef("epsilon", "float", 1e-5)),
    decompose=_decompose_layer_norm,
    to_onnx=NOT_YET,
    traits=_COMPOSITE,
)

# --- gelu -----------------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_gelu(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, FLOAT)
    return x


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + elementwise.real_erf(x / math.sqrt(2)))


def _decompose_gelu(build: Builder, x: Value, *, attrs: Mapping[str, Attr]) -> tuple[Value, ...]:
    inner = build.apply(elementwise.erf, build.apply(elementwise.mul, x, _scalar(build, math.sqrt(0.5), x)))
    half = build.apply(elementwise.mul, x, _scalar(build, 0.5, x))
    return (build.apply(elementwise.mul, half, build.apply(elementwise.add, inner, _scalar(build, 1.0, x))),)


gelu = OpDef(
    name="gelu",
    doc="x / 2 * (1 + erf(x / sqrt(2))), exact.",
    operands=("x",),
    infer=_infer_gelu,
    reference=rounded_once(_gelu),
    samples=lambda: [
        Sample((("f32", ()),)),
        Sample((("f32", (33,)),)),
        Sample((("f32", (2, 3, 4)),)),
        Sample((("f32", (0, 3)),)),
        Sample((np.array([0.0, 1.0, -1.0, 5.0, -5.0, 40.0, -40.0], np.float32),)),
        Sample((("f64", (4,)),)),
        Sample((("i64", (3,)),), error="cannot be i64"),
    ],
    decompose=_decompose_gelu,
    to_onnx="Gelu",
    traits=_COMPOSITE | {Trait.ELEMENTWISE},
)

# --- batch_norm -----------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, attrs: Mapping[str, Attr]
) -> Tensor:
    inference.want_kind("x", x, FLOAT)
    inference.want_same_dtype(x, scale, bias, mean, var)
    inference.want_min_rank("x", x, 2)
    _epsilon(attrs)
    channels = x.dims[1]
    for name, tensor in (("scale", scale), ("bias", bias), ("mean", mean), ("var", var)):
        inference.want_rank(name, tensor, 1)
        channels = inference.want_dim(f"the extent of {name}", tensor.dims[0], channels)
    return Tensor(x.dtype, (x.dims[0], channels, *x.dims[2:]))


def _batch_norm(*arrays: np.ndarray, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    def of(x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
        scale, bias, mean, var = (vector.reshape(-1, *(1,) * (x.ndim - 2)) for vector in vectors)
        return (x - mean) / np.sqrt(var + _epsilon(attrs)) * scale + bias

    return rounded_once(of)(*arrays, attrs=attrs, regions=())


def _decompose_batch_norm(
    build: Builder, x: Value, scale: Value, bias: Value, mean: Value, var: Value, *, attrs: Mapping[str, Attr]
) -> tuple[Value, ...]:
    channels = x.dims[1]
    for vector in (scale, bias, mean, var):
        channels = inference.known(channels, vector.dims[0])

    def whole(vector: Value) -> Value:
        return vector if vector.dims == (channels,) else build.apply(shape.reshape, vector, dims=(channels,))

    scale, bias, mean, var = map(whole, (scale, bias, mean, var))
    # Everything but the last product and sum is over vectors, constants in most models: it folds away.
    shifted = build.apply(elementwise.add, var, _scalar(build, _epsilon(attrs), x))
    factor = build.apply(
        elementwise.mul, scale, build.apply(elementwise.reciprocal, build.apply(elementwise.sqrt, shifted))
    )
    offset = build.apply(elementwise.sub, bias, build.apply(elementwise.mul, mean, factor))

    def along(vector: Value) -> Value:
        return build.apply(shape.reshape, vector, dims=(vector.dims[0], *(1,) * (x.tensor.rank - 2)))

    return (build.apply(elementwise.add, build.apply(elementwise.mul, x, along(factor)), along(offset)),)


def _norm(*shape_: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return (("f32", shape_), *(("f32", (shape_[1],)),) * 3)


batch_norm = OpDef(
    name="batch_norm",
    doc="(x - mean) / sqrt(var + epsilon) * scale + bias, each a vector along axis 1 (inference: mean and var are "
    "given).",
    operands=("x", "scale", "bias", "mean", "var"),
    infer=_infer_batch_norm,
    reference=_batch_norm,
    samples=lambda: [
        *(
            Sample((*_norm(*shape_), np.linspace(0.5, 2, shape_[1], dtype=np.float32)), {"epsilon": 1e-5})
            for shape_ in ((2, 3), (4, 5, 6), (2, 3, 4, 5), (1, 17, 3, 3), (0, 3, 2, 2))
        ),
        Sample((*_norm(2, 3), ("f32", (4,))), {"epsilon": 1e-5}, error="extent of var"),
        Sample((("f32", (3,)), *(("f32", (3,)),) * 4), {"epsilon": 1e-5}, error="rank"),
    ],
    attrs=(AttrDef("epsilon", "float", 1e-5),),
    decompose=_decompose_batch_norm,
    to_onnx=NOT_YET,
    traits=_COMPOSITE,
)

OPS = (softmax, layer_norm, gelu, batch_norm)
