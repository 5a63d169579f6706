"""The program under construction: which view each value has, and the instructions so far.

Every value gets a view. Where the value is computed, `result` makes a buffer for it, placed once and for all:

- in an output buffer, where the value leaves the function,
- in its part of the result of a concat, where its kernel writes any strides,
- inside a halo, where convolutions want a border around it and its kernel writes any strides,
- else in a buffer of its own, in C order.

Where the value is the same elements seen in another way, `bind` gives it a view of the buffer that exists.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relume.base import dims
from relume.base.content import Content
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.locations import Location
from relume.base.targets import BLOCK
from relume.graph.types import Constant, Function, Value
from relume.lower import views
from relume.lower.groups import Group
from relume.lower.joined import parts
from relume.program.types import (
    IN,
    INOUT,
    OUT,
    Buffer,
    Instr,
    KernelDef,
    Operand,
    Param,
    Port,
    Program,
    Space,
    View,
)

Pads = tuple[int, int, int, int]
"""Rows above, columns left, rows below, columns right."""

Lower = Callable[["Lowering", Group], None]
"""Emits the instructions of one group and gives each of its targets a view. Raises `NotSupported`."""

WRITES_ANY_STRIDES = frozenset(
    {"map", "conv_blocked", "conv_winograd", "depthwise_blocked", "concat", "pad", "pack", "unpack"}
)
"""The groups whose kernels can write into the inside of a halo."""

IN_PLACE = frozenset({"scatter_add", "scatter_update"})
"""The groups that update a state's own buffer, by contract."""

SEES_THROUGH = IN_PLACE | {"reshape", "transpose", "broadcast", "slice", "state_read", "state_write"}
"""The groups that make views: their targets have no buffer of their own."""


class NotSupported(Exception):
    """This node cannot be lowered, for this reason. The reasons of all nodes are reported together."""


FLOATS = ("f32", "f64")
"""The element types that are multiplied and summed up by kernels made for it."""

