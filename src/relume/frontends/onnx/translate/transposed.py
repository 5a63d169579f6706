"""Transposed convolution, made of a convolution: one output channel for each phase, or over data spread with zeros."""

from __future__ import annotations

from collections.abc import Sequence

from relume.base import dims
from relume.base.dims import Dim, not_negative
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.translate.convolution import window_of
from relume.frontends.onnx.translate.movement import cut, padded
from relume.graph.types import Value


@translates("ConvTranspose", versions=(1, 11, 22))
def conv_transpose(call: Call) -> Value:
    """Each input element adds the whole window, times itself, to the output: the gradient of Conv.

    Outputs whose places leave the same rest by the stride see the same part of the window, so where the strides divide
    the window they become channels of one convolution (Shi et al. 2016, sub-pixel convolution); a window filled up with
    zeros would do too, were it not for zero times NaN. Else it is Conv with stride 1 of the input with `stride - 1`
    zeros between its elements and `reach - 1 - pad` around it. Either way the windows are mirrored, and their input
    and output channels exchanged.
    """
    x, w, b = call.input(0), call.input(1), call.optional(2)
    size = window_of(call, w)
    rank, groups = x.tensor.rank - 2, call.integer("group")
    if w.tensor.rank != x.tensor.rank or rank < 1:
        call.wrong("the weights of ConvTranspose do not fit its data", x.type, w.type)
    if groups < 1:
        call.wrong("ConvTranspose.group must be at least 1", "at least 1", groups)
    strides, dilations = call.integers("strides", (1,) * rank), call.integers("dilations", (1,) * rank)
    extra = call.integers("output_padding", (0,) * rank)
    for name, values in (("strides", strides), ("dilations", dilations), ("output_padding", extra)):
        if len(values) != rank or any(value < (name != "output_padding") for value in values):
            call.wrong(f"ConvTranspose.{name} is wrong", f"{rank} numbers", list(values))
    reach: list[Dim] = [(window - 1) * dilation + 1 for window, dilation in zip(size, dilations)]
    before, after = _pads(call, x, reach, strides, extra)
    if set(strides) != {1} and set(dilations) == {1} and not any(extra) and all(map(not_negative, (*before, *after))):
        taps = [window // stride for window, stride in zip(size, strides) if isinstance(window, int)]
        if list(size) == [tap * stride for tap, stride in zip(taps, strides)]:
            return _by_phases(call, x, w, b, taps, strides, before, after, groups)
    spread = _spread(call, x, strides)
    front = [r - 1 - pad for r, pad in zip(reach, before)]
    back = [r - 1 - pad + e for r, pad, e in zip(reach, after, extra)]
    data = padded(call, spread, [0, 0, *front], [0, 0, *back], 0.0)
    weights = _mirrored(call, w, groups)
    operands = (data, weights) if b is None else (data, weights, b)
    return call.apply("conv", *operands, strides=(1,) * rank, pads=(0,) * 2 * rank, dilations=dilations, groups=groups)


def _by_phases(
    call: Call,
    x: Value,
    w: Value,
    b: Value | None,
    taps: Sequence[int],
    strides: tuple[int, ...],
    before: Sequence[Dim],
    after: Sequence[Dim],
    groups: int,
) -> Value:
    """y[o, a * s + r] = sum over c, t of x[c, a - t] * w[c, o, t * s + r]: phase r is an output channel of its own."""
    rank, (inputs, outputs) = len(taps), w.dims[:2]
    apart: list[Dim] = [dim for tap, stride in zip(taps, strides) for dim in (tap, stride)]
    split = call.reshape(w, (inputs, outputs, *apart))
    # [C, O / groups, (T, S)..] with the phases S behind the output channels: [C, O / groups * S.., T..].
    turned = call.transpose(split, (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2)))
    phases = dims.product(strides)
    weights = _mirrored(call, call.reshape(turned, (inputs, outputs * phases, *taps)), groups)
    operands = [x, weights]
    if b is not None:
        each = call.apply("broadcast", call.reshape(b, (*b.dims, 1)), dims=(*b.dims, phases))
        operands.append(call.reshape(each, (b.dims[0] * phases,)))
    around = tuple(tap - 1 for tap in taps)
    ones = (1,) * rank
    y = call.apply("conv", *operands, strides=ones, pads=(*around, *around), dilations=ones, groups=groups)
    n, _, *extents = y.dims
    channels = outputs * groups
    y = call.reshape(y, (n, channels, *strides, *extents))
    between = [place for axis in range(rank) for place in (2 + rank + axis, 2 + axis)]
    y = call.transpose(y, (0, 1, *between))
    y = call.reshape(y, (n, channels, *(extent * stride for extent, stride in zip(extents, strides))))
    margins = zip(y.dims[2:], before, after)
    return cut(call, y, {axis: (front, dim - back, 1) for axis, (dim, front, back) in enumerate(margins, start=2)})


