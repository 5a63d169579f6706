"""Sliding windows: their geometry (which convolution shares), and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import from_numpy, i64
from relume.base.targets import BLOCK
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, lowest, narrow, widen
from relume.ops.inference import FLOAT, NUMBER, infer_tensors


@dataclass(frozen=True)
class Geometry:
    """Where windows stand on some axes. `before` and `after` are the padding, all in elements."""

    window: tuple[Dim, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil: bool = False
    """Whether a last window may reach past the padded end; then windows that start behind the data do not count."""

    @staticmethod
    def of(attrs: Mapping[str, Attr], window: Sequence[Dim]) -> Geometry:
        """Reads and checks strides, pads (all befores, then all afters), dilations and, where there is one, ceil."""
        rank = len(window)
        pads = inference.ints(attrs, "pads", 2 * rank, 0)
        return Geometry(
            tuple(window),
            inference.ints(attrs, "strides", rank, 1),
            pads[:rank],
            pads[rank:],
            inference.ints(attrs, "dilations", rank, 1),
            inference.flag(attrs, "ceil") if "ceil" in attrs else False,
        )

    def extents(self, data: Sequence[Dim]) -> tuple[Dim, ...]:
        """How many windows stand along each axis of `data`: (span - reach) / stride + 1, rounded as `ceil` says.

        That is 0 where a window lacks up to a stride of elements. Raises `InferError` where the number is negative, as
        a run does (`InputError`) where the extents are symbolic.
        """
        return tuple(self._extent(axis, dim) for axis, dim in enumerate(data))

    def _extent(self, axis: int, dim: Dim) -> Dim:
        reach = (self.window[axis] - 1) * self.dilations[axis] + 1
        padded = dim + self.before[axis] + self.after[axis]
        span, stride = padded - reach, self.strides[axis]
        count = dims.floordiv(span, stride) + 1
        if self.ceil:
            count = dims.minimum(dims.ceildiv(span, stride) + 1, dims.ceildiv(dim + self.before[axis], stride))
        if isinstance(count, int) and count < 0:
            raise InferError(f"the window does not fit along spatial axis {axis}", f"at most {padded}", reach)
        return count

    def windows(self, x: np.ndarray, fill: float | int, axis: int = 2) -> np.ndarray:
        """A read-only view of all windows on the axes of `x` from `axis` on.

        `fill` is what padding holds. The result has, in place of the spatial axes, the positions of the windows, and
        last of all the axes inside a window.
        """
        count = len(self.window)
        data = x.shape[axis : axis + count]
        out = [dims.evaluate(extent, {}) for extent in self.extents(data)]
        widths = [(0, 0)] * x.ndim
        reaches = []
        for place, size in enumerate(self.window):
            reach = (dims.evaluate(size, {}) - 1) * self.dilations[place] + 1
            last = (out[place] - 1) * self.strides[place] + reach
            # With ceil the last window may reach past the padding; without, some padding may stay unused.
            missing = max(last, reach) - (self.before[place] + data[place])
            widths[axis + place] = (self.before[place], max(missing, self.after[place]))
            reaches.append(reach)
        padded = np.pad(x, widths, constant_values=fill)
        spatial = tuple(range(axis, axis + count))
        view = np.lib.stride_tricks.sliding_window_view(padded, reaches, axis=spatial)
        index = [slice(None)] * view.ndim
        for place in range(count):
            stop = (out[place] - 1) * self.strides[place] + 1
            index[axis + place] = slice(0, max(stop, 0), self.strides[place])
            index[x.ndim + place] = slice(None, None, self.dilations[place])
        return view[tuple(index)]


_ATTRS = (
    AttrDef("window", "ints"),
    AttrDef("strides", "ints"),
    AttrDef("pads", "ints"),
    AttrDef("dilations", "ints"),
    AttrDef("ceil", "bool", False),
    AttrDef("blocked", "bool", False),
)


def _geometry(attrs: Mapping[str, Attr], rank: int) -> Geometry:
    return Geometry.of(attrs, inference.ints(attrs, "window", rank - (3 if attrs["blocked"] else 2), 1))


def _pooled(x: Tensor, attrs: Mapping[str, Attr]) -> Tensor:
    last = 1 if inference.flag(attrs, "blocked") else 0
    inference.want_min_rank("x", x, 3 + last)
    if last:
        inference.want_dim("the lanes of x", x.dims[-1], BLOCK)
    stop = x.rank - last
    extents = _geometry(attrs, x.rank).extents(x.dims[2:stop])
    return Tensor(x.dtype, (*x.dims[:2], *extents, *((BLOCK,) if last else ())))


@infer_tensors
def _infer_max_pool(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, NUMBER)
    return _pooled(x, attrs)


@infer_tensors
def _infer_sum_pool(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, FLOAT)
    return _pooled(x, attrs)


@infer_tensors
def _infer_argmax_pool(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, NUMBER)
    inference.flag(attrs, "column_major")
    return replace(_pooled(x, {**attrs, "blocked": False}), dtype=i64)


@infer_tensors
def _infer_avg_pool(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("x", x, FLOAT)
    inference.flag(attrs, "count_pads")
    return _pooled(x, attrs)


def _inner(geometry: Geometry) -> tuple[int, ...]:
    return tuple(range(-len(geometry.window), 0))


def _max_pool(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    geometry = _geometry(attrs, x.ndim)
    with np.errstate(all="ignore"):
        return (geometry.windows(x, lowest(from_numpy(x.dtype))).max(axis=_inner(geometry)),)


def _sum_pool(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    geometry = _geometry(attrs, x.ndim)
    with np.errstate(all="ignore"):
        return (narrow(geometry.windows(widen(x), 0).sum(axis=_inner(geometry)), x.dtype),)


def _argmax_pool(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    geometry = _geometry({**attrs, "blocked": False}, x.ndim)
    spatial = x.shape[2:]
    places = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    if attrs["column_major"]:
        plane = math.prod(spatial)
        first = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(spatial)) * plane
        places = first + np.arange(plane).reshape(spatial[::-1]).T
    where = geometry.windows(places, -1)
    values = geometry.windows(x, lowest(from_numpy(x.dtype)))
    shape = (*where.shape[: x.ndim], math.prod(where.shape[x.ndim :]))
    real, flat = where.reshape(shape), values.reshape(shape)
    # Padding loses against everything: a first pass says which taps hold the largest element, a second which is real.
    largest = flat.max(axis=-1, keepdims=True)
    hit = ((flat == largest) | ((flat != flat) & (largest != largest))) & (real >= 0)
    first = np.take_along_axis(real, hit.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return (np.where(hit.any(axis=-1), first, -1),)


def _counts(geometry: Geometry, data: Sequence[int], count_pads: bool) -> np.ndarray:
    """How many positions each window averages over: a product of one count per axis."""
    total = np.ones(())
    for axis, (size, extent) in enumerate(zip(data, geometry.extents(data))):
        before = geometry.before[axis]
        low, high = (-before, size + geometry.after[axis]) if count_pads else (0, size)
        starts = np.arange(dims.evaluate(extent, {}))[:, None] * geometry.strides[axis] - before
        taps = starts + np.arange(dims.evaluate(geometry.window[axis], {})) * geometry.dilations[axis]
        total = total[..., None] * ((taps >= low) & (taps < high)).sum(axis=1)
    return total


def _avg_pool(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    geometry = _geometry(attrs, x.ndim)
    counts = _counts(geometry, x.shape[2 : 2 + len(geometry.window)], attrs["count_pads"])
    sums = geometry.windows(widen(x), 0).sum(axis=_inner(geometry))
    with np.errstate(all="ignore"):
        return (narrow(sums / (counts[..., None] if attrs["blocked"] else counts), x.dtype),)


def _pool(
    window: Sequence[int], strides: Sequence[int] = (), pads: Sequence[int] = (), **more: Attr
) -> dict[str, Attr]:
    rank = len(window)
    attrs: dict[str, Attr] = {
        "window": tuple(window),
        "strides": tuple(strides) or (1,) * rank,
        "pads": tuple(pads) or (0,) * (2 * rank),
        "dilations": (1,) * rank,
    }
    return attrs | more


def _samples() -> list[Sample]:
    image = (("f32", (2, 3, 7, 9)),)
    return [
        Sample((("f32", (1, 1, 4, 4)),), _pool((2, 2), (2, 2))),
        Sample(image, _pool((3, 3), (2, 2), (1, 1, 1, 1))),
        Sample(image, _pool((3, 2), (1, 3), (0, 1, 2, 0))),
        Sample(image, _pool((3, 3), (2, 2), (1, 1, 1, 1), ceil=True)),
        Sample((("f32", (1, 2, 5, 6)),), _pool((2, 2), (3, 3), (1, 1, 1, 1), ceil=True)),
        Sample((("f32", (1, 2, 8, 8)),), _pool((2, 2), (2, 1), dilations=(2, 3))),
        Sample((("f32", (2, 3, 11)),), _pool((4,), (2,), (1, 2))),
        Sample((("f32", (1, 2, 4, 5, 6)),), _pool((2, 2, 3), (1, 2, 2), (1, 0, 0, 0, 1, 1))),
        Sample((("f32", (0, 3, 5, 5)),), _pool((2, 2))),
        Sample((("f32", (2, 3, 6, 7, 16)),), _pool((3, 3), (2, 2), (1, 1, 1, 1), blocked=True)),
        Sample((("f32", (1, 1, 5, 5, 16)),), _pool((2, 2), (2, 2), blocked=True, ceil=True)),
        Sample((("f64", (1, 1, 4, 4)),), _pool((2, 2))),
        Sample(image, _pool((8, 2))),
        Sample((("f32", (1, 2, 2, 3)),), _pool((3, 2), (3, 2), ceil=True)),
        Sample((("f32", (1, 2, 3, 4, 16)),), _pool((4, 2), blocked=True)),
        Sample(image, _pool((9, 2)), error="does not fit"),
        Sample(image, _pool((2,)), error="entries"),
        Sample(image, _pool((2, 2), (0, 1)), error="out of range"),
        Sample(image, _pool((2, 2), pads=(-1, 0, 0, 0)), error="out of range"),
        Sample((("f32", (2, 3)),), _pool(()), error="rank"),
        Sample((("f32", (2, 3, 6, 7, 8)),), _pool((3, 3), blocked=True), error="lanes"),
    ]


max_pool = OpDef(
    name="max_pool",
    doc="The largest element under each window; NaN if there is one. Windows slide over the axes from 2 on; padding "
    "is ignored, and a window on nothing but padding gives -inf (the minimum of an integer type). With `ceil` a last "
    "window may reach past the padded end, and windows that start behind the data do not count. `blocked`: one more "
    "axis of 16 comes last.",
    operands=("x",),
    infer=_infer_max_pool,
    reference=_max_pool,
    samples=lambda: [
        *_samples(),
        Sample((("i32", (1, 2, 5)),), _pool((3,), (1,), (1, 1))),
        Sample((("u8", (1, 2, 5)),), _pool((3,), (2,), (1, 1))),
        Sample((np.array([[[1, np.nan, 2, 3, -np.inf, -np.inf]]], np.float32),), _pool((2,), (1,), (1, 1))),
    ],
    attrs=_ATTRS,
    to_onnx=NOT_YET,
)

avg_pool = OpDef(
    name="avg_pool",
    doc="The mean of the elements under each window: the sum divided by their number, padding included (as 0) if "
    "`count_pads`; what a last window reaches beyond the padding never counts. NaN for a window on nothing. Else as "
    "max_pool.",
    operands=("x",),
    infer=_infer_avg_pool,
    reference=_avg_pool,
    samples=lambda: [
        *_samples(),
        *(
            Sample(sample.operands, {**sample.attrs, "count_pads": True})
            for sample in _samples()
            if sample.error is None and sample.attrs["pads"] != (0,) * 4
        ),
        Sample((("i32", (1, 2, 5)),), _pool((3,)), error="cannot be i32"),
    ],
    attrs=(*_ATTRS, AttrDef("count_pads", "bool", False)),
    to_onnx=NOT_YET,
    traits=frozenset({Trait.INEXACT}),
)

sum_pool = OpDef(
    name="sum_pool",
    doc="The sum of the elements under each window; padding counts as 0. Else as max_pool.",
    operands=("x",),
    infer=_infer_sum_pool,
    reference=_sum_pool,
    samples=lambda: [*_samples(), Sample((("i32", (1, 2, 5)),), _pool((3,)), error="cannot be i32")],
    attrs=_ATTRS,
    to_onnx=NOT_YET,
    traits=frozenset({Trait.INEXACT}),
)

argmax_pool = OpDef(
    name="argmax_pool",
    doc="Where in x, flattened, the element stands that max_pool gives (i64): the first of equals, and of NaNs; -1 for "
    "a window on nothing but padding. `column_major`: inside a plane the first spatial axis runs fastest.",
    operands=("x",),
    infer=_infer_argmax_pool,
    reference=_argmax_pool,
    samples=lambda: [
        *(
            Sample(sample.operands, {**{k: v for k, v in sample.attrs.items() if k != "blocked"}, "column_major": way})
            for sample in _samples()
            for way in (False, True)
            if sample.error is None and not sample.attrs.get("blocked")
        ),
        Sample((("u8", (2, 2, 5)),), _pool((3,), (2,), (1, 1))),
        Sample((np.array([[[1, np.nan, 2, np.nan, -np.inf, -np.inf]]], np.float32),), _pool((2,), (1,), (1, 1))),
        Sample((("f32", (2, 3)),), _pool(()), error="rank"),
    ],
    attrs=(*_ATTRS[:-1], AttrDef("column_major", "bool", False)),
    gradient=NO_GRADIENT("integer valued"),
    to_onnx=NOT_YET,
)

OPS = (max_pool, avg_pool, sum_pool, argmax_pool)
