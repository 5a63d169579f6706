"""Dead code elimination."""

from __future__ import annotations

from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Graph, Value


@graph_pass()
def dce(graph: Graph) -> Graph:
    """Removes nodes whose results nobody uses. A state write is used by the version chain, so it is never dead.

    before:  %a = exp(%x); %b = neg(%x); return %b
    after:   %b = neg(%x); return %b
    """
    rewriter = Rewriter(graph, "dce")
    used: set[Value] = set(graph.results)
    for node in reversed(graph.nodes):
        if not any(result in used for result in node.results) and not node.op.has(Trait.EFFECT):
            rewriter.remove(node)
            continue
        used.update(node.operands)
        regions = tuple(dce(region) for region in node.regions)
        if any(new is not old for new, old in zip(regions, node.regions)):
            rewriter.into(node, regions)
    return rewriter.finish()
