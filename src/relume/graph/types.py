"""The graph representation: values and mathematics in single static assignment, with no memory in it.

The whole grammar, smallest first::

    Type      = Tensor(dtype, dims) | State(tensor)          dims are ints or symbolic expressions, rank is static
    Value     = name : Type                                  defined once: by a node, as a parameter, or a Constant
    Constant  = Value + immutable data, named by its content
    Node      = results = op(operands; attrs; regions)       with origins per operand slot and a Location
    Graph     = params, nodes in dependence order, results   also the type of a region
    Function  = f(inputs, states) -> (outputs, states')      a Graph whose trailing params and results are states
    Module    = functions by name

Everything is frozen. Values, nodes and graphs compare by identity (a pass says "nothing changed" by returning the
same object); `same_graph` and `Function.__eq__`/`Module.__eq__` compare structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Union
from weakref import WeakValueDictionary

import numpy as np

from relume.base import digests, dims
from relume.base.content import Content
from relume.base.dims import Dim
from relume.base.dtypes import DType, from_numpy
from relume.base.errors import InputError
from relume.base.locations import Location

if TYPE_CHECKING:
    from relume.graph.opdef import OpDef


# --- types ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    """The type of a tensor value: element type and extents."""

    dtype: DType
    dims: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def elements(self) -> Dim:
        return dims.product(self.dims)

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class State:
    """The type of one version of a state: linear, consumed by at most one write."""

    tensor: Tensor

    def __str__(self) -> str:
        return f"state<{self.tensor}>"


Type = Union[Tensor, State]

# --- origins --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class SiteId:
    """The identity of one use in the imported graph: a structural digest, free of names, lines and object identity."""

    digest: str

    def __str__(self) -> str:
        return self.digest


@dataclass(frozen=True, order=True)
class Origin:
    """A use in the imported graph, seen in one iteration class per enclosing loop (`first` or `later`)."""

    site: SiteId
    iterations: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class Unknown:
    """No origin, on purpose: the pass that made this use, and why no fact speaks of it."""

    pass_name: str
    reason: str


Origins = Union[frozenset[Origin], Unknown]
"""What every operand slot and every result slot carries. The empty set is illegal: silence is impossible."""

UNTRACED = Unknown("build", "made before sites were assigned")
"""What the builder writes until `graph.sites.assign` runs on an imported graph."""

# --- values and nodes -----------------------------------------------------------------------------------------------

Attr = Union[int, float, bool, str, DType, dims.Expr, tuple["Attr", ...]]


def is_symbolic(attr: Attr) -> bool:
    """Whether an attribute is, or holds, a dim that is not known before run time."""
    return isinstance(attr, dims.Expr) or (isinstance(attr, tuple) and any(map(is_symbolic, attr)))


@dataclass(frozen=True, eq=False)
class Value:
    """One definition. `name` is a hint for people; identity is the object."""

    type: Type
    name: str = ""

    @property
    def tensor(self) -> Tensor:
        """The tensor type; of a state version, the tensor that it holds."""
        return self.type.tensor if isinstance(self.type, State) else self.type

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.tensor.dims


@dataclass(frozen=True, eq=False)
class Constant(Value):
    """An immutable tensor, identified by its content. Clones share the object; nothing can write it."""

    data: np.ndarray = field(default_factory=lambda: np.zeros(()))

    @staticmethod
    def of(data: np.ndarray, name: str = "") -> Constant:
        """Takes an array by reference and makes it read-only (a view is taken where the caller's own must stay so)."""
        view = np.asarray(data).view()
        view.flags.writeable = False
        return Constant(Tensor(from_numpy(view.dtype), view.shape), name, view)

    @cached_property
    def content(self) -> Content:
        """Equal for constants of the same dtype, shape and bytes. Reads little of a large one."""
        return Content(self.data)

    @cached_property
    def digest(self) -> str:
        """The name of its content, in this process and any other. Reads all of it."""
        digest = digests.of_array(self.data)
        _ALIVE.setdefault(digest, self)
        return digest

    @staticmethod
    def alive(digest: str) -> Constant | None:
        """A constant of this content that some module of this process still holds: text names large ones by digest."""
        return _ALIVE.get(digest)


_ALIVE: WeakValueDictionary[str, Constant] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an op. `origins` has one entry per operand."""

    op: OpDef
    operands: tuple[Value, ...]
    attrs: Mapping[str, Any]
    """Each an `Attr` of the kind that the op declares; `Any` here, since a use knows which."""
    results: tuple[Value, ...]
    regions: tuple[Graph, ...] = ()
    origins: tuple[Origins, ...] = ()
    location: Location | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))
        if not self.origins:
            object.__setattr__(self, "origins", (UNTRACED,) * len(self.operands))
        if len(self.origins) != len(self.operands):
            raise ValueError(f"{self.op.name}: {len(self.operands)} operands but {len(self.origins)} origins")

    @property
    def result(self) -> Value:
        """The only result."""
        (result,) = self.results
        return result

    def with_(self, **changes: object) -> Node:
        """A copy with some fields changed. Passes go through the Rewriter instead, which keeps origins."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Graph:
    """Parameters, nodes in an order that respects dependence, and results.

    A region is closed: it uses its own parameters, its own values and constants, never a value from outside.
    """

    params: tuple[Value, ...]
    nodes: tuple[Node, ...]
    results: tuple[Value, ...]
    origins: tuple[Origins, ...] = ()
    """One entry per result: a result slot is a use like any other."""

    def __post_init__(self) -> None:
        if not self.origins:
            object.__setattr__(self, "origins", (UNTRACED,) * len(self.results))
        if len(self.origins) != len(self.results):
            raise ValueError(f"{len(self.results)} results but {len(self.origins)} origins")

    def walk(self) -> Iterator[Node]:
        """Every node, regions included, outer node before inner ones."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    def constants(self) -> tuple[Constant, ...]:
        """Every constant that is used, each content once, in order of first use."""
        seen: dict[Content, Constant] = {}
        for node in self.walk():
            for region in (node.operands, *(region.results for region in node.regions)):
                for value in region:
                    if isinstance(value, Constant):
                        seen.setdefault(value.content, value)
        for value in self.results:
            if isinstance(value, Constant):
                seen.setdefault(value.content, value)
        return tuple(seen.values())


@dataclass(frozen=True, eq=False)
class Function:
    """`f(inputs, states) -> (outputs, states')`.

    `graph.params` are the inputs and then the states; `graph.results` are the outputs and then the next version of
    each state, in the order of the states. `output_names` names the outputs for callers. Which storage a state is
    bound to is the caller's business, at run time.
    """

    name: str
    graph: Graph
    state_count: int = 0
    output_names: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.graph.params[: len(self.graph.params) - self.state_count]

    @property
    def states(self) -> tuple[Value, ...]:
        return self.graph.params[len(self.graph.params) - self.state_count :]

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.graph.results[: len(self.graph.results) - self.state_count]

    @property
    def next_states(self) -> tuple[Value, ...]:
        return self.graph.results[len(self.graph.results) - self.state_count :]

    def with_graph(self, graph: Graph) -> Function:
        """This function over another graph; the same object when the graph is the same object."""
        return self if graph is self.graph else replace(self, graph=graph)

    def clone(self, name: str) -> Function:
        """A function of that name with fresh nodes and values, and the same constants (by identity: nothing can write
        them). Its states have the same names; which storage they are bound to stays the caller's business."""
        from relume.graph.rewriter import clone  # the rewriter needs these types

        return replace(self, name=name, graph=clone(self.graph))

    def __str__(self) -> str:
        from relume.graph.text import print_function  # the printer needs these types

        return print_function(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Function):
            return NotImplemented
        return (
            (self.name, self.state_count, self.output_names) == (other.name, other.state_count, other.output_names)
            and [param.name for param in self.graph.params] == [param.name for param in other.graph.params]
            and same_graph(self.graph, other.graph)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Module:
    """Functions by name, in order; the first is the main one."""

    functions: Mapping[str, Function]
    source: str = ""
    """What it was loaded from, for messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", MappingProxyType(dict(self.functions)))

    @property
    def main(self) -> Function:
        return next(iter(self.functions.values()))

    def __getitem__(self, name: str) -> Function:
        if name not in self.functions:
            raise InputError(f"there is no function {name!r}", expected=", ".join(self.functions), got=name)
        return self.functions[name]

    def clone(self) -> Module:
        """A module of clones of the functions, under the same names. Constants are shared by identity."""
        return Module({name: fn.clone(name) for name, fn in self.functions.items()}, self.source)

    def with_function(self, fn: Function) -> Module:
        """This module and `fn`, which takes the place of a function of the same name, or comes last."""
        return Module({**self.functions, fn.name: fn}, self.source)

    def __str__(self) -> str:
        from relume.graph.text import print_module  # the printer needs these types

        return print_module(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Module):
            return NotImplemented
        return list(self.functions.items()) == list(other.functions.items())

    __hash__ = None  # type: ignore[assignment]


# --- structural equality --------------------------------------------------------------------------------------------


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs are equal up to the names of values inside: ops, attributes, types, origins, locations."""
    if len(a.params) != len(b.params) or len(a.nodes) != len(b.nodes) or len(a.results) != len(b.results):
        return False
    pairs: dict[Value, Value] = {}

    def same_value(x: Value, y: Value) -> bool:
        if isinstance(x, Constant) or isinstance(y, Constant):
            return isinstance(x, Constant) and isinstance(y, Constant) and x.content == y.content
        return pairs.get(x) is y

    def define(xs: tuple[Value, ...], ys: tuple[Value, ...]) -> bool:
        pairs.update(zip(xs, ys))
        return len(xs) == len(ys) and all(x.type == y.type for x, y in zip(xs, ys))

    if not define(a.params, b.params):
        return False
    for m, n in zip(a.nodes, b.nodes):
        if (m.op is not n.op) or dict(m.attrs) != dict(n.attrs) or m.origins != n.origins or m.location != n.location:
            return False
        if len(m.operands) != len(n.operands) or len(m.regions) != len(n.regions):
            return False
        if not all(map(same_value, m.operands, n.operands)):
            return False
        if not all(map(same_graph, m.regions, n.regions)):
            return False
        if not define(m.results, n.results):
            return False
    return a.origins == b.origins and all(map(same_value, a.results, b.results))
