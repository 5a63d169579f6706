"""Convolution, and where its windows (and those of pooling) stand."""

from __future__ import annotations

from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import i32
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.translate.movement import padded
from relume.graph.types import Value


@dataclass(frozen=True)
class Windows:
    """Sizes, strides, dilations and padding of windows on the spatial axes of x."""

    size: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]
    """The padding is symbolic for SAME with strides on symbolic extents."""

    @property
    def is_static(self) -> bool:
        return all(isinstance(amount, int) for amount in (*self.before, *self.after))


def windows(call: Call, x: Value, size: tuple[Dim, ...]) -> Windows:
    """Reads strides, dilations, pads and auto_pad of Conv and of the pools.

    SAME gives ceil(extent / stride) windows: together they reach (that - 1) * stride + reach elements far, and what
    the data lacks of it is padding, half before and half after, an odd element at the end (UPPER) or front (LOWER).
    """
    rank = len(size)
    if x.tensor.rank != rank + 2:
        call.wrong(f"a window of rank {rank} needs data of rank {rank + 2}", f"[N,C{',..' * bool(rank)}]", x.type)
    strides = call.integers("strides", (1,) * rank)
    dilations = call.integers("dilations", (1,) * rank)
    pads = call.integers("pads", (0,) * 2 * rank)
    for name, values, count, least in (
        ("kernel_shape", size, rank, 1),
        ("strides", strides, rank, 1),
        ("dilations", dilations, rank, 1),
        ("pads", pads, 2 * rank, 0),
    ):
        if len(values) != count or any(isinstance(value, int) and value < least for value in values):
            call.wrong(f"{call.node.op}.{name} is wrong", f"{count} numbers of at least {least}", list(values))
    mode = call.attr("auto_pad", str)
    if mode == "NOTSET":
        return Windows(size, strides, dilations, pads[:rank], pads[rank:])
    if mode == "VALID":
        return Windows(size, strides, dilations, (0,) * rank, (0,) * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.wrong(f"{call.node.op}.auto_pad is wrong", "NOTSET, VALID, SAME_UPPER or SAME_LOWER", mode)
    before, after = [], []
    for extent, window, stride, dilation in zip(x.dims[2:], size, strides, dilations):
        reach = (window - 1) * dilation + 1
        lacking = reach - 1 if stride == 1 else (dims.ceildiv(extent, stride) - 1) * stride + reach - extent
        total = lacking if isinstance(lacking, int) and lacking >= 0 else dims.maximum(lacking, 0)
        small, large = dims.floordiv(total, 2), dims.floordiv(total + 1, 2)
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return Windows(size, strides, dilations, tuple(before), tuple(after))


def pads_or_padded(call: Call, x: Value, frame: Windows, fill: float) -> tuple[Value, tuple[int, ...]]:
    """The data and the pads to give to the op: symbolic padding is made by an op of its own."""
    if frame.is_static:
        return x, tuple(int(amount) for amount in (*frame.before, *frame.after))  # type: ignore[arg-type]
    grown = padded(call, x, (0, 0, *frame.before), (0, 0, *frame.after), fill)
    return grown, (0,) * 2 * len(frame.size)


def window_of(call: Call, w: Value) -> tuple[Dim, ...]:
    """The window that the weights have, checked against `kernel_shape` where both are known."""
    size = w.dims[2:]
    declared = call.attrs.get("kernel_shape", size)
    fits = len(declared) == len(size) and all(  # type: ignore[arg-type]
        got == dim or not isinstance(dim, int)
        for got, dim in zip(declared, size)  # type: ignore[call-overload]
    )
    if not fits:
        call.wrong(f"{call.node.op}.kernel_shape does not fit the weights", list(size), list(declared))  # type: ignore[call-overload]
    return size


@translates("Conv", versions=(1, 11, 22))
def conv(call: Call) -> Value:
    return _convolved(call, call.input(0), call.input(1), call.optional(2))


@translates("ConvInteger", versions=(10,))
def conv_integer(call: Call) -> Value:
    """i32 convolution of (x - zero point of x) by (w - zero point of w, one or one for each output channel)."""
    x, w = (call.cast(call.input(index), i32) for index in (0, 1))
    for index in (2, 3):
        zero = call.optional(index)
        if zero is None:
            continue
        offset = call.cast(zero, i32)
        if index == 2:
            x = call.apply("sub", x, offset)
        else:
            if offset.tensor.rank == 1 and offset.dims != (1,):
                offset = call.reshape(offset, (*offset.dims, *(1,) * (w.tensor.rank - 1)))
            w = call.apply("sub", w, offset)
    return _convolved(call, x, w, None)


def _convolved(call: Call, x: Value, w: Value, b: Value | None) -> Value:
    if w.tensor.rank < 3:
        call.wrong("the weights of Conv have too few axes", "[O,C/groups,*K]", w.type)
    size = window_of(call, w)
    if call.integer("group") < 1:
        call.wrong("Conv.group must be at least 1", "at least 1", call.integer("group"))
    frame = windows(call, x, size)
    data, pads = pads_or_padded(call, x, frame, 0.0)
    operands = (data, w) if b is None else (data, w, b)
    return call.apply(
        "conv", *operands, strides=frame.strides, pads=pads, dilations=frame.dilations, groups=call.integer("group")
    )
