"""Fusion: chains of element-wise ops become one kernel, alone, behind the op that feeds them, or with the reductions of
rows among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from relume.base.dims import Dim
from relume.graph.opdef import Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Constant, Graph, Node, Value
from relume.kernels.stages import REDUCTIONS, fits_rows
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

    Where no anchor is in front, reductions of the last axes join too, and with them what has one element a row:

    before:  %m = reduce_max(%x); %e = exp(sub(%x, %m)); %s = reduce_sum(%e); %y = mul(%e, reciprocal(%s))
    after:   %y = fused(%x, kind="rows") {...}

    Where such rows are made of the product of two matrices, and are multiplied by a third, the products join too:

    before:  %s = matmul(%q, %k); ...; %y = matmul(%p, %v)
    after:   %y = fused(%q, %k, ..., %v, kind="attention") {...}
    """
    rewriter = Rewriter(graph, "fuse")
    uses = _Uses.of(graph)
    taken: set[Node] = set()
    for last in reversed(graph.nodes):
        if last in taken:
            continue
        if last.op.name == "matmul":
            group = _attention(last, uses, taken)
            if group:
                taken.update(group)
                rewriter.fuse(sorted(group, key=uses.order.__getitem__), fused, kind="attention")
            continue
        if not (last.op.has(Trait.ELEMENTWISE) or last.op.name in REDUCTIONS):
            continue
        group = _chain(last, uses, taken) if last.op.has(Trait.ELEMENTWISE) else {last}
        anchor = _anchor(group)
        rows = _rows(last, uses, taken) if anchor is None else {last}
        if any(map(_reduces, rows)) and len(rows) > 1:
            taken.update(rows)
            rewriter.fuse(sorted(rows, key=uses.order.__getitem__), fused, kind="rows")
        elif len(group) > 1:
            taken.update(group)
            ordered = sorted(group, key=lambda node: (node is not anchor, uses.order[node]))
            rewriter.fuse(ordered, fused, kind=anchor.op.name if anchor else "map")
    return rewriter.finish()


@dataclass(frozen=True)
class _Uses:
    """Who makes and who reads what."""

    producer: Mapping[Value, Node]
    order: Mapping[Node, int]
    users: Mapping[Value, Sequence[Node]]
    leaving: frozenset[Value]

    @staticmethod
    def of(graph: Graph) -> _Uses:
        users: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in node.operands:
                users.setdefault(value, []).append(node)
        producer = {result: node for node in graph.nodes for result in node.results}
        order = {node: index for index, node in enumerate(graph.nodes)}
        return _Uses(producer, order, users, frozenset(graph.results))

    def feeds_only(self, node: Node, group: Set[Node]) -> bool:
        """Whether the result of a node is read by this group alone."""
        return node.result not in self.leaving and all(user in group for user in self.users[node.result])

    def candidates(self, group: set[Node], taken: set[Node]) -> list[Node]:
        """The free nodes that feed a group and nothing else, the last ones first. The inputs of its anchor stay
        outside."""
        inside = {node for node in group if node.op.name not in ANCHORS}
        found = {self.producer[value] for node in inside for value in node.operands if value in self.producer}
        return sorted(
            (
                node
                for node in found - group - taken
                if len(node.results) == 1
                and self.feeds_only(node, set(inside))
                and _operands(group | {node}) <= MOST_OPERANDS
            ),
            key=lambda node: -self.order[node],
        )


def _anchor(group: set[Node]) -> Node | None:
    return next((node for node in group if node.op.name in ANCHORS), None)


def _chain(last: Node, uses: _Uses, taken: set[Node]) -> set[Node]:
    """The largest group of one shape that ends in `last`."""
    group = {last}
    while len(group) < MOST_NODES:
        for node in uses.candidates(group, taken):
            may_join = node.op.has(Trait.ELEMENTWISE) or (node.op.name in ANCHORS and _anchor(group) is None)
            if may_join and node.result.dims == last.result.dims:
                group.add(node)
                break
        else:
            return group
    return group


