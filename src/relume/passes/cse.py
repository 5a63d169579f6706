"""Common subexpression elimination."""

from __future__ import annotations

from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Constant, Graph, Node, Value


@graph_pass()
def cse(graph: Graph) -> Graph:
    """Computes equal things once: same op, attributes and operands (constants: same content).

    before:  %a = exp(%x); %b = exp(%x); %c = add(%a, %b)
    after:   %a = exp(%x); %c = add(%a, %a)

    Nodes with regions and state writes are left alone. Random ops take an explicit key, so equal ones are equal.
    """
    rewriter = Rewriter(graph, "cse")
    first: dict[object, Node] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.regions or node.op.has(Trait.EFFECT):
            continue
        operands = tuple(same.get(value, value) for value in node.operands)
        key = (
            node.op.name,
            tuple(value.content if isinstance(value, Constant) else value for value in operands),
            tuple(node.attrs.items()),
        )
        kept = first.setdefault(key, node)
        if kept is node:
            continue
        for old, new in zip(node.results, kept.results):
            same[old] = new
            rewriter.replace_value(old, new)
        rewriter.remove(node)
    return rewriter.finish()
