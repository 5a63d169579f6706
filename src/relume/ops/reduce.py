"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from relume.base import dtypes
from relume.base.dims import Dim
from relume.base.dtypes import from_numpy
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, highest, lowest, narrow, widen
from relume.ops.inference import FLOAT, NUMBER, infer_tensors


def _reduced(shape: Sequence[Dim], axes: Sequence[int], keep: bool) -> tuple[Dim, ...]:
    kept = [1 if axis in axes else dim for axis, dim in enumerate(shape)]
    return tuple(dim for axis, dim in enumerate(kept) if keep or axis not in axes)


def _reduction(
    name: str,
    doc: str,
    fold: Callable[[np.ndarray, tuple[int, ...], bool], np.ndarray],
    kinds: tuple[str, ...] = NUMBER,
    traits: frozenset[Trait] = frozenset(),
) -> OpDef:
    @infer_tensors
    def infer(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
        inference.want_kind("x", x, kinds)
        return Tensor(x.dtype, _reduced(x.dims, inference.axes_attr(attrs, x.rank), inference.flag(attrs, "keep")))

    def reference(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            return (narrow(fold(x, attrs["axes"], attrs["keep"]), x.dtype),)

    def samples() -> Sequence[Sample]:
        out = [
            Sample((("f32", (7,)),), {"axes": (0,), "keep": False}),
            Sample((("f32", (3, 5)),), {"axes": (1,), "keep": True}),
            Sample((("f32", (3, 5)),), {"axes": (0,), "keep": False}),
            Sample((("f32", (2, 3, 4, 5)),), {"axes": (2, 3), "keep": True}),
            Sample((("f32", (2, 3, 4, 5)),), {"axes": (0, 2), "keep": False}),
            Sample((("f32", (2, 3)),), {"axes": (), "keep": False}),
            Sample((("f32", ()),), {"axes": (), "keep": True}),
            Sample((("f32", (3, 0)),), {"axes": (1,), "keep": False}),
            Sample((("f32", (0, 3)),), {"axes": (1,), "keep": True}),
            Sample((("f32", (2, 1000)),), {"axes": (1,), "keep": False}),
            Sample(
                (np.array([[1, np.nan, 2], [np.inf, 1, 0], [-np.inf, 1, 2]], np.float32),),
                {"axes": (1,), "keep": False},
            ),
            Sample((("f64", (4, 3)),), {"axes": (0, 1), "keep": False}),
            Sample((("f32", (2, 3)),), {"axes": (2,), "keep": False}, error="out of range"),
            Sample((("f32", (2, 3)),), {"axes": (1, 0), "keep": False}, error="axes are out of range"),
            Sample((("bool", (2,)),), {"axes": (0,), "keep": False}, error="cannot be bool"),
        ]
        if "int" in kinds:
            out += [Sample((("i32", (3, 4)),), {"axes": (0,), "keep": False})]
            out += [Sample((np.array([[2**62, 2**62], [1, -(2**63)]]),), {"axes": (1,), "keep": False})]
            out += [Sample((("u8", (3, 40)),), {"axes": (1,), "keep": True})]
            out += [Sample((("i64", (3, 0)),), {"axes": (1,), "keep": False})]
        return out

    return OpDef(
        name=name,
        doc=doc,
        operands=("x",),
        infer=infer,
        reference=reference,
        samples=samples,
        attrs=(AttrDef("axes", "ints"), AttrDef("keep", "bool", False)),
        traits=traits,
    )


def _sum(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    wide = widen(x)
    return np.sum(wide, axis=axes, keepdims=keep, dtype=wide.dtype)


def _mean(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    count = np.prod([x.shape[axis] for axis in axes], dtype=np.float64)
    return _sum(x, axes, keep) / count


def _max(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.max(x, axis=axes, keepdims=keep, initial=lowest(from_numpy(x.dtype)))


def _min(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.min(x, axis=axes, keepdims=keep, initial=highest(from_numpy(x.dtype)))


def _prod(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    wide = widen(x)
    return np.prod(wide, axis=axes, keepdims=keep, dtype=wide.dtype)


_ADDS = frozenset({Trait.INEXACT})

reduce_sum = _reduction("reduce_sum", "The sum over `axes`; 0 over nothing. Integers wrap.", _sum, traits=_ADDS)
reduce_max = _reduction(
    "reduce_max",
    "The largest over `axes`; NaN if there is one; -inf (the minimum of an integer type) over nothing.",
    _max,
)
reduce_min = _reduction(
    "reduce_min",
    "The smallest over `axes`; NaN if there is one; inf (the maximum of an integer type) over nothing.",
    _min,
)
reduce_mean = _reduction(
    "reduce_mean", "The sum over `axes` divided by the number of terms; NaN over nothing.", _mean, FLOAT, _ADDS
)
reduce_prod = _reduction(
    "reduce_prod",
    "The product over `axes`; 1 over nothing. Integers wrap. Whether a partial product leaves the range of a float "
    "type on the way depends on the order, which only the kernel fixes.",
    _prod,
    traits=_ADDS,
)


@infer_tensors
def _infer_argmax(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, NUMBER)
    axis = inference.axis_attr(attrs, x.rank)
    if x.dims[axis] == 0:
        raise InferError("argmax over an empty axis", "an extent of at least 1", 0)
    return Tensor(dtypes.i64, _reduced(x.dims, (axis,), inference.flag(attrs, "keep")))


def _argmax(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    # NumPy's rule is ours: the first of equals, and NaN before every number.
    return (np.asarray(np.argmax(x, axis=attrs["axis"], keepdims=attrs["keep"]), dtype=np.int64),)


argmax = OpDef(
    name="argmax",
    doc="The index of the largest element along `axis`: the first of equals; NaN counts as the largest. i64.",
    operands=("x",),
    infer=_infer_argmax,
    reference=_argmax,
    samples=lambda: [
        Sample((("f32", (7,)),), {"axis": 0, "keep": False}),
        Sample((("f32", (3, 5)),), {"axis": 1, "keep": True}),
        Sample((("f32", (2, 4, 3)),), {"axis": 1, "keep": False}),
        Sample((("f32", (0, 3)),), {"axis": 1, "keep": False}),
        Sample(
            (np.array([[1, 3, 3, 0], [np.nan, 5, np.nan, 9], [-np.inf] * 4], np.float32),), {"axis": 1, "keep": False}
        ),
        Sample((np.array([[-5, 7], [9, 7], [9, -1]]),), {"axis": 0, "keep": False}),
        Sample((("u8", (50,)),), {"axis": 0, "keep": False}),
        Sample((("f32", (3, 0)),), {"axis": 1, "keep": False}, error="empty axis"),
        Sample((("f32", (3,)),), {"axis": -1, "keep": False}, error="out of range"),
    ],
    attrs=(AttrDef("axis", "int"), AttrDef("keep", "bool", False)),
    gradient=NO_GRADIENT("integer valued"),
    to_onnx=NOT_YET,
)

OPS = (reduce_sum, reduce_max, reduce_min, reduce_mean, reduce_prod, argmax)