def _rows(last: Node, uses: _Uses, taken: set[Node]) -> set[Node]:
    """The largest group over rows that ends in `last`: all its values have the extents that its reductions reduce, or
    one element for each row. Without a reduction where there is none.

    What can be done behind an anchor is left to it: there it costs no pass over memory at all.
    """
    group = {last}
    row = _row(last, uses, taken)
    while row is not None and len(group) < MOST_NODES:
        for node in uses.candidates(group, taken):
            if node.op.name in REDUCTIONS:
                joins = _Row.of(node) == row and node.attrs["keep"]
            else:
                joins = row.has(node) and _anchor(_chain(node, uses, taken)) is None
            if joins:
                group.add(node)
                break
        else:
            return group
    return group


def _attention(last: Node, uses: _Uses, taken: set[Node]) -> set[Node]:
    """The product `last`, the rows that are its left side, and the product that these are made of; nothing where that
    is not so."""
    weights = uses.producer.get(last.operands[0])
    if weights is None or not uses.feeds_only(weights, {last}) or not last.result.dtype.is_float:
        return set()
    rows = _rows(weights, uses, taken)
    row = _row(weights, uses, taken)
    if row is None or row.count != 1 or row.full != weights.result.dims or not any(map(_reduces, rows)):
        return set()
    scores = [
        node
        for value in dict.fromkeys(value for node in rows for value in node.operands)
        if (node := uses.producer.get(value)) is not None
        and node.op.name == "matmul"
        and node.result.dims == row.full
        and uses.feeds_only(node, rows)
    ]
    group = {*rows, *scores[:1], last}
    fits = last.result.dims[:-1] == row.full[:-1] and _operands(group) <= MOST_OPERANDS
    return group if scores and fits and not group & taken else set()


def _reduces(node: Node) -> bool:
    return node.op.name in REDUCTIONS


@dataclass(frozen=True)
class _Row:
    """What a reduction of the last axes reduces: all extents, and how many of the axes are the row."""

    full: tuple[Dim, ...]
    count: int

    @staticmethod
    def of(reduction: Node) -> _Row | None:
        """None where other axes than the last are reduced, or none."""
        full, axes = reduction.operands[0].dims, reduction.attrs["axes"]
        assert isinstance(axes, tuple)
        return _Row(full, len(axes)) if axes and axes == tuple(range(len(full) - len(axes), len(full))) else None

    def has(self, node: Node) -> bool:
        """Whether an element-wise node has all extents, or one element for each row, and so have its operands, as far
        as the row goes."""
        by_row = (*self.full[: -self.count], *(1,) * self.count)
        return (
            node.op.has(Trait.ELEMENTWISE)
            and node.result.dims in (self.full, by_row)
            and all(fits_rows(value.dims, self.full, self.count) for value in node.operands)
        )


def _row(last: Node, uses: _Uses, taken: set[Node]) -> _Row | None:
    """The row of the nearest reduction behind element-wise nodes: what a group that ends in `last` would be over."""
    if last.op.name in REDUCTIONS:
        return _Row.of(last)
    seen, level = {last}, [last]
    while level and len(seen) < MOST_NODES:
        found = {uses.producer[value] for node in level for value in node.operands if value in uses.producer}
        level = sorted(found - seen - taken, key=lambda node: -uses.order[node])
        for node in level:
            if node.op.name in REDUCTIONS and (row := _Row.of(node)) is not None and row.has(last):
                return row
        level = [node for node in level if node.op.has(Trait.ELEMENTWISE)]
        seen.update(level)
    return None


def _operands(group: set[Node]) -> int:
    """How many values would enter the group."""
    inside = {result for node in group for result in node.results}
    entering = {value for node in group for value in node.operands if value not in inside}
    return sum(1 for value in entering if not (isinstance(value, Constant) and value.data.size == 1))