NUMBERS = (*FLOATS, "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
"""The element types that kernels compare and add."""


def want_dtype(value: Value, allowed: Sequence[str]) -> None:
    """Raises `NotSupported` where there is no kernel for the element type of `value`."""
    if value.dtype.name not in allowed:
        raise NotSupported(f"no kernel does this for {value.dtype}, only for {', '.join(allowed)}")


def want_block(value: Value) -> None:
    """Raises `NotSupported` where the last axis of a blocked value is not surely one block."""
    if value.dims[-1] != BLOCK:
        raise NotSupported(f"the blocks have {value.dims[-1]} lanes, and kernels take {BLOCK}")


class Lowering:
    """An open program."""

    def __init__(self, fn: Function, groups: Sequence[Group], kernels: Mapping[str, KernelDef]) -> None:
        self.fn, self.groups, self.kernels = fn, tuple(groups), kernels
        self.location: Location | None = None
        self._names: set[str] = set()
        self._buffers: list[Buffer] = []
        self._instrs: list[Instr] = []
        self._views: dict[Value, View] = {}
        self._constants: dict[Content, Buffer] = {}
        self._halos: dict[View, tuple[View, Pads]] = {}
        self._open_halos: list[tuple[View, Pads]] = []
        self._written_outputs: set[str] = set()
        self._writes: Counter[str] = Counter()
        self.row_numbers: dict[tuple[Value, Dim], View] = {}
        """Indices into that many rows, checked and counted from the front."""
        self.inputs = self._ports(Space.INPUT, fn.inputs, [value.name or "input" for value in fn.inputs])
        self.states = self._ports(Space.STATE, fn.states, [value.name or "state" for value in fn.states])
        names = fn.output_names or [value.name or "output" for value in fn.outputs]
        self.outputs = self._ports(Space.OUTPUT, fn.outputs, names)
        self._computed = {
            value: group.op for group in groups if group.op not in SEES_THROUGH for value in group.targets
        }
        self._own_output = self._place_outputs(groups)
        self._widest = _widest_pads(groups)
        self._parts = parts(groups, self._may_be_part)
        self._early: dict[Value, View] = {}
        """Results of concat that a part was computed into before their turn."""
        for value, port in zip((*fn.inputs, *fn.states), (*self.inputs, *self.states)):
            self._views[value] = View.whole(port.buffer, value.dims)

    # -- buffers --

    def _name(self, hint: str) -> str:
        """A fresh buffer name made from what people called the value."""
        base = re.sub(r"[^A-Za-z0-9_.$-]+", "_", hint).strip("_") or "b"
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}.{count}"
        self._names.add(name)
        return name

    def _buffer(self, hint: str, space: Space, dtype: DType, elements: Dim, index: int = 0) -> Buffer:
        buffer = Buffer(self._name(hint), space, dtype, elements, index)
        self._buffers.append(buffer)
        return buffer

    def _ports(self, space: Space, values: Sequence[Value], names: Sequence[str]) -> tuple[Port, ...]:
        return tuple(
            Port(name, value.dtype, value.dims, self._buffer(name, space, value.dtype, value.tensor.elements, index))
            for index, (value, name) in enumerate(zip(values, names))
        )

    def temporary(self, hint: str, dtype: DType, shape: Sequence[Dim]) -> View:
        """A new arena buffer in C order."""
        return View.whole(self._buffer(hint, Space.ARENA, dtype, dims.product(shape)), shape)

    def _constant(self, constant: Constant) -> View:
        buffer = self._constants.get(constant.content)
        if buffer is None:
            name = self._name(constant.name or "constant")
            index = len(self._constants)
            data = constant.data
            buffer = Buffer(name, Space.CONSTANT, constant.dtype, constant.tensor.elements, index, data)
            self._constants[constant.content] = buffer
            self._buffers.append(buffer)
        return View.whole(buffer, constant.dims)

    # -- where values live --

    def _place_outputs(self, groups: Sequence[Group]) -> dict[Value, Buffer]:
        """The values that are computed straight into an output buffer: each at most once, seen through reshapes."""
        sources = {group.targets[0]: group.operands[0] for group in groups if group.op == "reshape"}
        out: dict[Value, Buffer] = {}
        for value, port in zip(self.fn.outputs, self.outputs):
            while value in sources and value not in out:
                value = sources[value]
            if value in self._computed and value not in out:
                out[value] = port.buffer
        return out

    def _may_be_part(self, value: Value) -> bool:
        """Whether a value can be computed into another's memory: no output, nor in need of a border of its own."""
        elsewhere = value in self._own_output or value in self._widest
        return not elsewhere and self._computed.get(value) in WRITES_ANY_STRIDES

    def view(self, value: Value) -> View:
        """Where a value's elements are."""
        if isinstance(value, Constant):
            return self._constant(value)
        return self._views[value]

    def is_known(self, value: Value) -> bool:
        """Whether a value's elements are somewhere by now."""
        return isinstance(value, Constant) or value in self._views

    def result(self, value: Value) -> View:
        """The view to compute a value into. To be called once per value."""
        view = self._early.pop(value, None) or self._placed(value)
        self._views[value] = view
        if view in self._halos:  # Filled when all of it is there: a concat's at its own turn, not at its first part's.
            self._open_halos.append(self._halos[view])
        return view

    def _placed(self, value: Value) -> View:
        if value in self._own_output:
            return View.whole(self._own_output[value], value.dims)
        if value in self._parts:
            whole, axis, start = self._parts[value]
            if whole not in self._early:
                self._early[whole] = self._placed(whole)
            return views.window(self._early[whole], axis, start, value.dims[axis])
        pads = self._widest.get(value)
        if pads is None or self._computed[value] not in WRITES_ANY_STRIDES:
            return self.temporary(value.name, value.dtype, value.dims)
        return self._with_halo(value.name, value.dtype, value.dims, pads)

    def bind(self, value: Value, view: View) -> None:
        """Says that a value is what is seen by `view`."""
        self._views[value] = view

    def bound(self) -> list[tuple[Value, View]]:
        """All values that have a view so far."""
        return list(self._views.items())

    # -- halos --

    def _with_halo(self, hint: str, dtype: DType, shape: Sequence[Dim], pads: Pads) -> View:
        """A new buffer with a border around axes 2 and 3; gives the inside."""
        full = self.temporary(hint, dtype, _grown(shape, pads))
        top, left, _, _ = pads
        offset = top * full.strides[2] + left * full.strides[3]
        inside = full.seen(shape, full.strides, offset)
        self._halos[inside] = full, pads
        return inside

    def close_halos(self) -> None:
        """Fills the borders around what has just been computed."""
        for full, pads in self._open_halos:
            self._fill_halo(full, pads)
        self._open_halos.clear()

    def _fill_halo(self, full: View, pads: Pads) -> None:
        self.emit("halo", [Operand(INOUT, full)], pads=pads, value=0.0, blocked=len(full.dims) == 5)

    def padded(self, value: Value, pads: Pads) -> View:
        """The value with `pads` zeros around axes 2 and 3, which may be part of a wider halo."""
        view = self.view(value)
        if pads == (0, 0, 0, 0):
            return view
        found = self._halos.get(view)
        if found is None or any(have < want for have, want in zip(found[1], pads)):
            inside = self._with_halo(value.name, value.dtype, value.dims, self._widest.get(value, pads))
            self.copy(view, inside)
            found = self._halos[view] = self._halos[inside]
            self._fill_halo(*found)
        full, (top, left, _, _) = found
        offset = (top - pads[0]) * full.strides[2] + (left - pads[1]) * full.strides[3]
        return full.seen(_grown(value.dims, pads), full.strides, offset)

    # -- instructions --

    def emit(self, kernel: str, operands: Sequence[Operand], scalars: Sequence[Dim] = (), **params: Any) -> None:
        """Appends one instruction; each of `params` is a `Param`."""
        number = len(self._instrs)
        definition = self.kernels[kernel]
        instr = Instr(number, definition, tuple(operands), params, self.location, tuple(scalars))
        self._instrs.append(instr)
        self._writes.update(buffer.name for buffer in instr.writes if buffer.space is Space.STATE)

    def writes(self, buffer: Buffer) -> int:
        """How many instructions have written a state's buffer so far: the version that it holds."""
        return self._writes[buffer.name]

    def run(self, kernel: str, inputs: Sequence[View], outputs: Sequence[View], **params: Any) -> None:
        """Appends one instruction that reads `inputs` and writes `outputs`."""
        self.emit(
            kernel, [*(Operand(IN, view) for view in inputs), *(Operand(OUT, view) for view in outputs)], **params
        )

    def copy(self, source: View, target: View) -> None:
        """Copies a view into one of the same extents."""
        self.run("map", [views.broadcast(source, target.dims)], [target], body=(), outs=(0,))

    def fill(self, target: View, value: float) -> None:
        """Sets every element to `value`, taken to the element type."""
        step = constant_step(target.buffer.dtype.numpy.type(value), target.buffer.dtype)
        self.run("map", [], [target], body=(step,), outs=(0,))

    def in_order(self, value: Value, axes: int | None = None) -> View:
        """The value with its last `axes` axes (all, if not given) in C order without gaps: copied where needed."""
        return self.ordered(self.view(value), value.name, axes)

    def ordered(self, view: View, hint: str, axes: int | None = None) -> View:
        """`view`, or a copy of it, with its last `axes` axes in C order without gaps."""
        if not views.dense(view, axes):
            copied = self.temporary(hint, view.buffer.dtype, view.dims)
            self.copy(view, copied)
            return copied
        if axes == 1 and view.dims[-1] == 1:  # Any stride is right along one element, and kernels want to see 1.
            return view.seen(view.dims, (*view.strides[:-1], 1), view.offset)
        return view

    # -- the end --

    def write_output(self, value: Value) -> None:
        """Sees to it that a value is in every output that it is, now and only once."""
        for other, port in zip(self.fn.outputs, self.outputs):
            if other is value and port.name not in self._written_outputs:
                self._written_outputs.add(port.name)
                target = View.whole(port.buffer, value.dims)
                if self.view(value) != target:
                    self.copy(self.view(value), target)

    def finish(self) -> Program:
        """The program. All outputs and states have been written."""
        used = {buffer.name for instr in self._instrs for buffer in (*instr.reads, *instr.writes)}
        buffers = tuple(buffer for buffer in self._buffers if buffer.name in used or buffer.space is not Space.ARENA)
        return Program(self.fn.name, self.inputs, self.outputs, self.states, buffers, tuple(self._instrs))


