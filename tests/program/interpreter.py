"""Runs programs with NumPy: the oracle for lowering and memory planning, without LLVM.

All arena buffers live in one array of bytes, at the offsets that `base.intervals` plans; everything starts as garbage,
so that reading what was never written shows. A kernel runs in the worst order that it is allowed: a result is destroyed
before anything is read, unless the program says that it sits on an operand in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dims, dtypes, intervals
from relume.ops import OPS
from relume.program.plan import lifetimes, sizes
from relume.program.types import IN, Instr, Program, Space, View

GARBAGE = 0xFF  # A NaN as a float, -1 as an integer.


def run(
    program: Program, inputs: Sequence[np.ndarray], states: Sequence[np.ndarray] = ()
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Outputs and next states."""
    return Machine(program, inputs, states).run()


class Machine:
    def __init__(self, program: Program, inputs: Sequence[np.ndarray], states: Sequence[np.ndarray] = ()) -> None:
        self.program = program
        self.binding: dict[str, int] = {}
        for port, array in zip(program.inputs, inputs):
            for dim, extent in zip(port.dims, array.shape):
                name = dims.symbol_name(dim)
                if name is not None:
                    self.binding[name] = extent
        self.memory: dict[str, np.ndarray] = {}
        for port, array in (*zip(program.inputs, inputs), *zip(program.states, states)):
            assert array.shape == self.extents(port.dims)
            self.memory[port.buffer.name] = np.array(array).reshape(-1)
        spans, bytes_ = lifetimes(program), sizes(program)
        offsets, total = intervals.plan(
            [self.value(bytes_[name]) for name in spans], [a for a, _ in spans.values()], [b for _, b in spans.values()]
        )
        self.arena = np.full(total, GARBAGE, np.uint8)
        at = dict(zip(spans, offsets))
        for buffer in program.buffers:
            size = self.value(buffer.bytes)
            if buffer.space is Space.CONSTANT:
                assert buffer.data is not None
                self.memory[buffer.name] = np.array(buffer.data).reshape(-1)
            elif buffer.space is Space.ARENA:
                start = at[program.allocations.get(buffer.name, buffer.name)]
                self.memory[buffer.name] = self.arena[start : start + size].view(buffer.dtype.numpy)
            elif buffer.space is Space.OUTPUT:
                self.memory[buffer.name] = np.full(size, GARBAGE, np.uint8).view(buffer.dtype.numpy)
        self.in_place = {(note.instr, note.result) for note in program.reused}

    def value(self, dim: dims.Dim) -> int:
        return dims.evaluate(dim, self.binding)

    def extents(self, shape: Sequence[dims.Dim]) -> tuple[int, ...]:
        return tuple(map(self.value, shape))

    def array(self, view: View) -> np.ndarray:
        flat = self.memory[view.buffer.name]
        shape = self.extents(view.dims)
        if 0 in shape:
            return np.zeros(shape, flat.dtype)
        offset = self.value(view.offset)
        assert 0 <= offset < flat.size
        strides = [stride * flat.itemsize for stride in self.extents(view.strides)]
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, strides)

    def run(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        for instr in self.program.instrs:
            self.step(instr)
        ports = (self.program.outputs, self.program.states)
        outputs, states = (
            [self.memory[port.buffer.name].reshape(self.extents(port.dims)).copy() for port in group] for group in ports
        )
        return outputs, states

    def step(self, instr: Instr) -> None:
        arrays = [self.array(operand.view) for operand in instr.operands]
        for index, (operand, array) in enumerate(zip(instr.operands, arrays)):
            if operand.access == "out" and (instr.id, index) not in self.in_place:
                array[...] = 77
        if instr.kernel.name == "halo":
            _halo(arrays[0], instr.params)
            return
        inputs = [array.copy() for operand, array in zip(instr.operands, arrays) if operand.access == IN]
        outputs = [array for operand, array in zip(instr.operands, arrays) if operand.access != IN]
        scalars = [self.value(scalar) for scalar in instr.scalars]
        results = KERNELS[instr.kernel.name](inputs, instr.params, outputs, scalars)
        assert len(results) == len(outputs)
        for output, result in zip(outputs, results):
            assert output.shape == result.shape, f"{instr.kernel}: {output.shape} {result.shape}"
            assert output.dtype == result.dtype, f"{instr.kernel}: {output.dtype} {result.dtype}"
            output[...] = result


def _reference(op: str, arrays: Sequence[np.ndarray], **attrs: object) -> np.ndarray:
    with np.errstate(all="ignore"):
        return OPS[op].reference(*arrays, attrs=attrs, regions=())[0]


def _body(values: list[np.ndarray], params: Mapping[str, object], shape: tuple[int, ...]) -> list[np.ndarray]:
    for op, args, attrs, dtype in params["body"]:
        wanted = dtypes.BY_NAME[dtype].numpy
        if op == "constant":
            values.append(np.array(dict(attrs)["value"]).astype(wanted))
        else:
            values.append(_reference(op, [values[number] for number in args], **dict(attrs)))
            assert values[-1].dtype == wanted, op
    return [np.broadcast_to(values[number], shape) for number in params["outs"]]


def _map(inputs, params, outputs, scalars):
    assert all(array.shape == outputs[0].shape for array in (*inputs, *outputs))
    return _body(inputs, params, outputs[0].shape)


def _matmul_packed(inputs, params, outputs, scalars):
    a, panels, *extras = inputs
    assert a.ndim == outputs[0].ndim
    return _body([_reference("matmul_packed", [a, panels], n=outputs[0].shape[-1]), *extras], params, outputs[0].shape)


def _dot(inputs, params, outputs, scalars):
    a, b, *extras = inputs
    return _body([_reference("matmul", [a, b]), *extras], params, outputs[0].shape)


def _conv(op):
    def kernel(inputs, params, outputs, scalars):
        x, weights, *extras = inputs
        attrs = {name: value for name, value in params.items() if name not in ("body", "outs")}
        if op != "conv":
            attrs["pads"] = (0, 0, 0, 0)  # The view has the border.
        first = _reference(op, [x, weights], **attrs)
        spatial = tuple(slice(0, extent) for extent in outputs[0].shape)
        return _body([first[spatial], *extras], params, outputs[0].shape)

    return kernel


def _window(inputs, params, outputs, scalars):
    (x,) = inputs
    op = OPS[f"{params['kind']}_pool"]
    attrs = {attr.name: params[attr.name] for attr in op.attrs if attr.name != "ceil"}
    # Whether the last window was cut off shows in the extents.
    for ceil in (False, True):
        found = _reference(op.name, [x], ceil=ceil, **attrs)
        if found.shape == outputs[0].shape:
            return [found]
    raise AssertionError("no such window")


def _reduce(inputs, params, outputs, scalars):
    (x,) = inputs
    axes = tuple(range(params["kept"], x.ndim))
    return [_reference(f"reduce_{params['kind']}", [x], axes=axes, keep=False)]


def _rows(inputs, params, outputs, scalars):
    full = (*inputs[0].shape[:-1], *scalars)
    assert all(array.shape in (full, (*full[:-1], 1)) for array in inputs)
    values = list(inputs)
    for op, args, attrs, dtype in params["body"]:
        if op == "constant":
            values.append(np.array(dict(attrs)["value"]).astype(dtypes.BY_NAME[dtype].numpy))
        elif op.startswith("reduce_"):
            row = np.broadcast_to(values[args[0]], full)
            values.append(_reference(op, [row], axes=(len(full) - 1,), keep=True))
        else:
            values.append(_reference(op, [values[number] for number in args], **dict(attrs)))
    return [
        np.broadcast_to(values[number], full if output.ndim == len(full) else (*full[:-1], 1)).reshape(output.shape)
        for number, output in zip(params["outs"], outputs)
    ]


def _strips(inputs, params, outputs, scalars):
    places = [*inputs, *outputs]
    batch = places[0].shape[: params["batch"]]
    rows, *widths = scalars
    between = [
        np.full((*batch, rows, width), np.nan, dtypes.BY_NAME[name].numpy)
        for name, width in zip(params["between"], widths)
    ]

    def at(number):
        return places[number] if number >= 0 else between[-1 - number]

    for kernel, reads, writes, own, inner in params["parts"]:
        made = KERNELS[kernel](list(map(at, reads)), dict(inner), list(map(at, writes)), [scalars[n] for n in own])
        for number, array in zip(writes, made, strict=True):
            at(number)[...] = array
    return outputs


def _argmax(inputs, params, outputs, scalars):
    (x,) = inputs
    assert params["kept"] == x.ndim - 1
    return [_reference("argmax", [x], axis=params["kept"], keep=False)]


def _gather(inputs, params, outputs, scalars):
    x, indices = inputs
    assert indices.ndim == 1
    return [_reference("gather", [x, indices], axis=1)]


def _gather_nd(inputs, params, outputs, scalars):
    return [_reference("gather_nd", inputs, batch=params["batch"])]


def _scatter_nd(inputs, params, outputs, scalars):
    return [_reference("scatter_nd", [outputs[0], *inputs], **params)]


def _cumulative(inputs, params, outputs, scalars):
    attrs = {name: params[name] for name in ("kind", "exclusive")}
    return [_reference("cumulative", inputs, axis=params["kept"], reverse=False, **attrs)]


def _top_k(inputs, params, outputs, scalars):
    attrs = {"axis": inputs[0].ndim - 1, "k": outputs[0].shape[-1], **params}
    return list(OPS["top_k"].reference(*inputs, attrs=attrs, regions=()))


def _iota(inputs, params, outputs, scalars):
    return [_reference("iota", [], dims=outputs[0].shape, axis=0, dtype=dtypes.from_numpy(outputs[0].dtype))]


def _scatter(op):
    def kernel(inputs, params, outputs, scalars):
        indices, updates = inputs
        assert indices.ndim == 1 and not (indices < 0).any()
        return [_reference(op, [outputs[0], indices, updates])]

    return kernel


def _row_numbers(inputs, params, outputs, scalars):
    (indices,) = inputs
    assert indices.ndim == 1
    (extent,) = scalars
    if ((indices < -extent) | (indices >= extent)).any():
        raise IndexError("an index is out of range")
    return [np.where(indices < 0, indices + extent, indices).astype(np.int64)]


def _extents(inputs, params, outputs, scalars):
    return [np.array(scalars, np.int64)]


def _halo(x: np.ndarray, params: Mapping[str, object]) -> None:
    top, left, bottom, right = params["pads"]
    inside = np.zeros(x.shape, bool)
    inside[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right] = True
    x[~inside] = params["value"]


KERNELS = {
    "map": _map,
    "matmul_packed": _matmul_packed,
    "dot": _dot,
    "conv_plain": _conv("conv"),
    "conv_blocked": _conv("conv_blocked"),
    "conv_winograd": _conv("conv_winograd"),
    "depthwise_blocked": _conv("depthwise_blocked"),
    "window": _window,
    "reduce": _reduce,
    "rows": _rows,
    "strips": _strips,
    "argmax": _argmax,
    "gather": _gather,
    "row_numbers": _row_numbers,
    "gather_nd": _gather_nd,
    "scatter_nd": _scatter_nd,
    "cumulative": _cumulative,
    "top_k": _top_k,
    "iota": _iota,
    "scatter_add": _scatter("scatter_add"),
    "scatter_update": _scatter("scatter_update"),
    "extents": _extents,
}
