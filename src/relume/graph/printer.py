"""Prints modules, functions and regions; `parser` reads them back. The grammar stands in `text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from relume.base import locations
from relume.base.locations import Location
from relume.graph.literals import attr_text, data_text, name_text, quote
from relume.graph.types import UNTRACED, Constant, Function, Graph, Module, Node, Origins, Unknown, Value

PLAIN_PLACE = re.compile(r'[^\s:"]+:[^\s"]+')
"""Locations that need no quotes. A blank after the colon makes a comment of it (`// error: ...`)."""


def print_module(module: Module, *, data: bool = False, origins: bool = False) -> str:
    """The module as text: its functions in order, then every constant, each content once.

    `data` writes large constants out in base64 instead of naming their digest; `origins` writes the origins of every
    slot, without which they are not read back.
    """
    writer = Writer(origins)
    for function in module.functions.values():
        writer.function(function)
        writer.line("")
    writer.constants(data)
    return writer.text()


def print_function(fn: Function, *, data: bool = False, origins: bool = False) -> str:
    """One function with its constants, as `print_module` would print a module that has no other."""
    return print_module(Module({fn.name: fn}), data=data, origins=origins)


def print_region(graph: Graph, *, data: bool = False, origins: bool = False) -> str:
    """A graph as a region, `{ (params) nodes yield results }`, and its constants."""
    writer = Writer(origins)
    writer.line("{")
    writer.region(graph, "  ")
    writer.line("}")
    writer.constants(data)
    return writer.text()


def location_text(location: Location) -> str:
    """What stands behind `//` for a node's place in the user's model."""
    plain = str(location)
    if PLAIN_PLACE.fullmatch(plain) and locations.parse(plain) == location:
        return plain
    return f"{quote(location.file)}:{quote(location.name)}"


def origins_text(slots: Iterable[Origins]) -> str:
    """`!(a1b2, c3d4/later+e5f6/first, unknown("cse", "new use"), _)`: one entry per slot; `_` is `UNTRACED`."""
    return f"!({', '.join(_slot_text(slot) for slot in slots)})"


def _slot_text(slot: Origins) -> str:
    if slot == UNTRACED:
        return "_"
    if isinstance(slot, Unknown):
        return f"unknown({quote(slot.pass_name)}, {quote(slot.reason)})"
    return "+".join("/".join((name_text(origin.site.digest), *origin.iterations)) for origin in sorted(slot)) or "{}"


@dataclass
class Writer:
    """Collects lines. `lines` of the text, and `where` each node, parameter list and result line starts in them."""

    origins: bool = False
    lines: list[str] = field(default_factory=list)
    where: dict[Node | Graph, int] = field(default_factory=dict)
    """The line (from 0) of each node, and of each graph's `return` or `yield`."""
    _names: dict[Value, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _constants: dict[str, tuple[str, Constant]] = field(default_factory=dict)
    _constant_names: set[str] = field(default_factory=set)
    _suffixes: dict[tuple[str, str], int] = field(default_factory=dict)

    def text(self) -> str:
        return "\n".join(self.lines).strip("\n") + "\n"

    def line(self, text: str) -> None:
        self.lines.append(text)

    # -- names --

    def name(self, value: Value) -> str:
        """`%h` or `@w`: from the hint, made unique within the function; `%0`, `@c0` for values without one."""
        if isinstance(value, Constant):
            if value.digest not in self._constants:
                name = self._unique(value.name, "c", self._constant_names)
                self._constants[value.digest] = (name, value)
            return f"@{name_text(self._constants[value.digest][0])}"
        if value not in self._names:
            self._names[value] = self._unique(value.name, "", self._taken)
        return f"%{name_text(self._names[value])}"

    def _unique(self, hint: str, prefix: str, taken: set[str]) -> str:
        # Hints that are distinct already are kept as they are: so printing what was parsed changes nothing.
        name = hint
        stem = f"{hint}_" if hint else prefix
        while not name or name in taken:
            count = self._suffixes.get((stem, prefix), 1 if hint else 0)
            self._suffixes[stem, prefix] = count + 1
            name = f"{stem}{count}"
        taken.add(name)
        return name

    # -- graphs --

    def function(self, fn: Function) -> None:
        self._names, self._taken, self._suffixes = {}, set(), {}
        inputs = self._params(fn.inputs)
        # The word says it already: inside `states(...)` the types are those of the tensors.
        held = ", ".join(f"{self.name(state)} : {state.tensor}" for state in fn.states)
        states = f" states({held})" if fn.state_count else ""
        self.line(f"func @{name_text(fn.name)}({inputs}){states} {{")
        for node in fn.graph.nodes:
            self.node(node, "  ")
        outputs = [self.name(value) for value in fn.outputs]
        for index, name in enumerate(fn.output_names[: len(outputs)]):
            outputs[index] += f" as {quote(name)}"
        next_states = ", ".join(self.name(value) for value in fn.next_states)
        rest = f" states({next_states})" if fn.state_count else ""
        self._results(fn.graph, "  return", ", ".join(outputs) + rest)
        self.line("}")

    def region(self, graph: Graph, indent: str) -> None:
        self.line(f"{indent}({self._params(graph.params)})")
        for node in graph.nodes:
            self.node(node, indent)
        self._results(graph, f"{indent}yield", ", ".join(self.name(value) for value in graph.results))

    def _results(self, graph: Graph, word: str, results: str) -> None:
        self.where[graph] = len(self.lines)
        origins = f" {origins_text(graph.origins)}" if self.origins and graph.results else ""
        self.line(f"{word} {results}".rstrip() + origins)

    def _params(self, params: Sequence[Value]) -> str:
        return ", ".join(f"{self.name(param)} : {param.type}" for param in params)

    def node(self, node: Node, indent: str) -> None:
        self.where[node] = len(self.lines)
        operands = [self.name(value) for value in node.operands]
        declared = [attr.name for attr in node.op.attrs if attr.name in node.attrs]
        rest = [name for name in node.attrs if name not in declared]
        attrs = [f"{name}={attr_text(node.attrs[name])}" for name in (*declared, *rest)]
        text = f"{node.op.name}({', '.join((*operands, *attrs))})"
        if node.results:
            results = ", ".join(self.name(value) for value in node.results)
            text = f"{results} = {text} : {', '.join(str(value.type) for value in node.results)}"
        if self.origins and node.operands:
            text += f" {origins_text(node.origins)}"
        place = f"   // {location_text(node.location)}" if node.location else ""
        if not node.regions:
            self.line(f"{indent}{text}{place}")
            return
        self.line(f"{indent}{text} {{{place}")
        for index, region in enumerate(node.regions):
            if index:
                self.line(f"{indent}}} {{")
            self.region(region, indent + "  ")
        self.line(f"{indent}}}")

    def constants(self, data: bool) -> None:
        for name, constant in self._constants.values():
            self.line(f"const @{name_text(name)} : {constant.type} = {data_text(constant, whole=data)}")


def around(fn: Function, place: Node | Graph | None, nodes: int = 10) -> str:
    """The text of up to `nodes` lines around a node (or a graph's result line), which is marked with `>`."""
    writer = Writer()
    writer.function(fn)
    guilty = writer.where.get(place, 0) if place is not None else 0
    first = max(0, min(guilty - nodes // 2, len(writer.lines) - nodes - 1))
    shown = writer.lines[first : first + nodes + 1]
    return "\n".join(("> " if first + index == guilty else "  ") + text for index, text in enumerate(shown))
