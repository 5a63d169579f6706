"""Rewrite rules as rows: a pattern, a function, whether bits change, and an example on which the rule must fire.

::

    # transpose(transpose(x, p), q) -> transpose(x, p after q)
    @rule("outer=transpose(inner=transpose(x))", EXACT, example="func @f(%x : f32[2,3]) { ... }")
    def transpose_of_transpose(build, x, outer, inner):
        perm = tuple(inner.attrs["perm"][axis] for axis in outer.attrs["perm"])
        return build.apply(ops.transpose, x, perm=perm)

A pattern is ops applied to patterns: `x` matches any value (twice the same name: the same value), `@c` a constant,
`name=op(...)` also hands the node over, `op(*)` takes any operands. The first two operands of a commutative op match
in both orders. The function gets what was captured by name and returns the new value (a tuple for several results),
or None to decline.

Laws for rules: each makes the graph smaller or moves it toward one canonical order, so that applying them ends; the
two sides have the same type; and the line of algebra above a rule says all that it does.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Union

from relume.base.errors import CompileError
from relume.graph.opdef import OpDef, Trait
from relume.graph.parser import Parser
from relume.graph.rewriter import Replacement, Rewriter
from relume.graph.types import Constant, Function, Graph, Node, Value


class Exactness(Enum):
    """What a rule does to the bits of float results."""

    EXACT = "both sides give the same bits"
    REASSOCIATES = "equal in exact arithmetic; roundings may fall elsewhere"


EXACT, REASSOCIATES = Exactness.EXACT, Exactness.REASSOCIATES


# --- patterns -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variable:
    """Any value, or any constant."""

    name: str
    constant: bool


@dataclass(frozen=True)
class Applied:
    """An op applied to patterns; to anything where `args` is None."""

    op: str
    args: tuple[Pattern, ...] | None
    name: str


Pattern = Union[Variable, Applied]


@dataclass(frozen=True)
class Match:
    """What a pattern has captured so far: by name, and every node in it, the root first."""

    captured: Mapping[str, Value | Node] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def bind(self, name: str, item: Value | Node) -> Match | None:
        """With one more name; None where it stands for something else already."""
        if not name:
            return self
        known = self.captured.get(name, item)
        same = known is item or (
            isinstance(known, Constant) and isinstance(item, Constant) and known.content == item.content
        )
        return Match({**self.captured, name: known}, self.nodes) if same else None


def parse_pattern(text: str) -> Applied:
    """The pattern behind text such as `add(mul(x, @c), d=relu(*))`. Raises `ValueError`."""
    words: list[str] = re.findall(r"[A-Za-z_]\w*|\S", text)
    place = 0

    def accept(word: str) -> bool:
        nonlocal place
        found = place < len(words) and words[place] == word
        place += found
        return found

    def name() -> str:
        nonlocal place
        if place == len(words) or not words[place].isidentifier():
            raise ValueError(f"a name is missing in the pattern {text!r}")
        place += 1
        return words[place - 1]

    def pattern() -> Pattern:
        if accept("@"):
            return Variable(name(), True)
        word, label = name(), ""
        if accept("="):
            label, word = word, name()
        if not accept("("):
            if label:
                raise ValueError(f"{label}= names no op application in the pattern {text!r}")
            return Variable(word, False)
        if accept("*"):
            args = None
        else:
            parts = [pattern()]
            while accept(","):
                parts.append(pattern())
            args = tuple(parts)
        if not accept(")"):
            raise ValueError(f"a parenthesis is open in the pattern {text!r}")
        return Applied(word, args, label)

    root = pattern()
    if place != len(words) or not isinstance(root, Applied):
        raise ValueError(f"a pattern is one op application, got {text!r}")
    return root


def _names(pattern: Pattern) -> Iterator[str]:
    yield pattern.name
    if isinstance(pattern, Applied):
        for part in pattern.args or ():
            yield from _names(part)


def _match_node(pattern: Applied, node: Node, rewriter: Rewriter, match: Match) -> Iterator[Match]:
    if node.op.name != pattern.op:
        return
    bound = Match(match.captured, (*match.nodes, node)).bind(pattern.name, node)
    if bound is None:
        return
    if pattern.args is None:
        yield bound
        return
    operands = tuple(map(rewriter.value, node.operands))
    if len(operands) != len(pattern.args):
        return
    yield from _match_all(pattern.args, operands, rewriter, bound)
    if node.op.has(Trait.COMMUTATIVE) and operands[0] is not operands[1]:
        yield from _match_all(pattern.args, (operands[1], operands[0], *operands[2:]), rewriter, bound)


def _match_all(
    patterns: Sequence[Pattern], values: Sequence[Value], rewriter: Rewriter, match: Match
) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    for first in _match_value(patterns[0], values[0], rewriter, match):
        yield from _match_all(patterns[1:], values[1:], rewriter, first)


def _match_value(pattern: Pattern, value: Value, rewriter: Rewriter, match: Match) -> Iterator[Match]:
    if isinstance(pattern, Variable):
        bound = match.bind(pattern.name, value)
        if bound is not None and (isinstance(value, Constant) or not pattern.constant):
            yield bound
        return
    node = rewriter.producer(value)
    if node is not None and len(node.results) == 1:
        yield from _match_node(pattern, node, rewriter, match)


# --- rules ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Rule:
    """One row. `hits` counts how often it fired in this process: a rule that the tests never hit fails them."""

    name: str
    pattern: Applied
    exactness: Exactness
    rewrite: Callable[..., Value | tuple[Value, ...] | None]
    example: str
    single: tuple[str, ...] = ()
    """Named nodes whose results nobody outside the pattern may read: the rule would compute them twice."""
    hits: int = 0

    def fire(self, node: Node, rewriter: Rewriter) -> bool:
        """Rewrites at `node` if the pattern matches there and the function does not decline."""
        for match in _match_node(self.pattern, node, rewriter, Match()):
            if not all(self._is_single(match, name, rewriter) for name in self.single):
                continue
            captured = {name: match.captured[name] for name in self._wanted}

            def build(replacement: Replacement, captured: Mapping[str, Any] = captured) -> Any:
                return self.rewrite(replacement, **captured)

            if rewriter.attempt(node, build, match.nodes[1:]):
                self.hits += 1
                return True
        return False

    @staticmethod
    def _is_single(match: Match, name: str, rewriter: Rewriter) -> bool:
        node = match.captured[name]
        assert isinstance(node, Node)
        return all(reader in match.nodes for value in node.results for reader, _ in rewriter.readers(value))

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.rewrite).parameters)[1:]


def rule(
    pattern: str, exactness: Exactness, *, example: str, single: tuple[str, ...] = ()
) -> Callable[[Callable[..., Value | tuple[Value, ...] | None]], Rule]:
    """Decorator: the function `(build, captured names...)` is the right side of a rule, named after it in kebab case.

    `example` is the text of a function on which the rule must fire. Raises `ValueError` on a pattern that cannot be
    read, and where function or `single` speak of names that it does not capture.
    """
    parsed = parse_pattern(pattern)

    def decorate(rewrite: Callable[..., Value | tuple[Value, ...] | None]) -> Rule:
        made = Rule(rewrite.__name__.strip("_").replace("_", "-"), parsed, exactness, rewrite, example, single)
        unknown = sorted({*made._wanted, *single} - set(_names(parsed)))
        if unknown:
            raise ValueError(f"rule {made.name} captures no {unknown[0]!r} by {pattern!r}")
        return made

    return decorate


def apply_rules(graph: Graph, rules: Sequence[Rule], pass_name: str, *, limit: int | None = None) -> Graph:
    """Applies the rules everywhere, regions included, until none fires. The same object if none does.

    At each node the first rule that fires wins. Raises `CompileError` after `limit` firings (by default far more than
    the nodes could need), naming the rules that chase each other.
    """
    by_op: dict[str, list[Rule]] = {}
    for row in rules:
        by_op.setdefault(row.pattern.op, []).append(row)
    left = limit if limit is not None else 1000 + 20 * sum(1 for _ in graph.walk())
    fired: list[str] = []
    while True:
        rewriter = Rewriter(graph, pass_name)
        for node in graph.nodes:
            if node.regions:
                regions = tuple(apply_rules(region, rules, pass_name, limit=limit) for region in node.regions)
                if any(new is not old for new, old in zip(regions, node.regions)):
                    rewriter.into(node, regions)
            for row in by_op.get(node.op.name, ()):
                if not rewriter.is_removed(node) and row.fire(node, rewriter):
                    fired.append(row.name)
                    break
        if len(fired) > left:
            chasing = sorted(set(fired[-100:]))
            raise CompileError(
                f"pass {pass_name}: rewriting does not end",
                expected=f"at most {left} rewrites",
                got=f"{len(fired)}, the last of them by {' and '.join(chasing)}, which chase each other",
                hint="let each rule make the graph smaller, or move it toward one canonical order",
            )
        after = rewriter.finish()
        if after is graph:
            return graph
        graph = after


def sides(row: Rule, ops: Mapping[str, OpDef]) -> tuple[Function, Function]:
    """The rule's example, and what this rule alone makes of it, for comparing both by the reference.

    Raises `CompileError` where the rule does not fire on its own example.
    """
    before = Parser(row.example, ops, {}).module().main
    after = before.with_graph(apply_rules(before.graph, [row], row.name, limit=100))
    if after is before:
        raise CompileError(f"rule {row.name} does not fire on its own example", got=row.example)
    return before, after
