"""The Rewriter: the only way in which passes edit a graph. It moves origins along with every edit.

How origins travel (an origin says: this slot reads the value that that use of the imported graph read):

- A new slot inherits the union of the origins of the replaced slots that read the same value, where an earlier
  replacement of a value counts as that value. The union with an `Unknown` is that `Unknown`.
- A new slot that reads a value made inside the replacement is `Unknown(pass, "invented by the rewrite")`; one that
  reads an older value which no replaced slot read is `Unknown(pass, "new use")`.
- Users of a replaced value keep theirs: the new value is the old one by other means.
- Outlining: the new operand inherits the union over its inner uses, the region's result slot the union over the
  outside uses of that value, and inner slots keep theirs. Inlining gives the inner slots back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from relume.base.errors import CompileError
from relume.base.locations import Location
from relume.graph.builder import Builder
from relume.graph.opdef import OpDef
from relume.graph.types import UNTRACED, Attr, Constant, Graph, Node, Origin, Origins, Unknown, Value

INVENTED = "invented by the rewrite"
NEW_USE = "new use"

Slot = tuple[Node | None, int]
"""A use: operand `n` of a node, or result `n` of the graph."""


class Replacement(Builder):
    """What stands in for a node: build nodes, then `give` one value for each result of the root."""

    def __init__(self, location: Location | None) -> None:
        super().__init__(location)
        self.given: tuple[Value, ...] | None = None

    def give(self, *values: Value) -> None:
        """The new values of the root's results, in order: built here, or older ones."""
        self.given = values


@dataclass(frozen=True)
class Outline:
    """Nodes as a closed region, and how it hangs in the graph that it was cut from."""

    region: Graph
    operands: tuple[Value, ...]
    """What the region's parameters stand for, in order of first use."""
    origins: tuple[Origins, ...]
    """One per operand."""
    results: tuple[Value, ...]
    """What the region's results stand for."""


def join(slots: Sequence[Origins]) -> Origins:
    """The union of origins; the first `Unknown` if there is one: a fact about the rest would not speak of it."""
    known: frozenset[Origin] = frozenset()
    for slot in slots:
        if isinstance(slot, Unknown):
            return slot
        known |= slot
    return known


def clone(graph: Graph) -> Graph:
    """The same graph of fresh nodes and values; constants are shared, origins and locations are the same."""
    mapping: dict[Value, Value] = {param: Value(param.type, param.name) for param in graph.params}
    params = tuple(mapping[param] for param in graph.params)
    nodes = _copy(graph.nodes, mapping)
    return Graph(params, nodes, tuple(mapping.get(value, value) for value in graph.results), graph.origins)


def _copy(nodes: Sequence[Node], mapping: dict[Value, Value]) -> tuple[Node, ...]:
    """Fresh nodes that read mapped values; their results are added to `mapping`."""
    copies: list[Node] = []
    for node in nodes:
        results = tuple(Value(value.type, value.name) for value in node.results)
        operands = tuple(mapping.get(value, value) for value in node.operands)
        regions = tuple(clone(region) for region in node.regions)
        copies.append(node.with_(operands=operands, results=results, regions=regions))
        mapping.update(zip(node.results, results))
    return tuple(copies)


