"""Convolution, plain and with channels in blocks of 16.

What ONNX and every framework call convolution is a correlation: the window is not flipped.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dims
from relume.base.requirements import EQUAL
from relume.base.targets import BLOCK
from relume.graph.opdef import NOT_YET, AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow, widen
from relume.ops.inference import NUMBER, infer_tensors
from relume.ops.linalg import PACKED
from relume.ops.window import Geometry

_INEXACT = frozenset({Trait.INEXACT})
_GEOMETRY = (AttrDef("strides", "ints"), AttrDef("pads", "ints"), AttrDef("dilations", "ints"))


@infer_tensors
def _infer_conv(x: Tensor, w: Tensor, b: Tensor | None = None, *, attrs: Mapping[str, Attr]) -> Tensor:
    dtype = inference.want_same_dtype(x, w, *(() if b is None else (b,)))
    inference.want_kind("x", x, NUMBER)
    inference.want_min_rank("x", x, 3)
    inference.want_rank("w", w, x.rank)
    groups = inference.positive(attrs, "groups")
    inference.want_dim("the number of channels of x", x.dims[1], w.dims[1] * groups)
    outputs = w.dims[0]
    if isinstance(outputs, int) and outputs % groups:
        raise InferError("groups do not divide the output channels", f"a multiple of {groups}", outputs)
    whole = dims.floordiv(outputs, groups) * groups
    inference.require(EQUAL, outputs, whole, f"the output channels of {groups} groups")
    if b is not None:
        inference.want_rank("b", b, 1)
        inference.want_dim("the extent of b", b.dims[0], outputs)
    return Tensor(dtype, (x.dims[0], outputs, *Geometry.of(attrs, w.dims[2:]).extents(x.dims[2:])))


def _conv(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    geometry = Geometry.of(attrs, w.shape[2:])
    groups = attrs["groups"]
    spatial = len(geometry.window)
    windows = geometry.windows(widen(x), 0)  # [N, C, *OS, *K]
    summed = [1, *range(2 + spatial, 2 + 2 * spatial)]
    parts = []
    with np.errstate(all="ignore"):
        for group, weights in enumerate(np.split(widen(w), groups)):
            channels = windows[:, group * w.shape[1] : (group + 1) * w.shape[1]]
            part = np.tensordot(channels, weights, axes=(summed, range(1, 2 + spatial)))  # [N, *OS, O / groups]
            parts.append(np.moveaxis(part, -1, 1))
        y = np.concatenate(parts, axis=1)
        if b is not None:
            y = y + widen(b).reshape(-1, *(1,) * spatial)
        return (narrow(y, x.dtype),)


def _plain(
    strides: tuple[int, ...], pads: tuple[int, ...], dilations: tuple[int, ...] = (), groups: int = 1
) -> dict[str, Attr]:
    return {"strides": strides, "pads": pads, "dilations": dilations or (1,) * len(strides), "groups": groups}


conv = OpDef(
    name="conv",
    doc="y[n, o, p] = b[o] + sum over c, k of x[n, c, p * strides + k * dilations - pads] * w[o, c, k], for any "
    "number of spatial axes p, k; x is 0 outside; with groups, output group g sees the input channels of group g "
    "only. x [N, C, *S], w [O, C / groups, *K], b [O].",
    operands=("x", "w", "b?"),
    infer=_infer_conv,
    reference=_conv,
    samples=lambda: [
        Sample((("f32", (1, 1, 5, 5)), ("f32", (1, 1, 3, 3))), _plain((1, 1), (0, 0, 0, 0))),
        Sample((("f32", (2, 3, 9, 7)), ("f32", (5, 3, 3, 3)), ("f32", (5,))), _plain((2, 2), (1, 1, 1, 1))),
        Sample((("f32", (1, 4, 8, 8)), ("f32", (6, 4, 1, 1))), _plain((1, 1), (0, 0, 0, 0))),
        Sample((("f32", (1, 2, 9, 9)), ("f32", (3, 2, 3, 2))), _plain((1, 2), (2, 0, 1, 1), (2, 3))),
        Sample((("f32", (1, 4, 6, 6)), ("f32", (6, 2, 3, 3)), ("f32", (6,))), _plain((1, 1), (1, 1, 1, 1), groups=2)),
        Sample((("f32", (1, 5, 6, 6)), ("f32", (5, 1, 3, 3))), _plain((2, 1), (1, 1, 1, 1), groups=5)),
        Sample((("f32", (2, 3, 11)), ("f32", (4, 3, 5)), ("f32", (4,))), _plain((3,), (2, 1))),
        Sample((("f32", (1, 2, 4, 5, 6)), ("f32", (3, 2, 2, 3, 2))), _plain((1, 1, 2), (1, 0, 0, 0, 1, 1))),
        Sample((("f32", (1, 64, 14, 14)), ("f32", (40, 64, 3, 3)), ("f32", (40,))), _plain((1, 1), (1, 1, 1, 1))),
        Sample((("f32", (0, 2, 5, 5)), ("f32", (3, 2, 3, 3))), _plain((1, 1), (0, 0, 0, 0))),
        Sample((("f64", (1, 2, 5)), ("f64", (3, 2, 3))), _plain((1,), (0, 0))),
        Sample((("i32", (1, 4, 6, 20)), ("i32", (6, 2, 3, 3))), _plain((2, 1), (1, 1, 1, 1), groups=2)),
        Sample((("u8", (2, 2, 5)), ("u8", (3, 2, 3)), ("u8", (3,))), _plain((1,), (1, 0))),
        Sample((("f16", (1, 2, 5)), ("f16", (3, 2, 3))), _plain((1,), (1, 0)), tolerance=2e-3),
        Sample(
            (("f32", (1, 3, 5, 5)), ("f32", (4, 2, 3, 3))), _plain((1, 1), (0, 0, 0, 0)), error="number of channels"
        ),
        Sample(
            (("f32", (1, 4, 5, 5)), ("f32", (3, 2, 3, 3))), _plain((1, 1), (0,) * 4, groups=2), error="groups do not"
        ),
        Sample(
            (("f32", (1, 4, 5, 5)), ("f32", (3, 4, 3, 3))), _plain((1, 1), (0,) * 4, groups=0), error="groups is out"
        ),
        Sample((("f32", (1, 2, 2, 5)), ("f32", (3, 2, 3, 3))), _plain((1, 1), (0, 0, 0, 0))),
        Sample((("f32", (1, 2, 2, 5)), ("f32", (3, 2, 4, 3))), _plain((1, 1), (0, 0, 0, 0)), error="does not fit"),
        Sample((("f32", (1, 2, 5, 5)), ("f32", (3, 2, 3))), _plain((1, 1), (0, 0, 0, 0)), error="rank"),
        Sample((("f32", (1, 2, 5)), ("f32", (3, 2, 3)), ("f32", (2,))), _plain((1,), (0, 0)), error="extent of b"),
    ],
    attrs=(*_GEOMETRY, AttrDef("groups", "int", 1)),
    to_onnx=NOT_YET,
    traits=_INEXACT,
)


# --- blocked --------------------------------------------------------------------------------------------------------


def blocked_result(x: Tensor, w: Tensor, b: Tensor | None, attrs: Mapping[str, Attr], window: int) -> Tensor:
    """What both blocked convolutions check; `window` is the first of w's two window axes."""
    dtype = inference.want_same_dtype(x, w, *(() if b is None else (b,)))
    inference.want_kind("x", x, NUMBER)
    inference.want_dim("the lanes of w", w.dims[-1], BLOCK)
    if b is not None:
        inference.want_rank("b", b, 2)
        inference.want_dim("the blocks of b", b.dims[0], w.dims[0])
        inference.want_dim("the lanes of b", b.dims[1], BLOCK)
    extents = Geometry.of(attrs, w.dims[window : window + 2]).extents(x.dims[2:4])
    return Tensor(dtype, (x.dims[0], w.dims[0], *extents, BLOCK))


