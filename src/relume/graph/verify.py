"""The verifier of graphs. What it demands, in prose:

1.  **Single assignment.** Every value is defined once, by one node or as one parameter, before its first use.
2.  **Regions are closed.** A node has the regions that its op declares; inside one, only its own parameters, its own
    values and constants are used, and no value or node belongs to two graphs.
3.  **Nodes fit their ops.** The number of operands is one that the op takes, and the attributes are exactly the ones
    that it declares.
4.  **Types are inferred.** Each node's result types are what the op infers from operands, attributes and regions; so
    a region's parameters and results have the types that its op demands.
5.  **Constants are immutable.** A constant's array is read-only and has the type that the constant states.
6.  **States are linear.** A node with state operands and state results consumes each of those operands and yields
    one next version of each; a node with state operands and no state results only reads. A version is consumed at
    most once, by a node or by a result slot, and never read after it was consumed; a version that a node yields is
    consumed exactly once, so that no write is lost.
7.  **Next states descend.** The function's i-th next state is a version of its i-th state, and a region's likewise.
8.  **The signature is whole.** Inputs are tensors and states are states; their names are distinct and not empty; the
    outputs are tensors and have one distinct name each, which is no state's: results go by name.
9.  **Symbols are bound.** Every symbol in a type or an attribute is, by itself, an extent of some input; or of a
    region's parameter or a control-flow node's result, where it stands for what is known only when that has run.
10. **Origins are complete.** Every operand slot and every result slot has an origin or says why there is none.

Each is a function below, in this order; an invariant may rely on the ones before it. `verify` raises at the first
one that does not hold, and shows the place in the model and the nodes around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Expr
from relume.base.errors import VerifyError
from relume.graph.opdef import InferError
from relume.graph.printer import around
from relume.graph.types import Constant, Function, Graph, Node, Origin, State, Type, Unknown, Value


@dataclass(frozen=True)
class Complaint:
    """What is wrong, and where: at a node, at a graph's results, or in the function as a whole."""

    what: str
    place: Node | Graph | None = None
    expected: object = None
    got: object = None


def verify(fn: Function) -> None:
    """Raises `VerifyError` where one of the invariants does not hold."""
    complaint = first_complaint(fn)
    if complaint is None:
        return
    invariant, found = complaint
    place = found.place
    where = f"@{fn.name}"
    if isinstance(place, Node):
        where += f", {place.op.name}" + (f" ({place.location})" if place.location else "")
    elif isinstance(place, Graph):
        where += ", results"
    raise VerifyError(
        f"{found.what} [{invariant}]",
        where=where,
        expected=found.expected,
        got=found.got,
        context=around(fn, place),
        hint="the pass or front end that made this graph is wrong; verify after each pass (--check) to find it",
    )


def first_complaint(fn: Function) -> tuple[str, Complaint] | None:
    """The name of the first invariant that does not hold, and what it says; None for a valid function."""
    for invariant in INVARIANTS:
        for complaint in invariant(fn):
            return invariant.__name__.replace("_", "-"), complaint
    return None


def _graphs(graph: Graph) -> Iterator[Graph]:
    """The graph and every region in it."""
    yield graph
    for node in graph.nodes:
        for region in node.regions:
            yield from _graphs(region)


def _show(value: Value) -> str:
    sigil = "@" if isinstance(value, Constant) else "%"
    return f"{sigil}{value.name or '?'} : {value.type}"


# --- the invariants -------------------------------------------------------------------------------------------------


def single_assignment(fn: Function) -> Iterator[Complaint]:
    """Every value is defined once, by a node or as a parameter, before its first use; regions see no outer value."""
    owner: dict[Value, Graph] = {}
    for graph in _graphs(fn.graph):
        defined: set[Value] = set()

        def define(value: Value, place: Node | Graph, graph: Graph = graph) -> Iterator[Complaint]:
            if isinstance(value, Constant):
                yield Complaint(f"the constant {_show(value)} is defined like a value", place)
            if value in owner:
                yield Complaint(f"{_show(value)} is defined twice", place, "one definition", "two")
            owner[value] = graph

        def use(value: Value, place: Node | Graph, defined: set[Value] = defined) -> Iterator[Complaint]:
            if not isinstance(value, Constant) and value not in defined:
                yield Complaint(
                    f"{_show(value)} is not defined here", place, "a parameter, an earlier value or a constant"
                )

        for param in graph.params:
            yield from define(param, graph)
            defined.add(param)
        for node in graph.nodes:
            for value in node.operands:
                yield from use(value, node)
            for value in node.results:
                yield from define(value, node)
                defined.add(value)
        for value in graph.results:
            yield from use(value, graph)


