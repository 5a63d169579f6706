"""A checked model as plain data: what `checking` makes of a protobuf message and `importer` walks.

Everything here is known to hold together: names are text, every value is defined once and before it is used, nodes
stand in an order that respects dependence, attributes have the types that the schemas say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx
from onnx import TensorProto
from onnx.defs import OpSchema

from relume.base.dtypes import DType
from relume.frontends.onnx.reading import Raw

FunctionKey = tuple[str, str, str]
"""(domain, name, overload) of a model-local function."""


def function_title(key: FunctionKey) -> str:
    """`domain::name`, as messages have it."""
    return "::".join(filter(None, (key[0] or "ai.onnx", key[1], key[2])))


@dataclass(frozen=True)
class Ref:
    """An attribute of a function's node that stands for the attribute `name` of the call."""

    name: str
    kind: int
    """An `AttributeProto.AttributeType`."""


@dataclass(frozen=True)
class NodeDef:
    """One ONNX node. An absent input or output is the empty name."""

    op: str
    domain: str
    """`""` is ai.onnx."""
    overload: str
    name: str
    """What messages call it: its name, else `OpType_index`. Need not be unique."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, object]
    """int, float, str, bytes (text that is no UTF-8), `TensorProto`, `GraphDef`, `Ref`, other messages, or tuples."""
    schema: OpSchema | None
    """None: a model-local function, or an operator of a domain that `onnx` knows nothing about."""
    proto: onnx.NodeProto

    @property
    def title(self) -> str:
        """Operator, domain and version: `Resize (ai.onnx 13)`."""
        version = f" {self.schema.since_version}" if self.schema else ""
        return f"{self.op} ({self.domain or 'ai.onnx'}{version})"

    def graphs(self) -> Iterator[GraphDef]:
        """The graphs in its attributes."""
        return (value for value in self.attrs.values() if isinstance(value, GraphDef))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names it depends on: its inputs and what its graphs take from outside. Each once, in order."""
        names = dict.fromkeys(name for name in self.inputs if name)
        for graph in self.graphs():
            names.update(dict.fromkeys(graph.free))
        return tuple(names)

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class Declared:
    """What a file says about a value: it need not be true."""

    name: str
    dtype: DType | None
    """None: not a tensor, or of an element type that Relume does not have; then `kind` says what."""
    dims: tuple[int | str, ...] | None
    """An int, a name, or "" where nothing is said. None: no shape is declared."""
    kind: str


@dataclass(frozen=True)
class GraphDef:
    """A graph: the main one, or one in an attribute (`free` are the names that it takes from outside)."""

    inputs: tuple[str, ...]
    nodes: tuple[NodeDef, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, TensorProto]
    declared: Mapping[str, Declared]
    free: tuple[str, ...]


@dataclass(frozen=True)
class FunctionDef:
    """A function: local to the model, or the body that a schema gives."""

    title: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeDef, ...]
    defaults: Mapping[str, object]
    """Attributes that a call may leave out."""
    opsets: Mapping[str, int]
    constants: Mapping[str, TensorProto] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A whole model."""

    raw: Raw
    graph: GraphDef
    functions: Mapping[FunctionKey, FunctionDef]
    opsets: Mapping[str, int]


def live(nodes: tuple[NodeDef, ...], results: tuple[str, ...]) -> tuple[NodeDef, ...]:
    """The nodes that `results` depend on, in order."""
    needed, kept = set(results), []
    for node in reversed(nodes):
        if any(name in needed for name in node.outputs if name):
            kept.append(node)
            needed.update(node.reads)
    return tuple(reversed(kept))