@infer_tensors
def _infer_conv_blocked(x: Tensor, w: Tensor, b: Tensor | None = None, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_rank("w", w, 5)
    channels = inference.positive(attrs, "channels")
    if x.rank == 4:
        inference.want_dim("the channels of x", x.dims[1], channels)
    else:
        inference.want_rank("x", x, 5)
        inference.want_dim("the lanes of x", x.dims[-1], BLOCK)
        inference.want_dim("the blocks of x", x.dims[1], dims.ceildiv(channels, BLOCK))
    inference.want_dim("the input channels of w", w.dims[1], channels)
    if out_channels := inference.not_negative_int(attrs, "out_channels"):
        inference.want_dim("the blocks of w", w.dims[0], dims.ceildiv(out_channels, BLOCK))
    return blocked_result(x, w, b, attrs, 2)


@infer_tensors
def _infer_depthwise_blocked(x: Tensor, w: Tensor, b: Tensor | None = None, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_rank("x", x, 5)
    inference.want_dim("the lanes of x", x.dims[-1], BLOCK)
    inference.want_rank("w", w, 4)
    inference.want_dim("the blocks of w", w.dims[0], x.dims[1])
    y = blocked_result(x, w, b, attrs, 1)
    return Tensor(y.dtype, (y.dims[0], inference.known(x.dims[1], w.dims[0]), *y.dims[2:]))


def flat(array: np.ndarray, axis: int) -> np.ndarray:
    """Puts the last axis, of 16, behind `axis`, of blocks, and makes them one: all lanes are channels."""
    lanes = np.moveaxis(array, -1, axis + 1)
    return lanes.reshape(*array.shape[:axis], array.shape[axis] * BLOCK, *array.shape[axis + 1 : -1])


def split(array: np.ndarray, axis: int) -> np.ndarray:
    """The inverse of `flat`."""
    blocks = array.shape[axis] // BLOCK
    return np.moveaxis(array.reshape(*array.shape[:axis], blocks, BLOCK, *array.shape[axis + 1 :]), axis + 1, -1)


def _conv_blocked(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    bias = () if b is None else (b.reshape(-1),)
    channels = flat(x, 1)[:, : attrs["channels"]] if x.ndim == 5 else x
    (y,) = _conv(channels, flat(w, 0), *bias, attrs={**attrs, "groups": 1}, regions=())
    return (split(y, 1),)


def _depthwise_blocked(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, attrs: Resolved, regions: object
) -> tuple[np.ndarray, ...]:
    bias = () if b is None else (b.reshape(-1),)
    channels = flat(x, 1)
    groups = max(1, channels.shape[1])
    (y,) = _conv(channels, flat(w, 0)[:, None], *bias, attrs={**attrs, "groups": groups}, regions=())
    return (split(y, 1),)


def _blocked(
    strides: tuple[int, int], pads: tuple[int, int, int, int], dilations: tuple[int, int] = (1, 1)
) -> dict[str, Attr]:
    return {"strides": strides, "pads": pads, "dilations": dilations}


conv_blocked = OpDef(
    name="conv_blocked",
    doc="conv on channels in blocks of 16. x [N, CB, H, W, 16] holds channel 16 * cb + l at lane l of block cb; w "
    "[OB, C, KH, KW, 16] and b [OB, 16] hold output channels likewise; the result is [N, OB, OH, OW, 16]. `channels` "
    "is C, the real number of input channels: lanes of x beyond it are never read. `out_channels` is that of the "
    "result, whose lanes beyond it hold anything; 0 if all lanes are channels. x may be plain, [N, C, H, W]: few "
    "channels are read as they lie.",
    operands=("x", "w", "b?"),
    infer=_infer_conv_blocked,
    reference=_conv_blocked,
    samples=lambda: [
        Sample(
            (("f32", (1, 1, 5, 5, 16)), ("f32", (1, 3, 3, 3, 16))), _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 3}
        ),
        Sample(
            (("f32", (2, 3, 9, 12)), ("f32", (2, 3, 3, 3, 16)), ("f32", (2, 16))),
            _blocked((2, 2), (1, 1, 1, 1)) | {"channels": 3},
        ),
        Sample((("f32", (1, 1, 1, 300)), ("f32", (1, 1, 1, 40, 16))), _blocked((1, 3), (0, 5, 0, 0)) | {"channels": 1}),
        Sample(
            (("f32", (1, 3, 5, 5)), ("f32", (1, 4, 3, 3, 16))),
            _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 4},
            error="channels of x",
        ),
        Sample(
            (("f32", (2, 2, 7, 9, 16)), ("f32", (3, 20, 3, 3, 16)), ("f32", (3, 16))),
            _blocked((2, 2), (1, 1, 1, 1)) | {"channels": 20},
        ),
        Sample(
            (("f32", (1, 2, 8, 6, 16)), ("f32", (2, 32, 1, 1, 16)), ("f32", (2, 16))),
            _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 32},
        ),
        Sample(
            (("f32", (1, 1, 9, 9, 16)), ("f32", (1, 16, 3, 2, 16))),
            _blocked((1, 2), (2, 0, 1, 1), (2, 3)) | {"channels": 16},
        ),
        Sample(
            (("f32", (0, 1, 5, 5, 16)), ("f32", (1, 3, 3, 3, 16))), _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 3}
        ),
        Sample(
            (("f32", (1, 2, 5, 5, 16)), ("f32", (1, 3, 3, 3, 16))),
            _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 3},
            error="blocks of x",
        ),
        Sample(
            (("f32", (1, 1, 5, 5, 16)), ("f32", (1, 4, 3, 3, 16))),
            _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 3},
            error="input channels of w",
        ),
        Sample(
            (("f32", (1, 1, 5, 5, 16)), ("f32", (2, 3, 3, 3, 16))),
            _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 3, "out_channels": 32},
        ),
        Sample(
            (("f32", (1, 1, 5, 5, 16)), ("f32", (2, 3, 3, 3, 16))),
            _blocked((1, 1), (0, 0, 0, 0)) | {"channels": 3, "out_channels": 16},
            error="blocks of w",
        ),
    ],
    attrs=(*_GEOMETRY, AttrDef("channels", "int"), AttrDef("out_channels", "int", 0)),
    to_onnx=PACKED,
    traits=_INEXACT,
)