def constant_step(value: np.generic, dtype: DType) -> tuple[Param, ...]:
    """The step of a body that yields one known element."""
    plain = value.item() if dtype.name != "bf16" else float(value)
    if isinstance(plain, float) and plain != plain:
        plain = math.nan  # One object: NaN equals itself only by identity.
    return ("constant", (), (("value", plain),), dtype.name)


def _grown(shape: Sequence[Dim], pads: Pads) -> tuple[Dim, ...]:
    top, left, bottom, right = pads
    height, width = shape[2] + top + bottom, shape[3] + left + right
    return (*shape[:2], height, width, *shape[4:])


def conv_pads(group: Group) -> Pads | None:
    """The border that a group's kernel wants around its first operand; None where it wants none."""
    if group.op not in ("conv_blocked", "conv_winograd", "depthwise_blocked") or group.head is None:
        return None
    top, left, bottom, right = group.head.attrs["pads"]  # type: ignore[misc]
    if group.op == "conv_winograd":
        # Tiles are read whole. Where it is not known how much the last ones lack, it is taken for the most.
        tile: int = group.head.attrs["tile"]  # type: ignore[assignment]
        more = [-extent % tile if isinstance(extent, int) else tile - 1 for extent in group.targets[0].dims[2:4]]
        bottom, right = bottom + more[0], right + more[1]
    pads: Pads = top, left, bottom, right
    return pads if any(pads) else None


def _widest_pads(groups: Sequence[Group]) -> dict[Value, Pads]:
    """For each value, the largest border over all that want one."""
    widest: dict[Value, Pads] = {}
    for group in groups:
        pads = conv_pads(group)
        if pads is not None:
            value = group.operands[0]
            before = widest.get(value, (0, 0, 0, 0))
            widest[value] = tuple(map(max, before, pads))  # type: ignore[assignment]
    return widest
