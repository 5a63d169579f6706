"""Groups: the nodes that become one kernel.

A group is a head (a convolution, a matrix product, any op with a kernel of its own) followed by element-wise steps,
or element-wise steps alone, or such steps with reductions over the trailing axes among them (rows), these between two
matrix products (attention). An op that stands
by itself is a group without steps, a `fused` region is a group with them, so both go one way. A region that is no such
group means the same as its nodes one by one, and becomes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from relume.base.dims import Dim
from relume.base.locations import Location
from relume.graph.types import Attr, Constant, Graph, Node, Value
from relume.kernels.elementwise import STEPS
from relume.kernels.stages import REDUCTIONS, fits_rows

EPILOGUES = frozenset({"conv", "conv_blocked", "conv_winograd", "depthwise_blocked", "matmul", "matmul_packed"})
"""The ops whose kernels run steps on each result before they store it."""


@dataclass(frozen=True)
class Group:
    """`head` (None: steps alone) on `operands`, then `steps`; `results` are their values, to be put into `targets`.

    With `rows` some steps reduce the last axes, and those are the extents of all axes together. Then there is no head,
    or there are two products: `head`, and `tail`, which multiplies the steps' result by the last of `operands`.

    Operands and targets are values of the function. Steps and results are nodes and values as they stand in a region;
    `names` gives the function's value for each value that enters the region.
    """

    head: Node | None
    operands: tuple[Value, ...]
    steps: tuple[Node, ...]
    results: tuple[Value, ...]
    targets: tuple[Value, ...]
    names: Mapping[Value, Value]
    location: Location | None
    rows: tuple[Dim, ...] | None = None
    tail: Node | None = None

    @property
    def op(self) -> str:
        """What the group is, for tables and messages."""
        if self.tail is not None:
            return "attention"
        if self.head is not None:
            return self.head.op.name
        return "map" if self.rows is None else "rows"


def uses_of(group: Group) -> tuple[Value, ...]:
    """The function's values that a group takes, each once."""
    heads = group.head.results if group.head is not None else ()
    inner = {*heads, *(result for step in group.steps for result in step.results)}
    taken = (*(value for step in group.steps for value in step.operands), *group.results)
    return tuple(dict.fromkeys((*group.operands, *(group.names.get(v, v) for v in taken if v not in inner))))


def groups_of(graph: Graph) -> Iterator[Group]:
    """The graph's nodes as groups, in order."""
    for node in graph.nodes:
        if node.op.name == "fused":
            yield from _region(node)
        else:
            yield _single(node, node.operands, node.results, node.location)


def _single(node: Node, operands: tuple[Value, ...], targets: tuple[Value, ...], place: Location | None) -> Group:
    names = {inner: outer for inner, outer in zip(node.operands, operands) if inner is not outer}
    if node.op.name in STEPS:
        return Group(None, (), (node,), node.results, targets, names, place)
    return Group(node, operands, (), node.results, targets, names, place)


def _region(node: Node) -> Iterator[Group]:
    region = node.regions[0]
    names: dict[Value, Value] = dict(zip(region.params, node.operands))
    nodes = region.nodes
    shape = node.results[0].dims if node.results else ()
    head = nodes[0] if nodes and nodes[0].op.name in EPILOGUES else None
    steps = nodes[1:] if head else nodes
    inside = [result for step in nodes for result in step.results]
    if (
        all(step.op.name in STEPS for step in steps)
        and all(value.dims == shape for value in region.results)
        and (head is None or head.result.dims == shape)
        and all(_reaches(value.dims, shape) for value in (*inside, *region.results))
    ):
        operands = tuple(names.get(value, value) for value in head.operands) if head else ()
        yield Group(head, operands, steps, region.results, node.results, names, node.location)
        return
    extents = rows_of(nodes, region.results)
    if extents is not None:
        yield Group(None, (), nodes, region.results, node.results, names, node.location, extents)
        return
    extents = _scores_of(region)
    if extents is not None:
        first, last = nodes[0], nodes[-1]
        operands = tuple(names.get(value, value) for value in (*first.operands, last.operands[1]))
        result = last.operands[0]
        yield Group(first, operands, nodes[1:-1], (result,), node.results, names, node.location, extents, last)
        return
    yield from _one_by_one(node, region, names)


