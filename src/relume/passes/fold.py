"""Constant folding."""

from __future__ import annotations

import numpy as np

from relume.base import dims
from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Constant, Graph, Node, is_symbolic

GROWTH = 1 << 20
"""Bytes that a folded result may have beyond `MULTIPLE` times its operands': a broadcast stays a broadcast, it does not
become data."""
MULTIPLE = 4
"""Weights transformed for a convolution are up to four times as many (`ops.winograd_weights`)."""


def foldable(node: Node) -> bool:
    """Whether the reference may compute this node now: constant operands, static result, exact on every machine."""
    if node.regions or node.op.has(Trait.EFFECT) or node.op.has(Trait.INEXACT):
        return False
    if not all(isinstance(value, Constant) for value in node.operands):
        return False
    if any(dims.symbols(dim) for value in node.results for dim in value.dims):
        return False
    if any(map(is_symbolic, node.attrs.values())):  # `extents` has no operand, and yet is no constant.
        return False
    return not grows(node)


def grows(node: Node) -> bool:
    """Whether the results, all static, take more than `GROWTH` bytes above `MULTIPLE` times what the operands take."""
    made, read = (
        sum(int(dims.evaluate(value.tensor.elements, {})) * value.dtype.bytes for value in values)
        for values in (node.results, node.operands)
    )
    return made > read * MULTIPLE + GROWTH


@graph_pass()
def fold(graph: Graph) -> Graph:
    """Computes nodes of constants by the op's own reference. Meaning is never written a second time.

    before:  %a = mul(@w, @s); %y = conv(%x, %a)
    after:   %y = conv(%x, @ws)

    Ops whose reference is not exact on every machine (`Trait.INEXACT`) are left to the compiled code.
    """
    rewriter = Rewriter(graph, "fold")
    known: dict[object, Constant] = {}
    for node in graph.nodes:
        regions = tuple(fold(region) for region in node.regions)
        if any(new is not old for new, old in zip(regions, node.regions)):
            rewriter.into(node, regions)
            continue
        operands = tuple(known.get(value, value) for value in node.operands)
        now = node if operands == node.operands else node.with_(operands=operands)
        if not foldable(now) or not all(type(value.type).__name__ == "Tensor" for value in now.results):
            continue
        arrays = [value.data for value in operands if isinstance(value, Constant)]
        with np.errstate(all="ignore"):
            results = node.op.reference(*arrays, attrs=node.attrs, regions=())
        with rewriter.replacing(node) as build:
            made = [
                build.constant(np.ascontiguousarray(array).reshape(np.shape(array)), result.name)
                for array, result in zip(results, node.results)
            ]
            build.give(*made)
        known.update(zip(node.results, made))
    return rewriter.finish()
