"""Constant folding."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import numpy as np

from relume.base import dims
from relume.graph.builder import Builder
from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Constant, Graph, Node, Tensor, Value, is_symbolic
from relume.ops import transpose
from relume.runtime.memory import rooms

GROWTH = 1 << 20
"""Bytes that a folded result may have beyond `MULTIPLE` times its operands': a broadcast stays a broadcast, it does not
become data."""
MULTIPLE = 4
"""Weights transformed for a convolution are up to four times as many (`ops.winograd_weights`)."""

LARGE = 1 << 20
"""Bytes of a constant whose forms count."""


def foldable(node: Node, known: Container[Value] = ()) -> bool:
    """Whether the reference may compute this node now: operands that are constants or `known`, a static result, exact
    on every machine."""
    if node.regions or node.op.has(Trait.EFFECT) or node.op.has(Trait.INEXACT):
        return False
    if not all(isinstance(value, Constant) or value in known for value in node.operands):
        return False
    if not all(isinstance(value.type, Tensor) for value in node.results):
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


def constant_values(graph: Graph, waits: Callable[[Node], bool] = lambda node: False) -> dict[Value, Node]:
    """The values that `fold` computes, and the nodes that make them, in order. Those inside regions are not seen.

    Nodes that wait are left out, and with them what depends on them.
    """
    known: dict[Value, Node] = {}
    for node in graph.nodes:
        if foldable(node, known) and not waits(node):
            known.update(dict.fromkeys(node.results, node))
    return known


@graph_pass()
def fold(graph: Graph) -> Graph:
    """Computes nodes of constants by the op's own reference. Meaning is never written a second time.

    before:  %a = mul(@w, @s); %y = conv(%x, %a)
    after:   %y = conv(%x, @ws)

    Ops whose reference is not exact on every machine (`Trait.INEXACT`) are left to the compiled code. Only what a node
    that stays reads becomes a constant, in memory where generated code can use it; what is in between, which may be as
    large as all weights of a model, goes as soon as it has served.
    """
    return _fold(graph, fold.name, constant_values(graph))


@graph_pass()
def fold_early(graph: Graph) -> Graph:
    """As `fold`, but a large constant that is only transposed stays as it is stored.

    before:  %a = transpose(@large, perm=[1,0]); %b = sqrt(@small); %y = matmul(%x, %a)
    after:   %a = transpose(@large, perm=[1,0]); %y = matmul(%x, %a)

    Its last form is the packed one, which `fold` makes of it in one go. Two forms of all weights are enough.
    """
    return _fold(graph, fold_early.name, constant_values(graph, _is_large_transpose))


def _is_large_transpose(node: Node) -> bool:
    return node.op is transpose and math.prod(_shape(node.result)) * node.result.dtype.bytes >= LARGE


def _fold(graph: Graph, name: str, folded: Mapping[Value, Node]) -> Graph:
    """Folds the nodes of `folded`, whose operands must all be constants or in it; those of regions as well."""
    rewriter = Rewriter(graph, name)
    for node in graph.nodes:
        regions = tuple(fold(region) for region in node.regions)
        if any(new is not old for new, old in zip(regions, node.regions)):
            rewriter.into(node, regions)
    computing = dict.fromkeys(folded.values())
    wanted = {value for node in graph.nodes if node not in computing for value in node.operands} | set(graph.results)
    kept = [value for value in folded if value in wanted]
    homes = dict(zip(kept, rooms([(_shape(value), value.dtype.numpy) for value in kept])))
    for node, results in _computed(computing):
        if not any(value in homes for value in node.results):
            continue
        with rewriter.replacing(node) as build:
            build.give(*(_placed(build, value, array, homes) for value, array in zip(node.results, results)))
    for node in reversed(computing):
        if not rewriter.is_removed(node):
            rewriter.remove(node)
    return rewriter.finish()


def _computed(nodes: Iterable[Node]) -> Iterator[tuple[Node, list[np.ndarray]]]:
    """Each node with its results. Of those only what later nodes read is kept, until the last has read it."""
    nodes = list(nodes)
    last = {value: index for index, node in enumerate(nodes) for value in node.operands}
    known: dict[Value, np.ndarray] = {}
    for index, node in enumerate(nodes):
        arrays = [value.data if isinstance(value, Constant) else known[value] for value in node.operands]
        with np.errstate(all="ignore"):
            results = [np.asarray(array) for array in node.op.reference(*arrays, attrs=node.attrs, regions=())]
        del arrays
        known.update((value, array) for value, array in zip(node.results, results) if last.get(value, -1) > index)
        for value in node.operands:
            if last[value] == index:
                known.pop(value, None)
        yield node, results


def _placed(build: Builder, value: Value, array: np.ndarray, homes: Mapping[Value, np.ndarray]) -> Constant:
    """The constant that stands for a folded value."""
    home = homes.get(value)
    if home is None or (home.shape, home.dtype) != (array.shape, array.dtype):  # The rewriter refuses another type.
        return build.constant(array, value.name)
    home[...] = array
    return build.constant(home, value.name)


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(int(dims.evaluate(dim, {})) for dim in value.dims)
