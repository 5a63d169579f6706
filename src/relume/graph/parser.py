"""Parses the text of graphs. The grammar stands in `text`; every error names the line and shows it."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from relume.base import dims, dtypes, locations
from relume.base.locations import Location
from relume.graph import literals
from relume.graph.cursor import STRING, Cursor
from relume.graph.opdef import InferError, OpDef
from relume.graph.types import (
    UNTRACED,
    Attr,
    Constant,
    Function,
    Graph,
    Module,
    Node,
    Origin,
    Origins,
    SiteId,
    State,
    Tensor,
    Type,
    Unknown,
    Value,
)

DEPTH = 100
"""Regions nest at most this deep in text."""

_PLACE = re.compile(rf'[ \t]*//[ \t]*(?:({STRING.pattern}):({STRING.pattern})|([^\s:"]+:[^\s"]+))[ \t]*(?=\n|//|$)')
_TYPE = re.compile(r"(state<)?\s*(\w+)\[")
_ATOM = re.compile(r"[^\s,\[\]()]+")
_CONST = re.compile(r"^[ \t]*const\b", re.MULTILINE)


class Parser(Cursor):
    """One pass over one text. `where` tells the line (from 1) of each node, and of each graph's results."""

    def __init__(self, text: str, ops: Mapping[str, OpDef], constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(text)
        self.ops, self.dense = ops, constants
        self.where: dict[Node | Graph, int] = {}
        self.headers: dict[str, int] = {}
        """The line of each function's signature."""
        self._constants: dict[str, Constant] = {}
        self._const_ends: dict[int, int] = {}
        self._tensors: dict[tuple[str, str], Tensor] = {}
        self._depth = 0

    # -- entry points --

    def module(self) -> Module:
        """Functions and constants in any order; at least one function."""
        self._read_constants()
        functions: dict[str, Function] = {}
        while self._more():
            start = self.at
            fn = self._function()
            if fn.name in functions:
                self.fail(f"the function @{fn.name} is defined twice", start)
            functions[fn.name] = fn
        if not functions:
            self.fail("there is no function in this text")
        return Module(functions)

    def lone_region(self) -> Graph:
        """One region in braces, and constants."""
        self._read_constants()
        self._more()
        self.expect("{")
        graph = self._region()
        self.expect("}")
        if self._more():
            self.fail("only constants may follow the region")
        return graph

    def _more(self) -> bool:
        """Skips constants, which were read before. Whether something is left."""
        self.skip()
        while self.at in self._const_ends:
            self.at = self._const_ends[self.at]
            self.skip()
        return self.at < len(self.text)

    # -- types --

    def _type(self) -> Type:
        self.skip()
        at = self.at
        match = self.match(_TYPE, "a type")
        if match.group(2) not in dtypes.BY_NAME:
            self.fail(f"there is no element type {match.group(2)!r}", at, expected=", ".join(dtypes.BY_NAME))
        key = (match.group(2), self.balanced("]"))
        self.expect("]")
        if key not in self._tensors:
            try:
                extents = tuple(map(dims.parse, literals.split_commas(key[1])))
            except ValueError as error:
                self.fail(str(error), at)
            if any(isinstance(extent, int) and extent < 0 for extent in extents):
                self.fail("an extent is at least 0", at, got=f"{key[0]}[{key[1]}]")
            self._tensors[key] = Tensor(dtypes.BY_NAME[key[0]], extents)
        tensor = self._tensors[key]
        if match.group(1):
            self.expect(">")
            return State(tensor)
        return tensor

    # -- values in scope --

    def _define(self, scope: dict[str, Value], name: str, value: Value, at: int) -> None:
        if name in scope:
            self.fail(f"%{literals.name_text(name)} is defined twice", at)
        scope[name] = value

    def _param(self, scope: dict[str, Value], *, state: bool = False) -> Value:
        self.skip()
        at = self.at
        name = self.name("%")
        self.expect(":")
        type_ = self._type()
        if state:
            if isinstance(type_, State):
                self.fail("inside states(...) the type is that of the tensor", at, type_.tensor, type_)
            type_ = State(type_)
        value = Value(type_, name)
        self._define(scope, name, value, at)
        return value

    def _value(self, scope: Mapping[str, Value]) -> Value:
        self.skip()
        at = self.at
        if self.peek("@"):
            name = self.name("@")
            if name not in self._constants:
                self.fail(f"there is no constant @{literals.name_text(name)}", at, f"const @{name} : ... = ...")
            return self._constants[name]
        name = self.name("%")
        if name not in scope:
            self.fail(f"%{literals.name_text(name)} is not defined here (a region sees only its own values)", at)
        return scope[name]

    # -- graphs --

    def _function(self) -> Function:
        if not self.accept_word("func"):
            self.fail("a function or a constant is missing", expected="func @name(...) or const @name")
        name = self.name("@")
        self.headers[name] = self.line(self.at)
        scope: dict[str, Value] = {}
        self.expect("(")
        params = self.list_of(lambda: self._param(scope), ")")
        states: list[Value] = []
        if self.accept_word("states"):
            self.expect("(")
            states = self.list_of(lambda: self._param(scope, state=True), ")")
        self.expect("{")
        nodes = self._nodes(scope, "return")
        at = self.at
        results = self.some(lambda: self._output(scope))
        following: list[Value] = []
        if self.accept_word("states"):
            self.expect("(")
            following = self.list_of(lambda: self._value(scope), ")")
        if len(following) != len(states):
            self.fail("each state has one next version", at, f"states({len(states)} values)", len(following))
        origins = self._origins(len(results) + len(following))
        self.expect("}")
        outputs = tuple(value for value, _ in results)
        graph = Graph((*params, *states), tuple(nodes), (*outputs, *following), origins)
        self.where[graph] = self.line(at)
        return Function(name, graph, len(states), tuple(name for _, name in results))

    def _output(self, scope: Mapping[str, Value]) -> tuple[Value, str]:
        """A value and the output name that callers use."""
        value = self._value(scope)
        return value, self.string() if self.accept_word("as") else value.name

    def _region(self) -> Graph:
        """From the parameters up to the closing brace, which stays."""
        self._depth += 1
        if self._depth > DEPTH:
            self.fail("regions nest too deep", expected=f"at most {DEPTH}")
        scope: dict[str, Value] = {}
        self.expect("(")
        params = self.list_of(lambda: self._param(scope), ")")
        nodes = self._nodes(scope, "yield")
        at = self.at
        results = self.some(lambda: self._value(scope))
        graph = Graph(tuple(params), tuple(nodes), tuple(results), self._origins(len(results)))
        self.where[graph] = self.line(at)
        self._depth -= 1
        return graph

    def _nodes(self, scope: dict[str, Value], end: str) -> list[Node]:
        nodes: list[Node] = []
        while not self.accept_word(end):
            self.skip()
            if self.at >= len(self.text) or self.peek("}"):
                self.fail(f"{end!r} is missing", expected=end)
            nodes.append(self._node(scope))
        return nodes

    def _node(self, scope: dict[str, Value]) -> Node:
        start = self.at
        names: list[str] = []
        if self.peek("%"):
            names.append(self.name("%"))
            while self.accept(","):
                names.append(self.name("%"))
            self.expect("=")
        self.skip()
        at = self.at
        op_name = self.word("an op")
        if op_name not in self.ops:
            self.fail(f"there is no op {op_name!r}", at)
        op = self.ops[op_name]
        operands, attrs = self._arguments(scope, op)
        types: list[Type] | None = None
        if self.accept(":"):
            types = [self._type()]
            while self.accept(","):
                types.append(self._type())
        origins = self._origins(len(operands))
        has_regions = self.accept("{")
        location = self._location()
        regions: list[Graph] = []
        while has_regions:
            regions.append(self._region())
            self.expect("}")
            has_regions = self.accept("{")
        end, self.at = self.at, start  # Whatever does not fit belongs to the line where the node starts.
        inferred, complete = self._infer(op, operands, attrs, tuple(regions))
        if types is not None and tuple(types) != inferred:
            self.fail(f"the types of {op.name}'s results are others", None, _types(inferred), _types(types))
        if len(names) != len(inferred):
            self.fail(f"{op.name} has {len(inferred)} results here", None, len(inferred), len(names))
        results = tuple(Value(type_, name) for type_, name in zip(inferred, names))
        node = Node(op, tuple(operands), complete, results, tuple(regions), origins, location)
        for name, value in zip(names, results):
            self._define(scope, name, value, start)
        self.where[node] = self.line(start)
        self.at = end
        return node

    def _arguments(self, scope: Mapping[str, Value], op: OpDef) -> tuple[list[Value], dict[str, Attr]]:
        kinds = {attr.name: attr.kind for attr in op.attrs}
        operands: list[Value] = []
        attrs: dict[str, Attr] = {}

        def argument() -> None:
            self.skip()
            at = self.at
            if self.peek("%", "@"):
                if attrs:
                    self.fail("operands stand before attributes", at)
                operands.append(self._value(scope))
                return
            name = self.word("an operand or an attribute")
            if name not in kinds or name in attrs:
                what = "is given twice" if name in attrs else f"is no attribute of {op.name}"
                self.fail(f"{name!r} {what}", at, expected=", ".join(kinds) or "none")
            self.expect("=")
            try:
                attrs[name] = literals.parse_attr(self.balanced(",)"), kinds[name])
            except ValueError as error:
                self.fail(f"{name}: {error}", at, expected=kinds[name])

        self.expect("(")
        self.list_of(argument, ")")
        return operands, attrs

    def _infer(
        self, op: OpDef, operands: list[Value], attrs: dict[str, Attr], regions: tuple[Graph, ...]
    ) -> tuple[tuple[Type, ...], dict[str, Attr]]:
        if len(regions) != len(op.regions):
            self.fail(f"{op.name} takes {len(op.regions)} regions", None, len(op.regions), len(regions))
        try:
            op.check_arity(len(operands))
            complete = op.complete(attrs)
            return tuple(op.infer([value.type for value in operands], complete, regions)), complete
        except InferError as error:
            self.fail(error.what, None, error.expected, error.got)

    # -- origins and places --

    def _origins(self, count: int) -> tuple[Origins, ...]:
        at = self.at
        if not self.accept("!("):
            return ()
        slots = self.list_of(self._slot, ")")
        if len(slots) != count:
            self.fail("there is one origin per slot", at, count, len(slots))
        return tuple(slots)

    def _slot(self) -> Origins:
        if self.accept_word("_"):
            return UNTRACED
        if self.accept_word("unknown"):
            self.expect("(")
            pass_name = self.string()
            self.expect(",")
            reason = self.string()
            self.expect(")")
            return Unknown(pass_name, reason)
        origins = [self._origin()]
        while self.accept("+"):
            origins.append(self._origin())
        return frozenset(origins)

    def _origin(self) -> Origin:
        self.skip()
        if self.text.startswith('"', self.at):
            site = self.string()
        else:
            site = self.match(re.compile(r"[A-Za-z0-9_.]+"), "a site").group()
        iterations: list[str] = []
        while self.accept("/"):
            iterations.append(self.word("an iteration class"))
        return Origin(SiteId(site), tuple(iterations))

    def _location(self) -> Location | None:
        match = _PLACE.match(self.text, self.at)
        if not match:
            return None
        self.at = match.end()
        if match.group(3):
            return locations.parse(match.group(3))
        return Location(json.loads(match.group(1)), json.loads(match.group(2)))

    # -- constants --

    def _read_constants(self) -> None:
        """All constants come first, since functions use them before they are written."""
        for match in _CONST.finditer(self.text):
            self.at = match.start()
            self.skip()
            start = self.at
            self.word("const")
            name = self.name("@")
            if name in self._constants:
                self.fail(f"the constant @{literals.name_text(name)} is defined twice", start)
            self.expect(":")
            type_ = self._type()
            self.expect("=")
            if isinstance(type_, State):
                self.fail("a constant is no state", start)
            try:
                self._constants[name] = Constant.of(self._data(type_), name)
            except (ValueError, binascii.Error) as error:
                self.fail(str(error), start)
            self._const_ends[start] = self.at
        self.at = 0

    def _data(self, type_: Tensor) -> np.ndarray:
        if self.accept_word("splat"):
            return literals.splat_data(self.match(_ATOM, "a value").group(), type_)
        if self.accept_word("base64"):
            return literals.base64_data(self.string(), type_)
        if self.accept_word("random"):
            self.expect("(")
            seed = int(self.match(re.compile(r"\d+"), "a seed").group())
            self.expect(")")
            return literals.random_data(seed, type_)
        if self.accept_word("dense"):
            at, digest = self.at, self.string()
            alive = Constant.alive(digest)
            if digest not in self.dense and alive is None:
                self.fail(
                    "the data of this constant is not in the text",
                    at,
                    "print with data=True, or pass constants={digest: array}",
                    f"no array with the digest {digest}",
                )
            array = np.asarray(self.dense[digest] if digest in self.dense or alive is None else alive.data)
            if array.dtype != type_.dtype.numpy or array.shape != literals.static_shape(type_):
                self.fail("the data of this constant has another type", at, type_, f"{array.dtype}{array.shape}")
            return array
        return literals.nested_data(self._nested(), type_)

    def _nested(self) -> Any:
        if self.accept("["):
            return self.list_of(self._nested, "]")
        return self.match(_ATOM, "a value").group()


def _types(types: tuple[Type, ...] | list[Type]) -> str:
    return ", ".join(map(str, types)) or "none"
