"""Indices as data: made by counting, and used to address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from relume.base import dtypes
from relume.graph.opdef import NO_GRADIENT, AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow
from relume.ops.inference import infer_tensors

# --- counting -------------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_iota(*, attrs: Mapping[str, Attr]) -> Tensor:
    shape = inference.dims_attr(attrs, "dims")
    inference.axis_attr(attrs, len(shape))
    return Tensor(inference.dtype_attr(attrs, "dtype", inference.NUMBER), shape)


def _iota(*, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    shape, axis = attrs["dims"], attrs["axis"]
    line = narrow(np.arange(shape[axis]), attrs["dtype"].numpy)
    return (np.broadcast_to(line.reshape(-1, *(1,) * (len(shape) - axis - 1)), shape),)


iota = OpDef(
    name="iota",
    doc="y[i] = i[axis], rounded (wrapped) to `dtype`: counts 0, 1, 2 ... along one axis, the same along all others.",
    operands=(),
    infer=_infer_iota,
    reference=_iota,
    samples=lambda: [
        Sample((), {"dims": (7,), "axis": 0, "dtype": dtypes.i64}),
        Sample((), {"dims": (2, 50), "axis": 1, "dtype": dtypes.f32}),
        Sample((), {"dims": (3, 1, 4), "axis": 0, "dtype": dtypes.i32}),
        Sample((), {"dims": (2, 3, 4), "axis": 1, "dtype": dtypes.f64}),
        Sample((), {"dims": (300,), "axis": 0, "dtype": dtypes.u8}),
        Sample((), {"dims": (2060,), "axis": 0, "dtype": dtypes.f16}),
        Sample((), {"dims": (0, 3), "axis": 1, "dtype": dtypes.i64}),
        Sample((), {"dims": (3, 0), "axis": 1, "dtype": dtypes.i64}),
        Sample((), {"dims": (), "axis": 0, "dtype": dtypes.i64}, error="axis is out of range"),
        Sample((), {"dims": (3,), "axis": 0, "dtype": dtypes.bool_}, error="dtype cannot be bool"),
        Sample((), {"dims": (-3,), "axis": 0, "dtype": dtypes.i64}, error="dims is out of range"),
    ],
    attrs=(AttrDef("dims", "dims"), AttrDef("axis", "int"), AttrDef("dtype", "dtype", dtypes.i64)),
    gradient=NO_GRADIENT("it has no operand"),
)

# --- one axis by one vector -----------------------------------------------------------------------------------------


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

# --- several axes by as many indices --------------------------------------------------------------------------------


def _infer_places(x: Tensor, indices: Sequence[Tensor], attrs: Mapping[str, Attr]) -> Tensor:
    """The type of what the indices address in x."""
    if not indices:
        raise InferError("nothing addresses x", "at least one tensor of indices", 0)
    first = indices[0]
    batch = inference.not_negative_int(attrs, "batch")
    if batch > first.rank or batch + len(indices) > x.rank:
        wanted = f"indices of rank {batch} or more, and x of rank {batch + len(indices)} or more"
        raise InferError("there are not as many axes", wanted, f"rank {first.rank}, and rank {x.rank}")
    shape = list(first.dims)
    for number, index in enumerate(indices):
        inference.want_dtype(f"index {number}", index, dtypes.i64, dtypes.i32)
        inference.want_rank(f"index {number}", index, first.rank)
        for axis, dim in enumerate(index.dims):
            shape[axis] = inference.want_dim(f"axis {axis} of index {number}", dim, shape[axis])
    for axis in range(batch):
        inference.want_at_most(f"axis {axis} of the indices", shape[axis], x.dims[axis])
    return Tensor(x.dtype, (*shape, *x.dims[batch + len(indices) :]))


def _places(x: np.ndarray, indices: Sequence[np.ndarray], batch: int) -> tuple[np.ndarray, ...]:
    """Arrays that index the first axes of x. Raises `IndexError` where an index is out of range."""
    out: list[np.ndarray] = list(np.ogrid[tuple(slice(extent) for extent in indices[0].shape)][:batch])
    for axis, index in enumerate(indices, start=batch):
        extent = x.shape[axis]
        outside = index[(index < -extent) | (index >= extent)]
        if outside.size:
            raise IndexError(f"index {outside[0]} is out of range for axis {axis} of extent {extent}")
        out.append(np.where(index < 0, index + extent, index))
    return tuple(np.broadcast_arrays(*out))


@infer_tensors
def _infer_gather_nd(x: Tensor, *indices: Tensor, attrs: Mapping[str, Attr]) -> Tensor:
    return _infer_places(x, indices, attrs)


def _gather_nd(x: np.ndarray, *indices: np.ndarray, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    return (x[_places(x, indices, attrs["batch"])],)


gather_nd = OpDef(
    name="gather_nd",
    doc="y[b, i, r] = x[b, indices_1[b, i], indices_2[b, i] ..., r]: b are the first `batch` axes, which x and the "
    "indices share (the indices may have fewer places there), i the other axes of the indices, r what is left of x. "
    "Negative indices count from the end; out of range is an error of the run.",
    operands=("x", "indices*"),
    infer=_infer_gather_nd,
    reference=_gather_nd,
    samples=lambda: [
        Sample((("f32", (5,)), np.array([0, 4, -1, -5])), {"batch": 0}),
        Sample((("f32", (3, 4)), np.array([0, -1, 2]), np.array([1, -4, 3])), {"batch": 0}),
        Sample((("f32", (3, 4, 5)), np.array([[2, 0]]), np.array([[1, -1]])), {"batch": 0}),
        Sample((("f32", (2, 3, 17)), np.array([[1, -1], [0, 2]], np.int32)), {"batch": 1}),
        Sample((("f64", (3, 4)), np.array([[3, 0, -1], [1, 1, -4], [2, 2, 2]])), {"batch": 1}),
        Sample((("i64", (3, 4)), np.array([[3, 0], [1, -4]])), {"batch": 1}),
        Sample(
            (("u8", (2, 3, 4, 5)), np.array([[0, 2, -1], [1, 1, 0]]), np.array([[3, 0, 0], [-1, 1, 2]])), {"batch": 1}
        ),
        Sample((("f32", (2, 3, 2)), np.array([[0, 1, 0], [1, 1, -1]])), {"batch": 2}),
        Sample((("bool", (3, 2)), np.array(1), np.array(0)), {"batch": 0}),
        Sample((("f16", (3, 2)), np.zeros((0,), np.int64)), {"batch": 0}),
        Sample((("f32", (0, 3)), np.zeros((0, 2), np.int64)), {"batch": 1}),
        Sample((("f32", (3, 4)), ("f32", (2,))), {"batch": 0}, error="index 0 cannot be f32"),
        Sample((("f32", (3, 4)), np.array([0]), np.array([0, 1])), {"batch": 0}, error="axis 0 of index 1"),
        Sample((("f32", (2, 4)), np.array([[0], [1], [2]])), {"batch": 1}, error="axis 0 of the indices"),
        Sample((("f32", (4,)), np.array([0]), np.array([0])), {"batch": 0}, error="not as many axes"),
        Sample((("f32", (4,)), np.array([0])), {"batch": -1}, error="batch is out of range"),
        Sample((("f32", (4,)),), {"batch": 0}, error="nothing addresses x"),
    ],
    attrs=(AttrDef("batch", "int", 0),),
    traits=frozenset({Trait.DATA_MOVEMENT}),
)

_REDUCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


@infer_tensors
def _infer_scatter_nd(x: Tensor, updates: Tensor, *indices: Tensor, attrs: Mapping[str, Attr]) -> Tensor:
    if inference.choice(attrs, "reduction", ("none", *_REDUCTIONS)) != "none":
        inference.want_kind("x", x, inference.NUMBER)
    inference.want_same_dtype(x, updates)
    wanted = _infer_places(x, indices, attrs)
    inference.want_rank("updates", updates, wanted.rank)
    for axis, (dim, other) in enumerate(zip(updates.dims, wanted.dims)):
        inference.want_dim(f"axis {axis} of the updates", dim, other)
    return x


def _scatter_nd(
    x: np.ndarray, updates: np.ndarray, *indices: np.ndarray, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    y, places = x.copy(), _places(x, indices, attrs["batch"])
    combine = _REDUCTIONS.get(attrs["reduction"], lambda before, update: update)
    with np.errstate(all="ignore"):
        for point in np.ndindex(indices[0].shape):  # One after the other: the order is part of the meaning.
            place = tuple(int(index[point]) for index in places)
            y[place] = combine(y[place], updates[point])
    return (y,)


scatter_nd = OpDef(
    name="scatter_nd",
    doc="x with updates put in: y[b, indices_1[b, i], indices_2[b, i] ..., r] = updates[b, i, r], or for another "
    "`reduction` than none what is there before combined with it (add, mul, max, min). Axes as for gather_nd. One "
    "after the other in the order of i: of equal indices the last one wins, or all are combined in order. Negative "
    "indices count from the end; out of range is an error of the run.",
    operands=("x", "updates", "indices*"),
    infer=_infer_scatter_nd,
    reference=_scatter_nd,
    samples=lambda: [
        Sample((("f32", (5,)), ("f32", (4,)), np.array([0, 4, -1, 0])), {"batch": 0, "reduction": "none"}),
        *(
            Sample((("f32", (5, 19)), ("f32", (4, 19)), np.array([0, 4, -1, 0])), {"batch": 0, "reduction": reduction})
            for reduction in ("none", "add", "mul", "max", "min")
        ),
        *(
            Sample(
                (("i32", (3, 4)), ("i32", (3, 5)), np.array([[0, 0, 1, -1, 0]] * 3)), {"batch": 1, "reduction": kind}
            )
            for kind in ("none", "add", "mul", "max", "min")
        ),
        Sample(
            (("f64", (3, 4)), ("f64", (2, 2)), np.array([[0, -1], [0, 2]]), np.array([[1, 2], [1, 3]])),
            {"batch": 0, "reduction": "add"},
        ),
        Sample(
            (
                ("f32", (2, 3, 4, 5)),
                ("f32", (2, 2, 5)),
                np.array([[2, -1], [0, 0]]),
                np.array([[3, -1], [1, 1]], np.int32),
            ),
            {"batch": 1, "reduction": "max"},
        ),
        Sample((("u8", (3, 4)), ("u8", (2, 1)), np.array([[3], [3]])), {"batch": 1, "reduction": "mul"}),
        Sample((("f16", (4,)), ("f16", (3,)), np.array([1, 1, 1])), {"batch": 0, "reduction": "add"}),
        Sample(
            (np.array([1, np.nan, 3], np.float32), np.array([np.nan, 5, 2], np.float32), np.array([0, 1, 2])),
            {"batch": 0, "reduction": "max"},
        ),
        Sample((("bool", (3, 2)), ("bool", ()), np.array(1), np.array(0)), {"batch": 0, "reduction": "none"}),
        Sample((("f32", (3, 2)), ("f32", (0, 2)), np.zeros((0,), np.int64)), {"batch": 0, "reduction": "add"}),
        Sample((("f32", (3, 0)), ("f32", (2, 0)), np.array([1, 1])), {"batch": 0, "reduction": "add"}),
        Sample(
            (("bool", (3,)), ("bool", (1,)), np.array([0])), {"batch": 0, "reduction": "add"}, error="cannot be bool"
        ),
        Sample(
            (("f32", (3,)), ("f32", (2,)), np.array([0])),
            {"batch": 0, "reduction": "add"},
            error="axis 0 of the updates",
        ),
        Sample(
            (("f32", (3,)), ("f64", (1,)), np.array([0])),
            {"batch": 0, "reduction": "add"},
            error="element types differ",
        ),
        Sample(
            (("f32", (3,)), ("f32", (1,)), np.array([0])),
            {"batch": 0, "reduction": "or"},
            error="reduction is not known",
        ),
        Sample((("f32", (3,)), ("f32", (1,))), {"batch": 0, "reduction": "add"}, error="nothing addresses x"),
    ],
    attrs=(AttrDef("batch", "int", 0), AttrDef("reduction", "str", "none")),
)

OPS = (iota, gather, gather_nd, scatter_nd)
