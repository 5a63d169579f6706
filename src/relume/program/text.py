"""Programs as text, both ways: `parse_program(print_program(p), kernels, constants) == p`.

::

    program "main" {
      input 0 %x : f32[N*3072]
      constant 0 %w.3f2a : f32[432]
      arena %h : f32[N*1024] in %h
      output 0 %y : f32[N*1024]
      bind input "image" = %x [N,3,32,32]
      bind output "y" = %y [N,16,8,8]
      #0 conv_plain in %x [N,3,32,32], in %w.3f2a [16,3,3,3], out %h [N,16,8,8] {strides=(4, 4)} // net.onnx:Conv_0
      #1 map in %h [N*1024], out %y [N*1024] by [1] at [0] {body=(("relu", (0,), (), f32),), outs=(0,)} <N, 3>
        reuses operand 0 for 1: %h dies here
    }

A buffer line gives the space, the slot in the context's table (but for the arena), the name, the element type, the
number of elements and, in the arena, the allocation. A view is a buffer, its extents, `by` its strides where it is
not the C order, `at` its offset where that is not 0, and `version` the number of writes that a state's buffer has seen
before, where that is not 0. Parameters are Python literals, element types are bare
words, and infinities and NaN are `inf` and `nan`. `<...>` holds the scalars.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NoReturn

import numpy as np

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.errors import ModelError
from relume.base.locations import Location
from relume.program.types import (
    Buffer,
    Instr,
    KernelDef,
    Operand,
    Param,
    Port,
    Program,
    Reused,
    Space,
    View,
    contiguous,
)

_NAME = r"%[A-Za-z0-9_.$-]+"
_STRING = r'"(?:[^"\\]|\\.)*"'
_PLAIN_FILE, _PLAIN_PLACE = r'[^\s:"]+', r'[^\s"]+'

# --- printing -------------------------------------------------------------------------------------------------------


def print_program(program: Program) -> str:
    """The program as text. Constants show by name only: their data is handed to `parse_program` apart."""
    lines = [f"program {_quote(program.name)} {{"]
    for buffer in program.buffers:
        slot = "" if buffer.space is Space.ARENA and buffer.index == 0 else f" {buffer.index}"
        lines.append(
            f"  {buffer.space.value}{slot} {buffer} : {buffer.dtype}[{buffer.elements}]"
            + (f" in %{program.allocations[buffer.name]}" if buffer.name in program.allocations else "")
        )
    for kind, ports in (("input", program.inputs), ("output", program.outputs), ("state", program.states)):
        for port in ports:
            shape = f"{port.dtype} {_dims(port.dims)}" if port.dtype is not port.buffer.dtype else _dims(port.dims)
            lines.append(f"  bind {kind} {_quote(port.name)} = {port.buffer} {shape}")
    notes: dict[int, list[Reused]] = {}
    for note in program.reused:
        notes.setdefault(note.instr, []).append(note)
    for instr in program.instrs:
        lines.append(f"  {print_instr(instr)}")
        for note in notes.get(instr.id, ()):
            lines.append(f"    reuses operand {note.operand} for {note.result}: {note.reason}")
    lines.append("}")
    return "\n".join(lines) + "\n"


def print_instr(instr: Instr) -> str:
    """One instruction on one line: what messages show."""
    operands = ", ".join(f"{operand.access} {print_view(operand.view)}" for operand in instr.operands)
    params = ", ".join(f"{name}={_param(value)}" for name, value in sorted(instr.params.items()))
    return (
        f"#{instr.id} {instr.kernel.name} {operands} {{{params}}}"
        + (f" <{', '.join(map(str, instr.scalars))}>" if instr.scalars else "")
        + (f" // {_place(instr.location)}" if instr.location else "")
    )


def print_view(view: View) -> str:
    """`%h [2,3] by [1,2] at [64]`."""
    return (
        f"{view.buffer} {_dims(view.dims)}"
        + (f" by {_dims(view.strides)}" if view.strides != contiguous(view.dims) else "")
        + (f" at [{view.offset}]" if view.offset != 0 else "")
        + (f" version {view.version}" if view.version else "")
    )


def _dims(shape: tuple[Dim, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _place(location: Location) -> str:
    if re.fullmatch(_PLAIN_FILE, location.file) and re.fullmatch(_PLAIN_PLACE, location.name):
        return str(location)
    return f"{_quote(location.file)}:{_quote(location.name)}"


def _param(value: Param) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_param, value))}{',' if len(value) == 1 else ''})"
    return _quote(value) if isinstance(value, str) else repr(value)


# --- parsing --------------------------------------------------------------------------------------------------------


def parse_program(
    text: str, kernels: Mapping[str, KernelDef], constants: Mapping[str, np.ndarray] | None = None
) -> Program:
    """Inverse of `print_program`.

    `kernels` gives the definitions by name, `constants` the data of constant buffers by buffer name (without it they
    have none). Comment lines (`//` first) and empty lines are skipped. Raises `ModelError` with the line number.
    """
    parser = _Parser(kernels, constants or {})
    for number, line in enumerate(text.split("\n"), 1):
        parser.line(number, line.strip())
    return parser.finish()


class _Line:
    """One line with a cursor."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text, self.at = number, text, 0

    def fail(self, what: str, expected: object = None) -> NoReturn:
        got = self.text[self.at :] or "the end of the line"
        raise ModelError(
            f"the program text is wrong in line {self.number}: {what}", where=self.text, expected=expected, got=got
        )

    def take(self, pattern: str) -> str | None:
        """What matches here (blanks before it are skipped); None, and nothing taken, where nothing does."""
        match = re.compile(r"\s*(" + pattern + ")").match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match.group(1)

    def need(self, pattern: str, what: str) -> str:
        found = self.take(pattern)
        if found is None:
            self.fail(f"{what} is missing", what)
        return found

    def string(self, what: str) -> str:
        return str(json.loads(self.need(_STRING, what)))

    def integer(self, what: str) -> int:
        return int(self.need(r"-?\d+", what))

    def dims(self, opening: str = "[", closing: str = "]") -> tuple[Dim, ...]:
        inside = self.need(re.escape(opening) + "[^" + re.escape(closing) + "]*" + re.escape(closing), "extents")[1:-1]
        try:
            return tuple(_parse_dim(part) for part in _split(inside))
        except ValueError as error:
            self.fail(str(error))

    def end(self) -> None:
        if self.text[self.at :].strip():
            self.fail("nothing more is expected")


