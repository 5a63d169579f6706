"""Convolution with 3x3 windows of stride 1 in Winograd's form, on channels in blocks of 16.

F(m x m, 3x3): m by m pixels from m + 2 by m + 2 inputs x, y = A^T [(G w G^T) * (B^T x B)] A, where * is element by
element and summed over channels. Here m is 4, with the points 0, 1, -1, 2, -2 and infinity, or 2, without 2 and -2.
(Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from relume.base import dims
from relume.base.targets import BLOCK
from relume.graph.opdef import AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow, widen
from relume.ops.convolution import blocked_result, flat, split
from relume.ops.inference import FLOAT, infer_tensors
from relume.ops.linalg import PACKED

Matrix = tuple[tuple[float, ...], ...]

WINDOW = 3
"""Weights on a side."""

AT_ONCE = 1 << 14
"""Windows that are transformed at once: what is between the first step and the last stays in the cache."""

WEIGHTS: Mapping[int, Matrix] = MappingProxyType(
    {
        4: (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    }
)
"""G, by m."""
INPUTS: Mapping[int, Matrix] = MappingProxyType(
    {
        4: (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
    }
)
"""B^T, by m."""
OUTPUTS: Mapping[int, Matrix] = MappingProxyType(
    {
        4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
        2: ((1, 1, 1, 0), (0, 1, -1, 1)),
    }
)
"""A^T, by m."""


def side(attrs: Mapping[str, Attr]) -> int:
    """m + 2, by the attribute `tile`, which is m. Raises `InferError` where there is no transform for it."""
    tile = attrs["tile"]
    if tile not in WEIGHTS:
        raise InferError("there is no transform for such tiles", "4 or 2", tile)
    return int(tile) + WINDOW - 1  # type: ignore[arg-type]


# --- weights --------------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_weights(w: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_kind("w", w, FLOAT)
    inference.want_rank("w", w, 4)
    for axis in (2, 3):
        inference.want_dim("the window of w", w.dims[axis], WINDOW)
    return Tensor(w.dtype, (w.dims[0], side(attrs) ** 2, w.dims[1]))


def _combined(row: Sequence[float], parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the parts by the factors of `row`, one operation at a time, from the first to the last."""
    products = [np.float64(factor) * part for factor, part in zip(row, parts) if factor]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def _weights(w: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    matrix = WEIGHTS[attrs["tile"]]
    out = np.empty((w.shape[0], len(matrix) ** 2, w.shape[1]), w.dtype)
    step = max(1, AT_ONCE // max(1, w.shape[1]))
    for first in range(0, len(w), step):
        some = slice(first, first + step)
        at = np.ascontiguousarray(w[some].transpose(2, 3, 0, 1), np.float64)
        with np.errstate(all="ignore"):
            for i, down in enumerate(matrix):
                columns = [_combined(down, list(at[:, column])) for column in range(WINDOW)]
                for j, across in enumerate(matrix):
                    out[some, i * len(matrix) + j] = _combined(across, columns)
    return (out,)


winograd_weights = OpDef(
    name="winograd_weights",
    doc="u[o, (m + 2) * i + j, c] = (G w[o, c] G^T)[i, j], m = `tile` being 4 or 2: the weights of conv_winograd "
    "before they are packed. Products and sums are taken in f64 one after the other, along columns and then along "
    "rows, terms ascending and those of factor 0 left out, and rounded once: the same bits everywhere. "
    "w [O, C, 3, 3].",
    operands=("w",),
    infer=_infer_weights,
    reference=_weights,
    samples=lambda: [
        Sample((("f32", (5, 3, 3, 3)),), {"tile": 4}),
        Sample((("f32", (2, 7, 3, 3)),), {"tile": 2}),
        Sample((("f64", (1, 1, 3, 3)),), {"tile": 4}),
        Sample((("f32", (0, 2, 3, 3)),), {"tile": 2}),
        Sample((np.array([[[[np.inf, 0, 1], [0, 0, 0], [1, 0, np.nan]]]], np.float32),), {"tile": 4}),
        Sample((("f32", (5, 3, 3, 3)),), {"tile": 3}, error="no transform"),
        Sample((("f32", (5, 3, 3, 1)),), {"tile": 4}, error="window of w"),
        Sample((("f32", (5, 3, 3)),), {"tile": 4}, error="rank"),
        Sample((("i32", (5, 3, 3, 3)),), {"tile": 4}, error="w"),
    ],
    attrs=(AttrDef("tile", "int"),),
    to_onnx=PACKED,
)


# --- the convolution ------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_conv(x: Tensor, u: Tensor, b: Tensor | None = None, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_rank("x", x, 5)
    inference.want_rank("u", u, 4)
    inference.want_dim("the positions of u", u.dims[1], side(attrs) ** 2)
    channels = inference.positive(attrs, "channels")
    inference.want_dim("the lanes of x", x.dims[-1], BLOCK)
    inference.want_dim("the blocks of x", x.dims[1], dims.ceildiv(channels, BLOCK))
    inference.want_dim("the input channels of u", u.dims[2], channels)
    window = Tensor(u.dtype, (u.dims[0], channels, WINDOW, WINDOW, u.dims[-1]))
    return blocked_result(x, window, b, {**attrs, "strides": (1, 1), "dilations": (1, 1)}, 2)


def _conv(
    x: np.ndarray, u: np.ndarray, b: np.ndarray | None = None, *, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    tile, reach = attrs["tile"], side(attrs)
    top, left, bottom, right = attrs["pads"]
    height, width = x.shape[2:4]
    extents = (height + top + bottom - WINDOW + 1, width + left + right - WINDOW + 1)
    more = [max(1, -(-extent // tile)) * tile - extent for extent in extents]
    around = [(0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1])]
    padded = np.pad(widen(flat(x, 1)[:, : attrs["channels"]]), around)
    with np.errstate(all="ignore"):
        tiles = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), axis=(2, 3))[:, :, ::tile, ::tile]
        inputs = _around(INPUTS[tile], tiles)  # [N, C, TH, TW, m + 2, m + 2]
        weights = widen(flat(u, 0)).reshape(u.shape[0] * BLOCK, reach, reach, u.shape[2])
        n, channels, down, across = inputs.shape[:4]
        rows = inputs.transpose(4, 5, 0, 2, 3, 1).reshape(reach, reach, n * down * across, channels)
        sums = np.matmul(rows, weights.transpose(1, 2, 3, 0)).reshape(reach, reach, n, down, across, len(weights))
        pixels = _around(OUTPUTS[tile], sums.transpose(2, 5, 3, 4, 0, 1))  # [N, O, TH, TW, m, m]
        y = pixels.swapaxes(3, 4).reshape(n, len(weights), down * tile, across * tile)[:, :, : extents[0], : extents[1]]
        if b is not None:
            y = y + widen(b).reshape(-1, 1, 1)
        return (split(narrow(np.ascontiguousarray(y), x.dtype), 1),)


def _around(matrix: Matrix, tiles: np.ndarray) -> np.ndarray:
    """M t M^T for the matrix M and each of the tiles t."""
    m = np.array(matrix, np.float64)
    return m @ tiles @ m.T


def _attrs(tile: int, channels: int, *pads: int) -> dict[str, Attr]:
    return {"pads": pads, "channels": channels, "tile": tile}


conv_winograd = OpDef(
    name="conv_winograd",
    doc="conv_blocked with a 3x3 window, strides and dilations 1, computed in tiles of m by m pixels from transformed "
    "weights: m is `tile`, 4 or 2, and u [OB, (m + 2)^2, C, 16] is winograd_weights packed over output channels. "
    "x [N, CB, H, W, 16], b [OB, 16], result [N, OB, OH, OW, 16]. An infinity or NaN of x may reach every pixel of "
    "the tiles that see it.",
    operands=("x", "u", "b?"),
    infer=_infer_conv,
    reference=_conv,
    samples=lambda: [
        Sample((("f32", (1, 1, 6, 6, 16)), ("f32", (1, 36, 3, 16))), _attrs(4, 3, 0, 0, 0, 0)),
        Sample((("f32", (2, 2, 9, 7, 16)), ("f32", (3, 36, 20, 16)), ("f32", (3, 16))), _attrs(4, 20, 1, 1, 1, 1)),
        Sample((("f32", (1, 2, 14, 14, 16)), ("f32", (2, 16, 32, 16)), ("f32", (2, 16))), _attrs(2, 32, 1, 1, 1, 1)),
        Sample((("f32", (3, 1, 5, 3, 16)), ("f32", (1, 16, 16, 16))), _attrs(2, 16, 0, 2, 1, 0)),
        Sample((("f64", (1, 1, 4, 5, 16)), ("f64", (1, 36, 5, 16))), _attrs(4, 5, 1, 1, 1, 1)),
        Sample((("f32", (0, 1, 5, 5, 16)), ("f32", (1, 36, 3, 16))), _attrs(4, 3, 0, 0, 0, 0)),
        Sample((("f32", (1, 1, 2, 5, 16)), ("f32", (1, 36, 3, 16))), _attrs(4, 3, 0, 0, 0, 0)),
        Sample((("f32", (1, 1, 5, 5, 16)), ("f32", (1, 25, 3, 16))), _attrs(4, 3, 0, 0, 0, 0), error="positions of u"),
        Sample((("f32", (1, 2, 5, 5, 16)), ("f32", (1, 36, 3, 16))), _attrs(4, 3, 0, 0, 0, 0), error="blocks of x"),
        Sample((("f32", (1, 1, 5, 5, 16)), ("f32", (1, 36, 4, 16))), _attrs(4, 3, 0, 0, 0, 0), error="channels of u"),
    ],
    attrs=(AttrDef("pads", "ints"), AttrDef("channels", "int"), AttrDef("tile", "int")),
    to_onnx=PACKED,
    traits=frozenset({Trait.INEXACT}),
)

OPS = (winograd_weights, conv_winograd)
