"""Addressing by indices that are data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dtypes
from relume.graph.opdef import AttrDef, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved
from relume.ops.inference import infer_tensors


@infer_tensors
def _infer_gather(x: Tensor, indices: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_dtype("indices", indices, dtypes.i64, dtypes.i32)
    axis = inference.axis_attr(attrs, x.rank)
    return Tensor(x.dtype, (*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]))


def _gather(x: np.ndarray, indices: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    axis = attrs["axis"]
    extent = x.shape[axis]
    outside = indices[(indices < -extent) | (indices >= extent)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of range for axis {axis} of extent {extent}")
    return (np.take(x, np.where(indices < 0, indices + extent, indices), axis=axis),)


gather = OpDef(
    name="gather",
    doc="y[a, i, b] = x[a, indices[i], b], where a are the axes before `axis`, b those after, i those of indices. "
    "Negative indices count from the end; out of range is an error of the run.",
    operands=("x", "indices"),
    infer=_infer_gather,
    reference=_gather,
    samples=lambda: [
        Sample((("f32", (5,)), np.array([0, 4, 4, -1, -5])), {"axis": 0}),
        Sample((("f32", (5, 3)), np.array(2)), {"axis": 0}),
        Sample((("f32", (2, 5, 3)), np.array([[0, 1], [-1, 3]])), {"axis": 1}),
        Sample((("f32", (2, 5)), np.array([[4], [-5]], np.int32)), {"axis": 1}),
        Sample((("i64", (4,)), np.zeros((0,), np.int64)), {"axis": 0}),
        Sample((("f32", (0, 3)), np.array([2, 0])), {"axis": 1}),
        Sample((("f32", (5,)), ("f32", (2,))), {"axis": 0}, error="indices cannot be f32"),
        Sample((("f32", ()), np.array([0])), {"axis": 0}, error="axis is out of range"),
    ],
    attrs=(AttrDef("axis", "int"),),
    to_onnx="Gather",
    traits=frozenset({Trait.DATA_MOVEMENT}),
)

OPS = (gather,)