@lru_cache(maxsize=4096)
def _parse_dim(text: str) -> Dim:
    """A program says the same extents again and again."""
    return dims.parse(text)


def _split(text: str) -> list[str]:
    """Splits at commas that stand in no parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]] if text.strip() else []


class _Parser:
    def __init__(self, kernels: Mapping[str, KernelDef], constants: Mapping[str, np.ndarray]) -> None:
        self.kernels, self.constants = kernels, constants
        self.name: str | None = None
        self.closed = False
        self.last = 0
        self.buffers: dict[str, Buffer] = {}
        self.ports: dict[str, list[Port]] = {"input": [], "output": [], "state": []}
        self.instrs: list[Instr] = []
        self.allocations: dict[str, str] = {}
        self.reused: list[Reused] = []

    def line(self, number: int, text: str) -> None:
        line = _Line(number, text)
        self.last = number
        if not text or text.startswith("//"):
            return
        if self.name is None:
            line.need("program", "`program`")
            self.name = line.string("the program's name in quotes")
            line.need(r"\{", "`{`")
        elif self.closed:
            line.fail("the program has ended")
        elif line.take(r"\}"):
            self.closed = True
        elif line.take("bind "):
            self._port(line)
        elif line.take("#"):
            self._instr(line)
        elif line.take("reuses operand "):
            self._reused(line)
        else:
            self._buffer(line)
        line.end()

    def finish(self) -> Program:
        if not self.closed or self.name is None:
            _Line(self.last, "").fail("the program does not end", "`}`")
        return Program(
            self.name,
            tuple(self.ports["input"]),
            tuple(self.ports["output"]),
            tuple(self.ports["state"]),
            tuple(self.buffers.values()),
            tuple(self.instrs),
            self.allocations,
            tuple(self.reused),
        )

    def _dtype(self, line: _Line) -> DType:
        start = line.at
        name = line.need(r"[a-z]+\d*", "an element type")
        if name not in dtypes.BY_NAME:
            line.at = start
            line.fail(f"there is no element type {name!r}", ", ".join(dtypes.BY_NAME))
        return dtypes.BY_NAME[name]

    def _known(self, line: _Line) -> Buffer:
        start = line.at
        name = line.need(_NAME, "a buffer")[1:]
        if name not in self.buffers:
            line.at = start
            line.fail(f"there is no buffer %{name}", "a buffer from a line above")
        return self.buffers[name]

    def _buffer(self, line: _Line) -> None:
        space = line.need("|".join(space.value for space in Space) + r"\b", "a buffer, a binding or an instruction")
        index = int(line.take(r"\d+") or 0)
        name = line.need(_NAME, "the buffer's name")[1:]
        if name in self.buffers:
            line.fail(f"there is a buffer %{name} already")
        line.need(":", "`:`")
        dtype = self._dtype(line)
        elements = line.dims()
        if len(elements) != 1:
            line.fail("a buffer is a run of elements", "one extent")
        if line.take(r"in\b"):
            self.allocations[name] = line.need(_NAME, "the allocation")[1:]
        self.buffers[name] = Buffer(name, Space(space), dtype, elements[0], index, self.constants.get(name))

    def _port(self, line: _Line) -> None:
        kind = line.need("input|output|state", "`input`, `output` or `state`")
        name = line.string("the name in quotes")
        line.need("=", "`=`")
        buffer = self._known(line)
        dtype = buffer.dtype if re.match(r"\s*\[", line.text[line.at :]) else self._dtype(line)
        self.ports[kind].append(Port(name, dtype, line.dims(), buffer))

    def _instr(self, line: _Line) -> None:
        number = line.integer("the instruction's number")
        start = line.at
        kernel = line.need(r"[A-Za-z_]\w*", "a kernel")
        if kernel not in self.kernels:
            line.at = start
            line.fail(f"there is no kernel {kernel!r}", ", ".join(sorted(self.kernels)))
        operands: list[Operand] = []
        while not operands or line.take(","):
            access = line.need(r"inout\b|in\b|out\b", "`in`, `out` or `inout`")
            buffer = self._known(line)
            shape = line.dims()
            strides = line.dims() if line.take(r"by\b") else contiguous(shape)
            if len(strides) != len(shape):
                line.fail("there must be as many strides as extents", len(shape))
            offset = line.dims() if line.take(r"at\b") else (0,)
            version = line.integer("the version") if line.take(r"version\b") else 0
            operands.append(Operand(access, View(buffer, shape, strides, offset[0], version)))
        params = self._params(line)
        scalars = line.dims("<", ">") if line.take(r"(?=<)") is not None else ()
        location = self._location(line) if line.take("//") else None
        self.instrs.append(Instr(number, self.kernels[kernel], tuple(operands), params, location, scalars))

    def _params(self, line: _Line) -> dict[str, Param]:
        text = line.need(r"\{(?:[^\"}]|" + _STRING + r")*\}", "parameters in braces")
        try:
            call = ast.parse(f"f({text[1:-1]})", mode="eval").body
            assert isinstance(call, ast.Call) and not call.args
            return {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
        except (SyntaxError, ValueError, AssertionError):
            line.at -= len(text)
            line.fail("these are no parameters", "{name=value, ...}")

    def _location(self, line: _Line) -> Location:
        if line.take(r'(?=")') is None:
            file, _, name = line.need(f"{_PLAIN_FILE}:{_PLAIN_PLACE}", "a location, file:name").partition(":")
            return Location(file, name)
        file = line.string("a file in quotes")
        line.need(":", "`:`")
        return Location(file, line.string("a place in quotes"))

    def _reused(self, line: _Line) -> None:
        if not self.instrs:
            line.fail("no instruction stands above")
        operand = line.integer("an operand's number")
        line.need("for", "`for`")
        result = line.integer("a result's number")
        line.need(":", "`:`")
        reason = line.need(".*", "the reason")
        self.reused.append(Reused(self.instrs[-1].id, result, operand, reason))


def _literal(node: ast.expr) -> Param:
    if isinstance(node, ast.Tuple):
        return tuple(_literal(item) for item in node.elts)
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value
    if isinstance(node, ast.Name):
        if node.id in ("inf", "nan"):
            return math.inf if node.id == "inf" else math.nan
        if node.id in dtypes.BY_NAME:
            return dtypes.BY_NAME[node.id]
    raise ValueError
