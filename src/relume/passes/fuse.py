"""Fusion: chains of element-wise ops become one kernel, alone or behind the op that feeds them."""

from __future__ import annotations

from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Constant, Graph, Node, Value
from relume.ops import fused

ANCHORS = frozenset({"conv_blocked", "conv_winograd", "depthwise_blocked", "matmul_packed", "conv"})
"""Ops whose kernels take an element-wise epilogue."""

MOST_NODES = 64
MOST_OPERANDS = 12


@graph_pass()
def fuse(graph: Graph) -> Graph:
    """Outlines groups of element-wise nodes, each with at most one anchor in front, into `fused` nodes.

    before:  %c = conv_blocked(%x, @w); %r = relu(%c); %y = add(%r, %z)
    after:   %y = fused(%x, @w, %z, kind="conv_blocked") {...}

    A group grows backwards from its last node. A producer joins when all its users are inside, so that only the
    last value leaves the group: nothing outside can depend on its middle, and no cycle can arise. All its
    element-wise values have the result's extents, so that one loop nest computes them.
    """
    producer = {result: node for node in graph.nodes for result in node.results}
    order = {node: index for index, node in enumerate(graph.nodes)}
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.operands:
            users.setdefault(value, []).append(node)
    leaving = set(graph.results)
    taken: set[Node] = set()
    rewriter = Rewriter(graph, "fuse")
    for last in reversed(graph.nodes):
        if last in taken or not last.op.has(Trait.ELEMENTWISE):
            continue
        group = _grow(last, producer, order, users, leaving, taken)
        if len(group) > 1:
            taken.update(group)
            anchor = next((node for node in group if node.op.name in ANCHORS), None)
            ordered = sorted(group, key=lambda node: (node is not anchor, order[node]))
            rewriter.fuse(ordered, fused, kind=anchor.op.name if anchor else "map")
    return rewriter.finish()


def _grow(
    last: Node,
    producer: dict[Value, Node],
    order: dict[Node, int],
    users: dict[Value, list[Node]],
    leaving: set[Value],
    taken: set[Node],
) -> set[Node]:
    """The largest group that ends in `last`."""
    group, anchor = {last}, None
    dims = last.result.dims
    while len(group) < MOST_NODES:
        candidates = {
            producer[value] for node in group if node is not anchor for value in node.operands if value in producer
        }
        for node in sorted(candidates - group - taken, key=lambda node: -order[node]):
            is_anchor = node.op.name in ANCHORS
            if not (node.op.has(Trait.ELEMENTWISE) or (is_anchor and anchor is None)):
                continue
            if node.result in leaving or node.result.dims != dims:
                continue
            if any(user not in group or user is anchor for user in users[node.result]):
                continue
            if _operands(group | {node}) > MOST_OPERANDS:
                continue
            group.add(node)
            anchor = node if is_anchor else anchor
            break
        else:
            return group
    return group


def _operands(group: set[Node]) -> int:
    """How many values would enter the group."""
    inside = {result for node in group for result in node.results}
    entering = {value for node in group for value in node.operands if value not in inside}
    return sum(1 for value in entering if not (isinstance(value, Constant) and value.data.size == 1))
