"""SiteIds: every use in an imported graph gets an identity that renaming and re-exporting keep.

A site is a digest, a dot and the number of the slot; the digest is that of the place: the digest of the node, and
which of the nodes with that digest it is. The digest of a node covers its op, its attributes, the digests of its
operands and of its regions; an inner node's place also the place of the region. What enters the digest of an operand:
of a constant its type, not its values; of a parameter its place and type; of a node's result the node and which
result. Symbols are renamed in order of appearance in the inputs (those that loops make: in the order of the loops).

Nodes with equal digests compute the same from the same (up to the values of constants); they are told apart by the
order in which a depth-first walk from the graph's results meets them. Dead nodes come after the live ones; equal dead
ones count in the order of the text.
"""

from __future__ import annotations

from collections.abc import Mapping

from relume.base import dims
from relume.base.digests import of_text
from relume.base.dims import Dim, Expr
from relume.graph.types import (
    Attr,
    Constant,
    Function,
    Graph,
    Node,
    Origin,
    Origins,
    SiteId,
    State,
    Tensor,
    Type,
    Value,
)


def assign(fn: Function) -> Function:
    """The function with one fresh origin in every operand slot and every result slot, regions included."""
    sites = _Sites(_symbols(fn))
    digests = sites.digests(fn.graph)
    return fn.with_graph(sites.assigned(fn.graph, digests, "function"))


def _symbols(fn: Function) -> dict[str, Dim]:
    """New names for symbols, in order of appearance in the inputs, the states, and then region parameters."""
    order: dict[str, None] = {}
    regions = [region for node in fn.graph.walk() for region in node.regions]
    for graph in (fn.graph, *regions):
        for param in graph.params:
            for dim in param.dims:
                # A bare symbol binds a name; one inside an expression is bound elsewhere, and its order there is
                # that of the printed names, which renaming changes.
                name = dims.symbol_name(dim)
                if name is not None:
                    order.setdefault(name)
    return {name: dims.symbol(f"s{index}") for index, name in enumerate(order)}


class _Sites:
    def __init__(self, symbols: Mapping[str, Dim]) -> None:
        self._symbols = symbols
        self._types: dict[Type, str] = {}
        self._regions: dict[Graph, dict[Value | Node, str]] = {}

    # -- digests, bottom up --

    def digests(self, graph: Graph) -> dict[Value | Node, str]:
        """The digest of every value and node of the graph, seen from its parameters."""
        out: dict[Value | Node, str] = {}
        for index, param in enumerate(graph.params):
            out[param] = of_text("parameter", str(index), self._type(param.type))
        for node in graph.nodes:
            operands = (self._operand(out, value) for value in node.operands)
            attrs = (f"{name}={self._attr(value)}" for name, value in sorted(node.attrs.items()))
            regions = (self._region(region) for region in node.regions)
            out[node] = of_text(node.op.name, *attrs, "operands", *operands, "regions", *regions)
            for index, value in enumerate(node.results):
                out[value] = f"{out[node]}.{index}"
        return out

    def _operand(self, known: Mapping[Value | Node, str], value: Value) -> str:
        return f"constant {self._type(value.type)}" if isinstance(value, Constant) else known[value]

    def _region(self, region: Graph) -> str:
        known = self._regions[region] = self.digests(region)
        params = (self._type(param.type) for param in region.params)
        return of_text(*params, "results", *(self._operand(known, value) for value in region.results))

    def _type(self, type_: Type) -> str:
        if type_ not in self._types:
            tensor = type_.tensor if isinstance(type_, State) else type_
            renamed = Tensor(tensor.dtype, tuple(dims.substitute(dim, self._symbols) for dim in tensor.dims))
            self._types[type_] = str(State(renamed) if isinstance(type_, State) else renamed)
        return self._types[type_]

    def _attr(self, value: Attr) -> str:
        if isinstance(value, tuple):
            return f"[{','.join(map(self._attr, value))}]"
        if isinstance(value, Expr):
            return str(dims.substitute(value, self._symbols))
        return repr(value)

    # -- sites, top down --

    def assigned(self, graph: Graph, digests: Mapping[Value | Node, str], path: str) -> Graph:
        """The graph with its sites. `path` is the identity of the place where it stands."""
        place = {node: of_text(path, digests[node], str(number)) for node, number in _numbered(graph, digests).items()}
        nodes = tuple(
            node.with_(
                origins=_slots(place[node], len(node.operands)),
                regions=tuple(
                    self.assigned(region, self._regions[region], of_text(place[node], "region", str(index)))
                    for index, region in enumerate(node.regions)
                ),
            )
            for node in graph.nodes
        )
        results = of_text(path, "results", *(self._operand(digests, value) for value in graph.results))
        return Graph(graph.params, nodes, graph.results, _slots(results, len(graph.results)))


def _slots(place: str, count: int) -> tuple[Origins, ...]:
    return tuple(frozenset({Origin(SiteId(f"{place}.{index}"))}) for index in range(count))


def _numbered(graph: Graph, digests: Mapping[Value | Node, str]) -> dict[Node, int]:
    """For each node, how many with the same digest a depth-first walk from the results meets before it."""
    producer = {value: node for node in graph.nodes for value in node.results}
    read = {value for node in graph.nodes for value in node.operands}
    dead_ends = [node for node in graph.nodes if not any(value in read for value in node.results)]
    stack = sorted(dead_ends, key=lambda node: digests[node], reverse=True)
    stack.extend(producer[value] for value in reversed(graph.results) if value in producer)
    numbers: dict[Node, int] = {}
    met: dict[str, int] = {}
    while stack:
        node = stack.pop()
        if node not in numbers:
            number = numbers[node] = met.get(digests[node], 0)
            met[digests[node]] = number + 1
            stack.extend(producer[value] for value in reversed(node.operands) if value in producer)
    return numbers