def _pads(
    call: Call, x: Value, reach: list[Dim], strides: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[list[Dim], list[Dim]]:
    """What is cut from the full result before and after, from `pads`, or from the output extents that are wanted."""
    rank = len(reach)
    mode = call.attr("auto_pad", str)
    if not call.has("output_shape") and mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = call.integers("pads", (0,) * 2 * rank) if mode == "NOTSET" else (0,) * 2 * rank
        if len(pads) != 2 * rank:
            call.wrong("ConvTranspose.pads is wrong", f"{2 * rank} numbers", list(pads))
        return [*pads[:rank]], [*pads[rank:]]
    extents = x.dims[2:]
    wanted: list[Dim] = [extent * stride for extent, stride in zip(extents, strides)]
    if call.has("output_shape"):
        wanted[:] = call.integers("output_shape", ())[-rank:]
    before: list[Dim] = []
    after: list[Dim] = []
    for extent, out, r, stride, e in zip(extents, wanted, reach, strides, extra):
        total = (extent - 1) * stride + e + r - out
        # The odd element goes to the end for SAME_UPPER, else to the front. An output that is larger than what there is
        # gets nothing in front, and the rest at the end.
        lost = dims.maximum(total, 0)
        front = dims.floordiv(lost if mode == "SAME_UPPER" else lost + 1, 2)
        before.append(front)
        after.append(total - front)
    return before, after


def _spread(call: Call, x: Value, strides: tuple[int, ...]) -> Value:
    """`stride - 1` zeros behind every element but the last of each spatial axis."""
    if all(stride == 1 for stride in strides):
        return x
    rank = len(strides)
    apart = [dim for extent in x.dims[2:] for dim in (extent, 1)]
    zeros = [amount for stride in strides for amount in (0, stride - 1)]
    y = padded(call, call.reshape(x, (*x.dims[:2], *apart)), [0] * (2 + 2 * rank), [0, 0, *zeros], 0.0)
    y = call.reshape(y, (*x.dims[:2], *(extent * stride for extent, stride in zip(x.dims[2:], strides))))
    used: dict[int, tuple[Dim, Dim, int]] = {
        axis + 2: (0, (x.dims[axis + 2] - 1) * stride + 1, 1) for axis, stride in enumerate(strides)
    }
    return cut(call, y, used)


def _mirrored(call: Call, w: Value, groups: int) -> Value:
    """[C, O / groups, *K] as [O, C / groups, *K], mirrored along every axis of K."""
    inputs, outputs, *size = w.dims
    rank = len(size)
    split = call.reshape(w, (groups, dims.floordiv(inputs, groups), outputs, *size))
    swapped = call.transpose(split, (0, 2, 1, *range(3, 3 + rank)))
    whole = call.reshape(swapped, (outputs * groups, dims.floordiv(inputs, groups), *size))
    return cut(call, whole, {axis + 2: (extent - 1, -1, -1) for axis, extent in enumerate(size) if extent != 1})
