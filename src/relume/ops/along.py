"""Ops along one axis that keep it: running totals, and the largest few."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dtypes
from relume.graph.opdef import AttrDef, OpDef, Sample
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow, widen
from relume.ops.inference import NUMBER, infer_tensors

_TOTALS = {"sum": (np.add, 0), "prod": (np.multiply, 1)}
"""What combines two elements, and what changes nothing."""


@infer_tensors
def _infer_cumulative(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, NUMBER)
    inference.axis_attr(attrs, x.rank)
    inference.choice(attrs, "kind", tuple(_TOTALS))
    inference.flag(attrs, "exclusive")
    inference.flag(attrs, "reverse")
    return x


def _cumulative(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    combine, neutral = _TOTALS[attrs["kind"]]
    wide = np.moveaxis(widen(x), attrs["axis"], 0)
    wide = wide[::-1] if attrs["reverse"] else wide
    with np.errstate(all="ignore"):
        y = combine.accumulate(wide, axis=0)  # One after the other, never in pairs.
    if attrs["exclusive"]:
        y = np.concatenate([np.full_like(y[:1], neutral), y[:-1]])
    y = y[::-1] if attrs["reverse"] else y
    return (narrow(np.moveaxis(y, 0, attrs["axis"]), x.dtype),)


cumulative = OpDef(
    name="cumulative",
    doc="The sum (`kind` sum) or product (prod) of the elements up to each one along `axis`: with itself, or without "
    "(`exclusive`: the first is 0 or 1); from the end with `reverse`. Floats are combined one after the other in f64, "
    "and each result is rounded once; integers wrap.",
    operands=("x",),
    infer=_infer_cumulative,
    reference=_cumulative,
    samples=lambda: [
        *(
            Sample((("f32", (3, 20)),), {"axis": axis, "kind": kind, "exclusive": exclusive, "reverse": reverse})
            for kind in ("sum", "prod")
            for axis, exclusive, reverse in ((0, False, False), (1, True, False), (1, False, True), (0, True, True))
        ),
        Sample((("f32", (2, 3, 17)),), {"axis": 1}),
        Sample((("i32", (7,)),), {"axis": 0, "exclusive": True}),
        Sample((np.array([2**62, 2**62, 5]),), {"axis": 0}),
        Sample((("u8", (40, 3)),), {"axis": 0, "kind": "prod"}),
        Sample((("f64", (2, 5)),), {"axis": 1, "kind": "prod"}),
        Sample((("f16", (50,)),), {"axis": 0}),
        Sample((("bf16", (50,)),), {"axis": 0, "reverse": True}),
        Sample((np.array([1, np.inf, -np.inf, 2], np.float32),), {"axis": 0}),
        Sample((np.array([1e30, 1e30, 1e-30, 1e-30], np.float32),), {"axis": 0, "kind": "prod"}),
        Sample((("f32", (3, 0)),), {"axis": 1}),
        Sample((("f32", (0, 3)),), {"axis": 1, "exclusive": True}),
        Sample((("f32", (3,)),), {"axis": 1}, error="axis is out of range"),
        Sample((("f32", (3,)),), {"axis": 0, "kind": "max"}, error="kind is not known"),
        Sample((("bool", (3,)),), {"axis": 0}, error="cannot be bool"),
    ],
    attrs=(
        AttrDef("axis", "int"),
        AttrDef("kind", "str", "sum"),
        AttrDef("exclusive", "bool", False),
        AttrDef("reverse", "bool", False),
    ),
)


@infer_tensors
def _infer_top_k(x: Tensor, *, attrs: Mapping[str, Attr]) -> tuple[Tensor, ...]:
    inference.want_kind("x", x, NUMBER)
    axis, k = inference.axis_attr(attrs, x.rank), inference.dim_attr(attrs, "k")
    inference.flag(attrs, "largest")
    inference.want_at_most("k", k, x.dims[axis])
    shape = (*x.dims[:axis], k, *x.dims[axis + 1 :])
    return Tensor(x.dtype, shape), Tensor(dtypes.i64, shape)


def _top_k(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    axis, k = attrs["axis"], attrs["k"]
    ascending = np.moveaxis(widen(x), axis, -1)
    if attrs["largest"]:
        # Stable from the back, then read from the back: the first of equals comes first.
        order = x.shape[axis] - 1 - np.argsort(ascending[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(ascending, axis=-1, kind="stable")  # NumPy puts NaN last, as we do.
    places = np.moveaxis(order[..., :k], -1, axis).astype(np.int64)
    return np.take_along_axis(x, places, axis), places


top_k = OpDef(
    name="top_k",
    doc="The k largest (smallest) elements along `axis`, in descending (ascending) order, and their i64 indices. Of "
    "equals the lower index comes first; NaN counts as larger than every number.",
    operands=("x",),
    results=("values", "indices"),
    infer=_infer_top_k,
    reference=_top_k,
    samples=lambda: [
        *(Sample((("f32", (3, 40)),), {"axis": 1, "k": 7, "largest": largest}) for largest in (True, False)),
        *(Sample((("i8", (3, 40)),), {"axis": 1, "k": k, "largest": True}) for k in (0, 1, 2, 39, 40)),
        Sample((("i64", (20, 2, 3)),), {"axis": 0, "k": 6, "largest": False}),
        Sample((np.array([2**63, 1, 2**63 - 1], np.uint64),), {"axis": 0, "k": 2}),
        Sample((("f64", (2, 9)),), {"axis": 1, "k": 3}),
        Sample((("f16", (30,)),), {"axis": 0, "k": 5}),
        Sample((("bf16", (2, 30)),), {"axis": 1, "k": 5, "largest": False}),
        *(
            Sample(
                (np.array([0, -0.0, np.nan, np.inf, 1, np.nan, -np.inf, 1], np.float32),), {"axis": 0, "k": 8, **rest}
            )
            for rest in ({"largest": True}, {"largest": False})
        ),
        Sample((("f32", (0, 3)),), {"axis": 1, "k": 2}),
        Sample((("f32", (3, 0)),), {"axis": 1, "k": 0}),
        Sample((("f32", (3,)),), {"axis": 0, "k": 4}, error="k is out of range"),
        Sample((("f32", (3,)),), {"axis": 0, "k": -1}, error="k is out of range"),
        Sample((("f32", (3,)),), {"axis": 1, "k": 1}, error="axis is out of range"),
        Sample((("bool", (3,)),), {"axis": 0, "k": 1}, error="cannot be bool"),
    ],
    attrs=(AttrDef("axis", "int"), AttrDef("k", "dim"), AttrDef("largest", "bool", True)),
)

OPS = (cumulative, top_k)