class Rewriter:
    """Collects edits of one graph; `finish` gives the new graph. Regions are graphs of their own: rewrite each, and
    put it back by `into`.

    Nodes are those of the graph as it was, and new ones as they are made. Raises `CompileError` where an edit does
    not fit: another type, a use of what it replaces.
    """

    def __init__(self, graph: Graph, pass_name: str) -> None:
        self.graph, self.pass_name = graph, pass_name
        self._forward: dict[Value, Value] = {}
        self._before: dict[Node, list[Node]] = {}
        self._regions: dict[Node, tuple[Graph, ...]] = {}
        self._removed: set[Node] = set()
        self._params = frozenset(graph.params)
        self._producer: dict[Value, Node] = {}
        self._readers: dict[Value, dict[Slot, None]] = {}
        for node in graph.nodes:
            self._enter(node)
        for index, value in enumerate(graph.results):
            self._readers.setdefault(value, {})[None, index] = None

    # -- looking --

    def value(self, value: Value) -> Value:
        """What stands for a value now: itself, or its replacement."""
        if value not in self._forward:
            return value
        passed: list[Value] = []
        while value in self._forward:
            passed.append(value)
            value = self._forward[value]
        for old in passed[:-1]:
            self._forward[old] = value
        return value

    def producer(self, value: Value) -> Node | None:
        """The node that makes the value that stands for `value` now; None for parameters and constants."""
        return self._producer.get(self.value(value))

    def readers(self, value: Value) -> tuple[Slot, ...]:
        """Every slot that reads the value now: (node, operand) or, for the graph's results, (None, result)."""
        return tuple(self._readers.get(self.value(value), ()))

    def is_removed(self, node: Node) -> bool:
        """Whether an earlier edit has removed this node."""
        return node in self._removed

    # -- replacing --

    @contextmanager
    def replacing(self, root: Node, *covers: Node) -> Iterator[Replacement]:
        """Replaces the results of `root` by what is given inside.

        `covers` are the other nodes that the pattern matched: they lend their origins, and go when nobody reads them
        any more.
        """
        build = Replacement(root.location)
        yield build
        if build.given is None:
            raise self._error(f"the replacement of {root.op.name} gives nothing", "build.give(one value per result)")
        self._replace(root, covers, build, build.given)

    def attempt(
        self,
        root: Node,
        rewrite: Callable[[Replacement], Value | Sequence[Value] | None],
        covers: Sequence[Node] = (),
    ) -> bool:
        """`replacing` for rewrites that may decline: they return the new value or values, or None to change nothing."""
        build = Replacement(root.location)
        given = rewrite(build)
        if given is None:
            return False
        self._replace(root, covers, build, (given,) if isinstance(given, Value) else tuple(given))
        return True

    def replace_value(self, old: Value, new: Value) -> None:
        """Every slot of this graph that reads `old` reads `new`. The node that makes `old` stays."""
        self._check_type(old, new)
        self._substitute(old, new)

    def remove(self, node: Node) -> None:
        """Removes a node whose results nobody reads."""
        for value in node.results:
            if self.value(value) is value and self._readers.get(value):
                raise self._error(f"{node.op.name} cannot be removed", "results without readers", f"%{value.name}")
        self._remove(node)

    def into(self, owner: Node, regions: Sequence[Graph]) -> None:
        """Gives a node rewritten regions. Their parameters and results must keep their types."""
        for old, new in zip(owner.regions, regions, strict=True):
            before = [[value.type for value in values] for values in (old.params, old.results)]
            after = [[value.type for value in values] for values in (new.params, new.results)]
            if before != after:
                raise self._error(f"a region of {owner.op.name} changes its signature", before, after)
        self._regions[owner] = tuple(regions)

    # -- moving nodes in and out of regions --

    def outline(self, nodes: Sequence[Node], results: Sequence[Value] | None = None) -> Outline:
        """These nodes as a closed region, in the given order as far as they depend on each other.

        Outer values become operands, constants of more than one element too; constants of one element stay inside.
        Values that are read outside become results, or else `results`, which says which ones: nodes whose values are
        read outside and are none of them stay in the graph too. The graph does not change.
        """
        members = self._sorted(nodes)
        inner = {value for node in members for value in node.results}
        reads: dict[Value, list[Origins]] = {}
        for node in members:
            for value, origins in zip(node.operands, node.origins):
                if value not in inner and not (isinstance(value, Constant) and value.data.size == 1):
                    reads.setdefault(value, []).append(origins)
        mapping: dict[Value, Value] = {value: Value(value.type, value.name) for value in reads}
        params = tuple(mapping.values())
        copies = _copy(members, mapping)
        group = set(nodes)
        leaving = {
            value: [slot for slot in self.readers(value) if slot[0] not in group]
            for node in members
            for value in node.results
        }
        chosen = tuple(value for value, uses in leaving.items() if uses) if results is None else tuple(results)
        if not chosen:
            raise self._error("the outlined nodes have no readers", "at least one value that is read outside")
        region = Graph(
            params,
            copies,
            tuple(mapping[value] for value in chosen),
            # A result that only the group reads leaves it for those of its nodes that stay.
            tuple(join([self._origins_of(slot) for slot in leaving[value] or self.readers(value)]) for value in chosen),
        )
        return Outline(region, tuple(reads), tuple(map(join, reads.values())), chosen)

    def fuse(self, nodes: Sequence[Node], op: OpDef, results: Sequence[Value] | None = None, **attrs: Attr) -> Node:
        """Replaces nodes by one node of `op` that has them in its only region. Returns the new node.

        `results` as in `outline`. No path may leave the group and come back: `finish` would find a cycle.
        """
        cut = self.outline(nodes, results)
        last = nodes[-1]
        build = Replacement(next((node.location for node in nodes if node.location), None))
        made = build.emit(op, *cut.operands, regions=(cut.region,), name="", origins=cut.origins, **attrs)
        (node,) = build.nodes
        for old, new in zip(cut.results, made, strict=True):
            self._check_type(old, new)
        named = tuple(Value(new.type, old.name) for old, new in zip(cut.results, made))
        node = node.with_(results=named)
        self._place(last, [node])
        for old, new in zip(cut.results, named):
            self._substitute(old, new)
        self._sweep(nodes)
        return node

    def inline(self, node: Node) -> tuple[Node, ...]:
        """Replaces a node by the nodes of its only region, whose parameters are its operands. Returns the new nodes."""
        (region,) = self._regions.get(node, node.regions)
        if [value.type for value in region.params] != [value.type for value in node.operands]:
            raise self._error(
                f"{node.op.name} cannot be inlined", "a region whose parameters are the operands", region.params
            )
        mapping: dict[Value, Value] = dict(zip(region.params, node.operands))
        nodes = _copy(region.nodes, mapping)
        self._place(node, nodes)
        for old, new in zip(node.results, region.results, strict=True):
            self._check_type(old, new)
            self._substitute(old, mapping.get(new, new))
        self._sweep([node])
        return nodes

    def split(self, node: Node, at: int) -> tuple[Node, Node]:
        """Splits a node with one region, such as `fused`, in two: its first `at` inner nodes, and the rest."""
        (region,) = self._regions.get(node, node.regions)
        if not 0 < at < len(region.nodes):
            raise self._error(f"{node.op.name} cannot be split there", f"1 to {len(region.nodes) - 1}", at)
        nodes = self.inline(node)
        return self.fuse(nodes[:at], node.op, **node.attrs), self.fuse(nodes[at:], node.op, **node.attrs)

    # -- the end --

    def finish(self) -> Graph:
        """The graph with all edits, or the same object if none changes anything."""
        if not (self._forward or self._before or self._regions or self._removed):
            return self.graph
        results = tuple(map(self.value, self.graph.results))
        makers = (maker for value in results if (maker := self._maker(value, "a result")))
        nodes = tuple(self._sorted(chain(self._in_place(), makers)))
        if nodes == self.graph.nodes and results == self.graph.results:
            return self.graph
        return Graph(self.graph.params, nodes, results, self.graph.origins)

    # -- plumbing --

    def _error(self, what: str, expected: object = None, got: object = None) -> CompileError:
        return CompileError(f"pass {self.pass_name}: {what}", expected=expected, got=got)

    def _check_type(self, old: Value, new: Value) -> None:
        if old.type != new.type:
            raise self._error(f"the replacement of %{old.name} has another type", old.type, new.type)

    def _enter(self, node: Node) -> None:
        for value in node.results:
            self._producer[value] = node
        for index, value in enumerate(node.operands):
            self._readers.setdefault(self.value(value), {})[node, index] = None

    def _maker(self, value: Value, reader: str) -> Node | None:
        maker = self._producer.get(value)
        if maker is None and value not in self._params and not isinstance(value, Constant):
            raise self._error(f"{reader} reads %{value.name}, which is no value of this graph")
        return maker

    def _place(self, anchor: Node, nodes: Sequence[Node]) -> None:
        self._before.setdefault(anchor, []).extend(nodes)
        for node in nodes:
            self._enter(node)

    def _substitute(self, old: Value, new: Value) -> None:
        old, new = self.value(old), self.value(new)
        if old is not new:
            self._forward[old] = new
            self._readers.setdefault(new, {}).update(self._readers.pop(old, {}))

    def _remove(self, node: Node) -> None:
        if node not in self._removed:
            self._removed.add(node)
            for index, value in enumerate(node.operands):
                self._readers[self.value(value)].pop((node, index), None)

    def _sweep(self, candidates: Sequence[Node]) -> None:
        """Removes those of the candidates whose results nobody reads, the readers among them first."""
        left = dict.fromkeys(candidates)
        work = list(left)
        while work:
            node = work.pop()
            if node not in left or any(self._readers.get(value) for value in node.results):
                continue
            del left[node]
            self._remove(node)
            makers = (self._producer.get(self.value(value)) for value in node.operands)
            work.extend(maker for maker in makers if maker in left)

    def _origins_of(self, slot: Slot) -> Origins:
        node, index = slot
        return self.graph.origins[index] if node is None else node.origins[index]

    def _replace(self, root: Node, covers: Sequence[Node], build: Replacement, given: tuple[Value, ...]) -> None:
        if root in self._removed:
            raise self._error(f"{root.op.name} was replaced before", "a node of the graph as it is now")
        if len(given) != len(root.results):
            raise self._error(f"{root.op.name} has {len(root.results)} results", len(root.results), len(given))
        for old, new in zip(root.results, given):
            self._check_type(old, new)
        for node in build.nodes:
            if any(self.value(value) in root.results for value in node.operands):
                raise self._error(f"the replacement of {root.op.name} reads what it replaces", "build the op anew")
        nodes = self._explained(build.nodes, (root, *covers))
        self._place(root, nodes)
        for old, new in zip(root.results, given):
            self._substitute(old, new)
        self._sweep([root, *covers, *nodes])

    def _explained(self, nodes: Sequence[Node], replaced: Sequence[Node]) -> list[Node]:
        """New nodes with origins in every slot that was built without."""
        sources: dict[Value, list[Origins]] = {}
        for node in replaced:
            for value, origins in zip(node.operands, node.origins):
                sources.setdefault(self.value(value), []).append(origins)
        made = {value for node in nodes for value in node.results}

        def origins_of(value: Value, built_with: Origins) -> Origins:
            if built_with is not UNTRACED:
                return built_with
            if value in sources:
                return join(sources[value])
            is_new = value in made or (isinstance(value, Constant) and value not in self._readers)
            return Unknown(self.pass_name, INVENTED if is_new else NEW_USE)

        explained: list[Node] = []
        for node in nodes:
            slots = tuple(origins_of(self.value(value), slot) for value, slot in zip(node.operands, node.origins))
            regions = tuple(map(self._explained_region, node.regions))
            explained.append(node.with_(origins=slots, regions=regions))
        return explained

    def _explained_region(self, graph: Graph) -> Graph:
        def explain(slots: tuple[Origins, ...]) -> tuple[Origins, ...]:
            invented: Origins = Unknown(self.pass_name, INVENTED)
            return tuple(invented if slot is UNTRACED else slot for slot in slots)

        nodes = tuple(
            node.with_(origins=explain(node.origins), regions=tuple(map(self._explained_region, node.regions)))
            for node in graph.nodes
        )
        return Graph(graph.params, nodes, graph.results, explain(graph.origins))

    def _in_place(self) -> Iterator[Node]:
        """Old and new nodes in their places: what replaces a node stands before it."""
        stack = list(reversed(self.graph.nodes))
        opened: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in self._before and node not in opened:
                opened.add(node)
                stack.append(node)
                stack.extend(reversed(self._before[node]))
            elif node not in self._removed:
                yield node

    def _now(self, node: Node) -> Node:
        """The node with replaced values and regions; the same object if none was."""
        operands = tuple(map(self.value, node.operands))
        regions = self._regions.get(node, node.regions)
        if operands == node.operands and regions == node.regions:
            return node
        return node.with_(operands=operands, regions=regions)

    def _sorted(self, nodes: Iterator[Node] | Sequence[Node]) -> list[Node]:
        """The nodes as they are now, in the given order, but what one reads before it.

        From `finish` this reaches nodes that an earlier edit removed and a later one reads after all; for a group it
        stays inside.
        """
        group = set(nodes) if isinstance(nodes, Sequence) else None
        out: list[Node] = []
        state: dict[Node, bool] = {}  # False: being visited, True: done
        for start in nodes:
            stack = [start]
            while stack:
                node = stack[-1]
                if state.get(node):
                    stack.pop()
                    continue
                now = self._now(node)
                waiting: list[Node] = []
                for value in now.operands:
                    maker = self._maker(value, node.op.name)
                    if maker is not None and not state.get(maker) and (group is None or maker in group):
                        waiting.append(maker)
                if not waiting:
                    state[node] = True
                    out.append(now)
                    stack.pop()
                    continue
                if node in state:
                    raise self._error(f"the rewrite makes a cycle through {node.op.name} -> %{node.results[0].name}")
                state[node] = False
                stack.extend(reversed(waiting))
        return out