def closed_regions(fn: Function) -> Iterator[Complaint]:
    """A node has the regions that its op declares, and no graph and no node stands in two places."""
    seen: set[Graph | Node] = {fn.graph}
    for node in fn.graph.walk():
        if len(node.regions) != len(node.op.regions):
            yield Complaint(
                f"{node.op.name} takes {len(node.op.regions)} regions", node, len(node.op.regions), len(node.regions)
            )
        parts: tuple[Node | Graph, ...] = (node, *node.regions)
        for part in parts:
            if part in seen:
                yield Complaint("the same node or region stands in two places", node, "a clone", "the same object")
            seen.add(part)


def nodes_fit_their_ops(fn: Function) -> Iterator[Complaint]:
    """The number of operands is one that the op takes; the attributes are exactly the declared ones."""
    for node in fn.graph.walk():
        try:
            node.op.check_arity(len(node.operands))
            node.op.complete(node.attrs)
        except InferError as error:
            yield Complaint(error.what, node, error.expected, error.got)
        missing = [attr.name for attr in node.op.attrs if attr.name not in node.attrs]
        if missing:
            yield Complaint(f"{node.op.name} lacks the attribute {missing[0]!r}", node, "every attribute", "none")


def types_are_inferred(fn: Function) -> Iterator[Complaint]:
    """Each node's result types are what its op infers; inner nodes are looked at before the node that owns them."""
    yield from _types_in(fn.graph)


def _types_in(graph: Graph) -> Iterator[Complaint]:
    for node in graph.nodes:
        for region in node.regions:
            yield from _types_in(region)
        try:
            inferred = tuple(node.op.infer([value.type for value in node.operands], node.attrs, node.regions))
        except InferError as error:
            yield Complaint(error.what, node, error.expected, error.got)
            continue
        found = tuple(value.type for value in node.results)
        if inferred != found:
            yield Complaint(f"{node.op.name} infers other result types", node, _types(inferred), _types(found))


def _types(types: tuple[Type, ...]) -> str:
    return ", ".join(map(str, types)) or "none"


def constants_are_immutable(fn: Function) -> Iterator[Complaint]:
    """A constant's array is read-only and has the type that the constant states."""
    for graph in _graphs(fn.graph):
        uses: list[tuple[Value, Node | Graph]] = [(value, node) for node in graph.nodes for value in node.operands]
        uses.extend((value, graph) for value in graph.results)
        for value, place in uses:
            if not isinstance(value, Constant):
                continue
            if value.data.flags.writeable:
                yield Complaint(f"the data of {_show(value)} can be written", place, "a read-only array (Constant.of)")
            if value.data.dtype != value.dtype.numpy or value.data.shape != value.dims:
                got = f"{value.data.dtype}{list(value.data.shape)}"
                yield Complaint(f"the data of {_show(value)} has another type", place, value.type, got)


def states_are_linear(fn: Function) -> Iterator[Complaint]:
    """A version is consumed at most once and not read afterwards; what a node yields is consumed exactly once."""
    for graph in _graphs(fn.graph):
        consumed: dict[Value, Node | Graph] = {}
        for node in graph.nodes:
            held = [value for value in node.operands if isinstance(value.type, State)]
            following = [value for value in node.results if isinstance(value.type, State)]
            if following and len(following) != len(held):
                yield Complaint(
                    f"{node.op.name} yields a next version of each state that it takes", node, len(held), len(following)
                )
            for value in held:
                if value in consumed:
                    yield _used_up(value, consumed[value], node)
                if following:
                    consumed[value] = node
        for value in graph.results:
            if isinstance(value.type, State):
                if value in consumed:
                    yield _used_up(value, consumed[value], graph)
                consumed[value] = graph
        for node in graph.nodes:
            for value in node.results:
                if isinstance(value.type, State) and value not in consumed:
                    yield Complaint(f"the version {_show(value)} is lost", node, "a use as a next state", "no use")


def _used_up(value: Value, first: Node | Graph, second: Node | Graph) -> Complaint:
    return Complaint(
        f"the state version {_show(value)} was consumed by {_place(first)} before its use by {_place(second)}",
        second,
        "a use of the latest version",
    )


def _place(place: Node | Graph) -> str:
    if isinstance(place, Graph):
        return "the results"
    results = ", ".join(f"%{value.name or '?'}" for value in place.results)
    at = f" ({place.location})" if place.location else ""
    return f"{place.op.name} -> {results}{at}" if results else f"{place.op.name}{at}"


