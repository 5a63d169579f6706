"""Replaces composite ops by what they are made of."""

from __future__ import annotations

from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass, invariant
from relume.graph.rewriter import Rewriter
from relume.graph.types import Graph


@invariant
def no_composites(graph: Graph) -> str | None:
    """No composite op is left: every op has a lowering of its own, or says that it has none yet."""
    for node in graph.walk():
        if node.op.has(Trait.COMPOSITE):
            return f"{node.op.name} is composite"
    return None


@graph_pass(ensures=(no_composites,), required=True)
def decompose(graph: Graph) -> Graph:
    """Expands every composite op by its own `decompose` facet, until none is left.

    before:  %y = softmax(%x, axis=1)
    after:   %m = reduce_max(%x); %e = exp(sub(%x, %m)); %s = reduce_sum(%e); %y = mul(%e, reciprocal(%s))
    """
    while True:
        rewriter = Rewriter(graph, "decompose")
        for node in graph.nodes:
            if node.op.has(Trait.COMPOSITE):
                assert callable(node.op.decompose), f"{node.op.name} is composite, so it says what it is made of"
                with rewriter.replacing(node) as build:
                    build.give(*node.op.decompose(build, *node.operands, attrs=node.attrs))
                continue
            regions = tuple(decompose(region) for region in node.regions)
            if any(new is not old for new, old in zip(regions, node.regions)):
                rewriter.into(node, regions)
        after = rewriter.finish()
        if after is graph:
            return graph
        graph = after
