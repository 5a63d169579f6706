"""Ops that move elements without computing on them, and the one that makes a tensor of a shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow
from relume.ops.inference import infer_tensors, shape_text
from relume.ops.linalg import PACKED

_MOVES = frozenset({Trait.DATA_MOVEMENT})

# --- reshape, transpose, broadcast ----------------------------------------------------------------------------------


@infer_tensors
def _infer_reshape(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    target = inference.dims_attr(attrs, "dims")
    if inference.differ(dims.product(target), x.elements):
        raise InferError("reshape keeps the number of elements", f"{x.elements} elements", shape_text(target))
    inference.require(inference.EQUAL, dims.product(target), x.elements, "the number of elements")
    return Tensor(x.dtype, target)


def _reshape(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    return (x.reshape(attrs["dims"]),)


reshape = OpDef(
    name="reshape",
    doc="The same elements in C order under other extents.",
    operands=("x",),
    infer=_infer_reshape,
    reference=_reshape,
    samples=lambda: [
        Sample((("f32", (2, 6)),), {"dims": (3, 4)}),
        Sample((("f32", (2, 3, 4)),), {"dims": (24,)}),
        Sample((("f32", (1,)),), {"dims": ()}),
        Sample((("f32", ()),), {"dims": (1, 1)}),
        Sample((("i64", (0, 3)),), {"dims": (5, 0, 2)}),
        Sample((("f32", (2, 3)),), {"dims": (2, 4)}, error="number of elements"),
        Sample((("f32", (2, 3)),), {"dims": (-2, -3)}, error="out of range"),
    ],
    attrs=(AttrDef("dims", "dims"),),
    to_onnx=NOT_YET,
    traits=_MOVES,
)


@infer_tensors
def _infer_transpose(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    perm = inference.ints(attrs, "perm", x.rank, 0)
    if sorted(perm) != list(range(x.rank)):
        raise InferError("perm is not a permutation", f"of 0 to {x.rank - 1}", list(perm))
    return Tensor(x.dtype, tuple(x.dims[axis] for axis in perm))


def _transpose(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    return (x.transpose(attrs["perm"]),)


transpose = OpDef(
    name="transpose",
    doc="Axis i of the result is axis perm[i] of x.",
    operands=("x",),
    infer=_infer_transpose,
    reference=_transpose,
    samples=lambda: [
        Sample((("f32", (2, 3)),), {"perm": (1, 0)}),
        Sample((("f32", (2, 3, 4)),), {"perm": (2, 0, 1)}),
        Sample((("f32", (2, 3, 4, 5)),), {"perm": (0, 2, 3, 1)}),
        Sample((("f32", ()),), {"perm": ()}),
        Sample((("u8", (3, 0)),), {"perm": (1, 0)}),
        Sample((("f32", (2, 3)),), {"perm": (0, 0)}, error="not a permutation"),
        Sample((("f32", (2, 3)),), {"perm": (0,)}, error="entries"),
    ],
    attrs=(AttrDef("perm", "ints"),),
    to_onnx="Transpose",
    traits=_MOVES,
)


@infer_tensors
def _infer_broadcast(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    target = inference.dims_attr(attrs, "dims")
    inference.want_broadcast_to("x", x.dims, target)
    return Tensor(x.dtype, target)


def _broadcast(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    return (np.broadcast_to(x, attrs["dims"]),)


broadcast = OpDef(
    name="broadcast",
    doc="x repeated to `dims` by NumPy's rules: aligned at the last axis, an extent of 1 is repeated.",
    operands=("x",),
    infer=_infer_broadcast,
    reference=_broadcast,
    samples=lambda: [
        Sample((("f32", (1,)),), {"dims": (5,)}),
        Sample((("f32", ()),), {"dims": (2, 3)}),
        Sample((("f32", (3, 1)),), {"dims": (2, 3, 4)}),
        Sample((("bool", (1, 3)),), {"dims": (0, 3)}),
        Sample((("f32", (2, 3)),), {"dims": (2, 3)}),
        Sample((("f32", (2,)),), {"dims": (3,)}, error="does not broadcast"),
        Sample((("f32", (1, 3)),), {"dims": (3,)}, error="more axes"),
    ],
    attrs=(AttrDef("dims", "dims"),),
    to_onnx=NOT_YET,
    traits=_MOVES,
)

# --- concat, slice, pad ---------------------------------------------------------------------------------------------


@infer_tensors
def _infer_concat(*xs: Tensor, attrs: Mapping[str, Attr]) -> Tensor:
    if not xs:
        raise InferError("concat of nothing", "at least one operand", 0)
    dtype = inference.want_same_dtype(*xs)
    axis = inference.axis_attr(attrs, xs[0].rank)
    out = list(xs[0].dims)
    for index, x in enumerate(xs[1:], start=1):
        inference.want_rank(f"operand {index}", x, len(out))
        for other, dim in enumerate(x.dims):
            if other == axis:
                out[axis] = out[axis] + dim
            else:
                out[other] = inference.want_dim(f"axis {other} of operand {index}", dim, out[other])
    return Tensor(dtype, tuple(out))


def _concat(*xs: np.ndarray, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    return (np.concatenate(xs, axis=attrs["axis"]),)


concat = OpDef(
    name="concat",
    doc="The operands one after another along `axis`.",
    operands=("xs*",),
    infer=_infer_concat,
    reference=_concat,
    samples=lambda: [
        Sample((("f32", (2, 3)),), {"axis": 0}),
        Sample((("f32", (2,)), ("f32", (3,))), {"axis": 0}),
        Sample((("f32", (2, 3)), ("f32", (2, 1)), ("f32", (2, 4))), {"axis": 1}),
        Sample((("f32", (2, 3, 4)), ("f32", (2, 0, 4)), ("f32", (2, 2, 4))), {"axis": 1}),
        Sample((("i64", (1,)), ("i64", (1,))), {"axis": 0}),
        Sample((("f32", (2, 3)), ("f32", (3, 3))), {"axis": 1}, error="axis 0 of operand 1"),
        Sample((("f32", (2, 3)), ("f32", (2,))), {"axis": 0}, error="rank"),
        Sample((("f32", (2,)), ("i64", (2,))), {"axis": 0}, error="element types differ"),
        Sample((), {"axis": 0}, error="concat of nothing"),
    ],
    attrs=(AttrDef("axis", "int"),),
    to_onnx="Concat",
    traits=_MOVES,
)


@infer_tensors
def _infer_slice(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    starts = inference.dims_attr(attrs, "starts", x.rank, -1)
    stops = inference.dims_attr(attrs, "stops", x.rank, -1)
    steps = inference.ints(attrs, "steps", x.rank)
    return Tensor(x.dtype, tuple(map(_slice_extent, range(x.rank), x.dims, starts, stops, steps)))


def _slice_extent(axis: int, dim: Dim, start: Dim, stop: Dim, step: int) -> Dim:
    if step == 0:
        raise InferError(f"the step along axis {axis} is 0", "a step other than 0", 0)
    span = stop - start if step > 0 else start - stop
    extent = dims.ceildiv(span, abs(step))
    if not dims.not_negative(extent):
        extent = dims.maximum(0, extent)
    if extent == 0:
        return 0
    first, last = (0, dim) if step > 0 else (-1, dim - 1)
    low, high = (start, stop) if step > 0 else (stop, start)
    if inference.exceeds(first, low) or inference.exceeds(high, last):
        raise InferError(f"the slice leaves axis {axis}", f"{first} to {last}", f"{start} to {stop}")
    inference.want_at_most(f"the begin of axis {axis} of the slice", first, low)
    inference.want_at_most(f"the end of axis {axis} of the slice", high, last)
    return extent


def _slice(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    triples: Sequence[tuple[int, int, int]] = tuple(zip(attrs["starts"], attrs["stops"], attrs["steps"]))
    return (x[np.ix_(*(np.arange(*triple) for triple in triples))] if triples else x,)


slice_ = OpDef(
    name="slice",
    doc="Along each axis the elements start, start + step ... before stop. All axes are given and normalised: indices "
    "count from the front; 0 <= start, stop <= extent where the step is positive, and -1 <= start, stop < extent where "
    "it is negative (-1: before the first). Where stop is not past start there is nothing.",
    operands=("x",),
    infer=_infer_slice,
    reference=_slice,
    samples=lambda: [
        Sample((("f32", (7,)),), {"starts": (1,), "stops": (6,), "steps": (2,)}),
        Sample((("f32", (4, 5)),), {"starts": (0, 2), "stops": (4, 5), "steps": (3, 1)}),
        Sample((("f32", (5,)),), {"starts": (4,), "stops": (-1,), "steps": (-1,)}),
        Sample((("f32", (3, 6)),), {"starts": (2, 5), "stops": (0, -1), "steps": (-1, -2)}),
        Sample((("f32", (3, 6)),), {"starts": (1, 4), "stops": (1, 2), "steps": (1, 1)}),
        Sample((("i64", (0,)),), {"starts": (0,), "stops": (0,), "steps": (1,)}),
        Sample((("i64", (0,)),), {"starts": (-1,), "stops": (-1,), "steps": (-1,)}),
        Sample((("f32", ()),), {"starts": (), "stops": (), "steps": ()}),
        Sample((("f32", (5,)),), {"starts": (0,), "stops": (6,), "steps": (1,)}, error="leaves axis 0"),
        Sample((("f32", (5,)),), {"starts": (5,), "stops": (0,), "steps": (-1,)}, error="leaves axis 0"),
        Sample((("f32", (5,)),), {"starts": (0,), "stops": (5,), "steps": (0,)}, error="step"),
        Sample((("f32", (5, 5)),), {"starts": (0,), "stops": (5,), "steps": (1,)}, error="entries"),
    ],
    attrs=(AttrDef("starts", "dims"), AttrDef("stops", "dims"), AttrDef("steps", "ints")),
    to_onnx=NOT_YET,
    traits=_MOVES,
)


@infer_tensors
def _infer_pad(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    pads = inference.dims_attr(attrs, "pads", 2 * x.rank, 0)
    value = inference.number(attrs, "value")
    if not x.dtype.is_float:
        low, high = (0, 1) if x.dtype.kind == "bool" else (np.iinfo(x.dtype.numpy).min, np.iinfo(x.dtype.numpy).max)
        if not value.is_integer() or not low <= int(value) <= high:
            raise InferError(f"value does not fit {x.dtype}", f"a whole number, {low} to {high}", value)
    return Tensor(x.dtype, tuple(b + dim + a for dim, b, a in zip(x.dims, pads[: x.rank], pads[x.rank :])))


def _pad(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    pads: tuple[int, ...] = attrs["pads"]
    widths = list(zip(pads[: x.ndim], pads[x.ndim :]))
    value = narrow(np.asarray(attrs["value"]), x.dtype)
    return (np.pad(x, widths, constant_values=value) if widths else x,)


pad = OpDef(
    name="pad",
    doc="x with `value`, rounded to x's type, around it. `pads` counts the elements before each axis, then those after "
    "each.",
    operands=("x",),
    infer=_infer_pad,
    reference=_pad,
    samples=lambda: [
        Sample((("f32", (3,)),), {"pads": (1, 2), "value": 0.0}),
        Sample((("f32", (2, 3)),), {"pads": (0, 1, 2, 0), "value": -1.5}),
        Sample((("f32", (1, 2, 3, 3)),), {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "value": float("-inf")}),
        Sample((("f32", (0,)),), {"pads": (2, 1), "value": 3.0}),
        Sample((("f32", ()),), {"pads": (), "value": 3.0}),
        Sample((("i64", (2,)),), {"pads": (1, 1), "value": 7.0}),
        Sample((("bool", (2,)),), {"pads": (1, 1), "value": 1.0}),
        Sample((("f32", (3,)),), {"pads": (-1, 0), "value": 0.0}, error="out of range"),
        Sample((("u8", (3,)),), {"pads": (1, 0), "value": -1.0}, error="value does not fit u8"),
        Sample((("i64", (3,)),), {"pads": (1, 0), "value": float("-inf")}, error="value does not fit i64"),
        Sample((("f32", (3,)),), {"pads": (1,), "value": 0.0}, error="entries"),
    ],
    attrs=(AttrDef("pads", "dims"), AttrDef("value", "float", 0.0)),
    to_onnx=NOT_YET,
    traits=_MOVES,
)

# --- blocks ---------------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_pack(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    axis, block = inference.axis_attr(attrs, x.rank), inference.positive(attrs, "block")
    return Tensor(x.dtype, (*x.dims[:axis], dims.ceildiv(x.dims[axis], block), *x.dims[axis + 1 :], block))


def _pack(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    axis, block = attrs["axis"], attrs["block"]
    blocks = -(-x.shape[axis] // block)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, blocks * block - x.shape[axis])
    padded = np.pad(x, widths) if any(widths[axis]) else x  # A copy of all weights less.
    return (np.moveaxis(padded.reshape(*x.shape[:axis], blocks, block, *x.shape[axis + 1 :]), axis + 1, -1),)


pack = OpDef(
    name="pack",
    doc="`axis` in blocks, the elements of a block last: y[.., i, .., l] = x[.., i * block + l, ..], and 0 where there "
    "is no such element. x [.., C, ..] gives [.., ceil(C / block), .., block].",
    operands=("x",),
    infer=_infer_pack,
    reference=_pack,
    samples=lambda: [
        Sample((("f32", (1, 3, 4, 5)),), {"axis": 1, "block": 16}),
        Sample((("f32", (2, 40, 3, 2)),), {"axis": 1, "block": 16}),
        Sample((("f32", (6, 7)),), {"axis": 1, "block": 4}),
        Sample((("f32", (6, 7)),), {"axis": 0, "block": 3}),
        Sample((("f32", (2, 0, 3)),), {"axis": 1, "block": 16}),
        Sample((("u8", (5,)),), {"axis": 0, "block": 1}),
        Sample((("f32", (6, 7)),), {"axis": 2, "block": 4}, error="axis is out of range"),
        Sample((("f32", (6, 7)),), {"axis": 1, "block": 0}, error="block is out of range"),
    ],
    attrs=(AttrDef("axis", "int"), AttrDef("block", "int")),
    to_onnx=PACKED,
    traits=_MOVES,
)


@infer_tensors
def _infer_unpack(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_min_rank("x", x, 2)
    axis, size = inference.axis_attr(attrs, x.rank - 1), inference.dim_attr(attrs, "size")
    block = x.dims[-1]
    if isinstance(block, int):
        if block < 1:
            raise InferError("unpack needs blocks", "a last extent of at least 1", x)
        inference.want_dim("the number of blocks", x.dims[axis], dims.ceildiv(size, block))
    return Tensor(x.dtype, (*x.dims[:axis], size, *x.dims[axis + 1 : -1]))


def _unpack(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    axis, size = attrs["axis"], attrs["size"]
    lanes = np.moveaxis(x, -1, axis + 1)
    flat = lanes.reshape(*x.shape[:axis], x.shape[axis] * x.shape[-1], *x.shape[axis + 1 : -1])
    return (np.take(flat, range(size), axis=axis),)


unpack = OpDef(
    name="unpack",
    doc="The inverse of pack: `size` elements along `axis` out of blocks, what fills the last block dropped. "
    "x [.., ceil(size / block), .., block] gives [.., size, ..].",
    operands=("x",),
    infer=_infer_unpack,
    reference=_unpack,
    samples=lambda: [
        Sample((("f32", (1, 1, 4, 5, 16)),), {"axis": 1, "size": 3}),
        Sample((("f32", (2, 3, 3, 2, 16)),), {"axis": 1, "size": 40}),
        Sample((("f32", (6, 2, 4)),), {"axis": 1, "size": 7}),
        Sample((("f32", (2, 7, 3)),), {"axis": 0, "size": 6}),
        Sample((("f32", (2, 0, 3, 16)),), {"axis": 1, "size": 0}),
        Sample((("f32", (2, 3, 16)),), {"axis": 1, "size": 32}, error="number of blocks"),
        Sample((("f32", (2, 3, 16)),), {"axis": 2, "size": 48}, error="axis is out of range"),
    ],
    attrs=(AttrDef("axis", "int"), AttrDef("size", "dim")),
    to_onnx=PACKED,
    traits=_MOVES,
)

# --- extents --------------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_extents(*, attrs: Mapping[str, Attr]) -> Tensor:
    return Tensor(dtypes.i64, (len(inference.dims_attr(attrs, "dims", least=None)),))


def _extents(*, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    return (np.array(attrs["dims"], dtype=np.int64),)


extents = OpDef(
    name="extents",
    doc="The vector of the values of `dims`, i64: where a model uses a shape as data. Any integers are allowed.",
    operands=(),
    infer=_infer_extents,
    reference=_extents,
    samples=lambda: [
        Sample((), {"dims": (2, 3, 5)}),
        Sample((), {"dims": ()}),
        Sample((), {"dims": (-1,)}),
        Sample((), {"dims": 3}, error="list of dims"),
    ],
    attrs=(AttrDef("dims", "dims"),),
    gradient=NO_GRADIENT("integer valued"),
    to_onnx=NOT_YET,
)

OPS = (reshape, transpose, broadcast, concat, slice_, pad, pack, unpack, extents)