def next_states_descend(fn: Function) -> Iterator[Complaint]:
    """The i-th next state of a graph is a version of its i-th state parameter."""
    for graph in _graphs(fn.graph):
        first: dict[Value, Value] = {value: value for value in graph.params if isinstance(value.type, State)}
        wanted = list(first)
        for node in graph.nodes:
            held = (value for value in node.operands if isinstance(value.type, State))
            following = (value for value in node.results if isinstance(value.type, State))
            first.update((new, first[old]) for old, new in zip(held, following))
        found = [first[value] for value in graph.results if isinstance(value.type, State)]
        if found and found != wanted:
            yield Complaint(
                "the next states are not versions of the states, in order",
                graph,
                ", ".join(map(_show, wanted)),
                "versions of " + ", ".join(map(_show, found)),
            )


def signature_is_whole(fn: Function) -> Iterator[Complaint]:
    """Inputs and outputs are tensors, states are states, and all of them have distinct names."""
    for value in fn.inputs:
        if isinstance(value.type, State):
            yield Complaint(f"the input {_show(value)} is a state", None, "a tensor", value.type)
    for value in fn.states:
        if not isinstance(value.type, State):
            yield Complaint(f"the state {_show(value)} is no state", None, "a state", value.type)
    if [value.type for value in fn.next_states] != [value.type for value in fn.states]:
        yield Complaint("each state has one next version, of the same type", fn.graph, len(fn.states))
    for value in fn.outputs:
        if isinstance(value.type, State):
            yield Complaint(f"the output {_show(value)} is a state", fn.graph, "a tensor", value.type)
    if len(fn.output_names) != len(fn.outputs):
        yield Complaint("each output has a name", fn.graph, len(fn.outputs), len(fn.output_names))
    for kind, names in (("inputs and states", [v.name for v in fn.graph.params]), ("outputs", list(fn.output_names))):
        for index, name in enumerate(names):
            if not name or name in names[:index]:
                yield Complaint(f"the {kind} have distinct names", fn.graph, "another name", repr(name))
    for value in fn.states:
        if value.name in fn.output_names:
            what = f"the output {value.name!r} is named like the state {_show(value)}"
            yield Complaint(what, fn.graph, "another name for the output", repr(value.name))


def symbols_are_bound(fn: Function) -> Iterator[Complaint]:
    """Every symbol is by itself an extent of an input, of a region's parameter or of a control-flow node's result."""
    binding = list(fn.inputs)
    for node in fn.graph.walk():
        if node.regions:
            binding.extend((*node.results, *(param for region in node.regions for param in region.params)))
    bound = frozenset(dims.symbol_name(dim) for value in binding for dim in value.dims)

    def unbound(part: object) -> frozenset[str]:
        if isinstance(part, tuple):
            return frozenset().union(*map(unbound, part))
        return frozenset(dims.symbols(part) - bound) if isinstance(part, Expr) else frozenset()

    def complain(names: frozenset[str], place: Node | None) -> Iterator[Complaint]:
        if names:
            yield Complaint(
                f"the symbol {min(names)} is bound by no input",
                place,
                "an input that has it as an extent",
                ", ".join(sorted(filter(None, bound))) or "no symbols",
            )

    for value in fn.graph.params:
        yield from complain(unbound(value.dims), None)
    for node in fn.graph.walk():
        values = (*node.results, *(param for region in node.regions for param in region.params))
        for part in (*(value.dims for value in values), *node.attrs.values()):
            yield from complain(unbound(part), node)


def origins_are_complete(fn: Function) -> Iterator[Complaint]:
    """Every operand slot and every result slot has at least one origin, or says why there is none."""
    for graph in _graphs(fn.graph):
        places: tuple[Node | Graph, ...] = (*graph.nodes, graph)
        for place in places:
            for index, slot in enumerate(place.origins):
                known = isinstance(slot, frozenset) and slot and all(isinstance(part, Origin) for part in slot)
                if not known and not isinstance(slot, Unknown):
                    yield Complaint(f"slot {index} has no origin", place, "origins, or Unknown(pass, reason)", slot)


INVARIANTS: tuple[Callable[[Function], Iterator[Complaint]], ...] = (
    single_assignment,
    closed_regions,
    nodes_fit_their_ops,
    types_are_inferred,
    constants_are_immutable,
    states_are_linear,
    next_states_descend,
    signature_is_whole,
    symbols_are_bound,
    origins_are_complete,
)
