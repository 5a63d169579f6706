"""Computes in f32 what has too few bits to be computed in: sums, products, norms of f16 and bf16."""

from __future__ import annotations

from relume.base.dtypes import bf16, f16, f32
from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass, invariant
from relume.graph.rewriter import Rewriter
from relume.graph.types import Graph, Node, Tensor
from relume.ops.elementwise import cast

NARROW = (f16, bf16)


def _is_narrow(node: Node) -> bool:
    """Whether the node computes over more than one element of a narrow type, or is made of such nodes.

    Element-wise kernels round after each step by themselves; what only moves elements does not look at them.
    """
    op = node.op
    if op.has(Trait.DATA_MOVEMENT) or op.has(Trait.EFFECT) or op.has(Trait.REGION):
        return False
    if op.has(Trait.ELEMENTWISE) and not op.has(Trait.COMPOSITE):
        return False
    return any(isinstance(value.type, Tensor) and value.dtype in NARROW for value in node.operands)


@invariant
def no_narrow_arithmetic(graph: Graph) -> str | None:
    """Nothing is summed, multiplied up or normalised in f16 or bf16."""
    for node in graph.walk():
        if _is_narrow(node):
            return f"{node.op.name} of {next(v.dtype for v in node.operands if v.dtype in NARROW)}"
    return None


@graph_pass(ensures=(no_narrow_arithmetic,), required=True)
def widen(graph: Graph) -> Graph:
    """Puts casts around every op that computes over several elements of f16 or bf16.

    before:  %y = matmul(%a, %b) : f16[2,3]
    after:   %p = matmul(cast(%a), cast(%b)) : f32[2,3]; %y = cast(%p, to=f16)
    """
    rewriter = Rewriter(graph, "widen")
    for node in graph.nodes:
        regions = tuple(widen(region) for region in node.regions)
        if any(new is not old for new, old in zip(regions, node.regions)):
            rewriter.into(node, regions)
        elif _is_narrow(node):
            with rewriter.replacing(node) as build:
                operands = [
                    build.apply(cast, value, to=f32)
                    if isinstance(value.type, Tensor) and value.dtype in NARROW
                    else value
                    for value in node.operands
                ]
                wide = build.emit(node.op, *operands, **node.attrs)
                build.give(
                    *(
                        build.apply(cast, value, to=wanted.dtype) if value.dtype is not wanted.dtype else value
                        for value, wanted in zip(wide, node.results)
                    )
                )
    return rewriter.finish()