depthwise_blocked = OpDef(
    name="depthwise_blocked",
    doc="conv with as many groups as channels and one output each, on channels in blocks of 16: "
    "x [N, CB, H, W, 16], w [CB, KH, KW, 16], b [CB, 16], result [N, CB, OH, OW, 16].",
    operands=("x", "w", "b?"),
    infer=_infer_depthwise_blocked,
    reference=_depthwise_blocked,
    samples=lambda: [
        Sample((("f32", (1, 1, 5, 5, 16)), ("f32", (1, 3, 3, 16))), _blocked((1, 1), (0, 0, 0, 0))),
        Sample((("f32", (2, 3, 7, 9, 16)), ("f32", (3, 3, 3, 16)), ("f32", (3, 16))), _blocked((2, 2), (1, 1, 1, 1))),
        Sample((("f32", (1, 2, 9, 12, 16)), ("f32", (2, 5, 5, 16))), _blocked((1, 2), (2, 1, 2, 3), (1, 2))),
        Sample((("f32", (0, 1, 5, 5, 16)), ("f32", (1, 3, 3, 16))), _blocked((1, 1), (0, 0, 0, 0))),
        Sample(
            (("f32", (1, 2, 5, 5, 16)), ("f32", (3, 3, 3, 16))), _blocked((1, 1), (0, 0, 0, 0)), error="blocks of w"
        ),
        Sample((("f32", (1, 2, 5, 5, 8)), ("f32", (2, 3, 3, 8))), _blocked((1, 1), (0, 0, 0, 0)), error="lanes"),
    ],
    attrs=_GEOMETRY,
    to_onnx=PACKED,
    traits=_INEXACT,
)

OPS = (conv, conv_blocked, depthwise_blocked)