def rows_of(nodes: Sequence[Node], results: Sequence[Value]) -> tuple[Dim, ...] | None:
    """The extents over which nodes are one kernel over rows; None where they are not.

    All their reductions are of the same last axes of such values and keep them (a result need not), everything else is
    element-wise, and every result has the full extents or one element a row.
    """
    reductions = [node for node in nodes if node.op.name in REDUCTIONS]
    if not reductions or not all(node.op.name in STEPS or node in reductions for node in nodes):
        return None
    full, axes = reductions[0].operands[0].dims, reductions[0].attrs["axes"]
    count = len(axes)  # type: ignore[arg-type]
    kept = full[: len(full) - count]
    read = dict.fromkeys(value for node in nodes for value in node.operands)
    made = {node.result for node in nodes}
    if (
        count
        and axes == tuple(range(len(kept), len(full)))
        and all(node.operands[0].dims == full and node.attrs["axes"] == axes for node in reductions)
        and all(node.attrs["keep"] or node.result not in read for node in reductions)
        and all(fits_rows(value.dims, full, count) for value in read)
        and all(_reaches(value.dims, full) for value in read if value in made)
        and all(_is_by_row(value, nodes, full, kept) for value in results)
        and any(not (isinstance(value, Constant) and value.data.size == 1) for value in read if value not in made)
    ):
        return full
    return None


def _is_by_row(value: Value, nodes: Sequence[Node], full: Sequence[Dim], kept: Sequence[Dim]) -> bool:
    """Whether a result has the full extents, or one element for each row."""
    maker = next((node for node in nodes if value in node.results), None)
    if maker is None:
        return False
    if maker.op.name in REDUCTIONS and not maker.attrs["keep"]:
        return True
    return value.dims in (tuple(full), (*kept, *(1,) * (len(full) - len(kept))))


def _scores_of(region: Graph) -> tuple[Dim, ...] | None:
    """The extents of what is between the two products of a region that is attention; None where it is not: a product
    of floats, steps over its rows, and the product of their result with something else."""
    if len(region.nodes) < 3 or {region.nodes[0].op.name, region.nodes[-1].op.name} != {"matmul"}:
        return None
    first, *steps, last = region.nodes
    scores, weights = first.result, last.operands[0]
    made = {node.result for node in steps}
    if (
        first.operands[0].dtype.is_float
        and rows_of(steps, (weights,)) == scores.dims == weights.dims
        and all(len(node.attrs["axes"]) == 1 for node in steps if node.op.name in REDUCTIONS)  # type: ignore[arg-type]
        and last.result.dims[:-1] == scores.dims[:-1]
        and last.operands[1] not in {scores, *made}
        and region.results == last.results
    ):
        return scores.dims
    return None


def _reaches(dims: Sequence[Dim], shape: Sequence[Dim]) -> bool:
    """Whether `dims` broadcast to `shape` for every binding, shape itself unchanged."""
    short = shape[len(shape) - len(dims) :]
    return len(dims) <= len(shape) and all(dim == 1 or dim == wanted for dim, wanted in zip(dims, short))


def _one_by_one(node: Node, region: Graph, names: dict[Value, Value]) -> Iterator[Group]:
    """The region's nodes as groups of their own. Its values are made anew: two nodes may share one region."""
    outward: dict[Value, Value] = {}
    for inner, outer in zip(region.results, node.results):
        if inner not in names and not isinstance(inner, Constant):
            outward.setdefault(inner, outer)
    for part in region.nodes:
        targets = tuple(outward.get(result, Value(result.type, result.name)) for result in part.results)
        operands = tuple(names.get(value, value) for value in part.operands)
        names = {**names, **dict(zip(part.results, targets))}
        yield _single(part, operands, targets, part.location or node.location)
    for inner, outer in zip(region.results, node.results):
        if names.get(inner) is not outer:  # A parameter, a constant or a value given twice.
            yield Group(None, (), (), (inner,), (outer,), names, node.location)


def attr(group: Group, name: str) -> Attr:
    """An attribute of the group's head."""
    assert group.head is not None
    return group.head.attrs[name]


def axis_of(group: Group, name: str, rank: int) -> int:
    """An attribute that names an axis, counted from the front."""
    return cast(int, attr(group, name)) % max(rank, 1)
