"""What depends on states and constants only is computed once for each version of them, not in every run.

`derive` outlines it into one node, `fused` of the kind `derived`, whose operands are states. `split` makes of that node
a function of its own, whose outputs are further inputs of the first: the runtime keeps them until somebody writes the
states. Who does not split lowers the node like its region, and computes it in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter, clone
from relume.graph.types import Constant, Function, Graph, Node, State, Value, is_symbolic
from relume.ops import broadcast, fused, reshape, slice_, state_read, transpose
from relume.passes.fold import grows

KIND = "derived"

VIEWS = frozenset({state_read, reshape, transpose, broadcast, slice_})
"""Ops that look at what is there: alone they are not worth a copy of it."""


def steady(graph: Graph) -> frozenset[Value]:
    """The states of a graph that writes none, and the values that depend on nothing but them and constants.

    All are of fixed extents. Empty where the graph takes no other input: then all of it is computed when it is asked
    for.
    """
    states = [value for value in graph.params if isinstance(value.type, State)]
    writes = any(node.op.has(Trait.EFFECT) for node in graph.nodes)
    if writes or not states or len(states) == len(graph.params):
        return frozenset()
    known = {value for value in states if value.tensor.is_static}
    for node in graph.nodes:
        if all(isinstance(value, Constant) or value in known for value in node.operands) and _is_fixed(node):
            known.update(node.results)
    return frozenset(known)


def _is_fixed(node: Node) -> bool:
    """Whether a node has no regions, and everything about it is known now."""
    open_ = any(map(is_symbolic, node.attrs.values())) or not all(value.tensor.is_static for value in node.results)
    return not node.regions and not open_


@graph_pass()
def derive(graph: Graph) -> Graph:
    """Outlines what depends on states and constants only into one `fused` node of the kind `derived`.

    before:  %m = state_read(%w); %p = pack(%m); %y = matmul_packed(%x, %p)
    after:   %p = fused(%w, kind="derived") {(%w') %m = state_read(%w'); %p = pack(%m); yield %p}
             %y = matmul_packed(%x, %p)

    What leaves it are the last such values that are more than views of states, and not much larger than what they are
    made of (a broadcast stays outside). A graph that writes a state is left alone: it would derive anew in each run.
    """
    values = steady(graph)
    inside = [node for node in graph.nodes if any(value in values for value in node.results)]
    leaving = _leaving(graph, inside)
    if not leaving:
        return graph
    rewriter = Rewriter(graph, "derive")
    rewriter.fuse(_cone(inside, leaving), fused, leaving, kind=KIND)
    return rewriter.finish()


def _leaving(graph: Graph, inside: Sequence[Node]) -> list[Value]:
    """The values of `inside` to keep, in order: the last before something else that are worth it."""
    group = set(inside)
    wanted = {value for node in graph.nodes if node not in group for value in node.operands} | set(graph.results)
    worth: set[Value] = set()
    for node in inside:
        if node.op not in VIEWS or any(value in worth for value in node.operands):
            worth.update(node.results)
    leaving: list[Value] = []
    for node in reversed(inside):
        for value in node.results:
            if value in wanted and value in worth and not grows(node):
                leaving.append(value)
            elif value in wanted:
                wanted.update(node.operands)
    return leaving[::-1]


def _cone(nodes: Sequence[Node], values: Sequence[Value]) -> list[Node]:
    """Those of the nodes that the values depend on, in order."""
    wanted, found = set(values), []
    for node in reversed(nodes):
        if any(value in wanted for value in node.results):
            wanted.update(node.operands)
            found.append(node)
    return found[::-1]


# --- two functions --------------------------------------------------------------------------------------------------


def split(fn: Function) -> tuple[Function, Function | None]:
    """The function with what `derive` has outlined as inputs behind its own, and the function that computes those.

    The second has those of the states that it needs, and no inputs. None, and the same function, where nothing is
    derived.
    """
    parts = [node for node in fn.graph.nodes if _is_derived(node, fn)]
    if not parts or fn.next_states != fn.states:
        return fn, None
    taken = {value.name for value in fn.graph.params}
    names = (name for name in map("derived{}".format, count()) if name not in taken)
    params = {value: Value(value.type, next(names)) for node in parts for value in node.results}

    read = {value for node in parts for value in node.operands}
    states = {value: slot for value, slot in zip(fn.states, fn.graph.origins[len(fn.outputs) :]) if value in read}
    origins = (*(slot for node in parts for slot in node.regions[0].origins), *states.values())
    rewriter = Rewriter(Graph(tuple(states), tuple(parts), (*params, *states), origins), "derive")
    for node in parts:
        rewriter.inline(node)
    made = tuple(value.name for value in params.values())
    derived = Function(f"{fn.name}.{KIND}", clone(rewriter.finish()), len(states), made)

    def now(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(params.get(value, value) for value in values)

    graph = Graph(
        (*fn.inputs, *params.values(), *fn.states),
        tuple(node.with_(operands=now(node.operands)) for node in fn.graph.nodes if node not in parts),
        now(fn.graph.results),
        fn.graph.origins,
    )
    return fn.with_graph(graph), derived


def _is_derived(node: Node, fn: Function) -> bool:
    """Whether a node computes from the states as they come in, and constants, values of fixed extents."""
    return (
        node.op is fused
        and node.attrs["kind"] == KIND
        and all(value in fn.states or isinstance(value, Constant) for value in node.operands)
        and all(value.tensor.is_static for value in (*node.operands, *node.results))
    )
