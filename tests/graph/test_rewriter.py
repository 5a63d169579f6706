"""The Rewriter: edits mean the same, and every origin is kept or explained."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_function, readings, slots, tagged

from relume import ops
from relume.base.errors import CompileError
from relume.graph import rewriter as rewriter_module
from relume.graph.rewriter import INVENTED, NEW_USE, Rewriter, clone, join
from relume.graph.text import parse_module, print_function
from relume.graph.types import Constant, Function, Graph, Node, Unknown, same_graph
from relume.graph.verify import verify
from relume.ops import OPS


def parse(text: str) -> Function:
    return parse_module(text, OPS).main


def body(fn: Function, graph: Graph, origins: bool = False) -> list[str]:
    """The lines between the braces."""
    lines = print_function(fn.with_graph(graph), origins=origins).split("\n")
    return [line.strip() for line in lines[1 : lines.index("}")]]


# --- random edits ---------------------------------------------------------------------------------------------------


def rebuild(random: Random, rw: Rewriter, node: Node) -> None:
    """The same node again."""
    with rw.replacing(node) as build:
        build.give(*build.emit(node.op, *node.operands, regions=[clone(r) for r in node.regions], **node.attrs))


def commute(random: Random, rw: Rewriter, node: Node) -> None:
    """a + b -> b + a"""
    if node.op is ops.add:
        with rw.replacing(node) as build:
            build.give(build.apply(ops.add, node.operands[1], node.operands[0]))


def cancel(random: Random, rw: Rewriter, node: Node) -> None:
    """-(-x) -> x, which leaves no new slot; -(a - b) -> b - a, over a node that may have other users"""
    inner = rw.producer(node.operands[0]) if node.op is ops.neg else None
    if inner is not None and inner.op is ops.neg:
        with rw.replacing(node, inner) as build:
            build.give(inner.operands[0])
    elif inner is not None and inner.op is ops.sub:
        with rw.replacing(node, inner) as build:
            build.give(build.apply(ops.sub, inner.operands[1], inner.operands[0]))


def expand(random: Random, rw: Rewriter, node: Node) -> None:
    """a - b -> a + (-b), which invents a value"""
    if node.op is ops.sub:
        with rw.replacing(node) as build:
            build.give(build.apply(ops.add, node.operands[0], build.apply(ops.neg, node.operands[1])))


def merge(random: Random, rw: Rewriter, node: Node) -> None:
    """Another node that computes the same stands in for this one."""
    for other in rw.graph.nodes[: rw.graph.nodes.index(node)]:
        same = other.op is node.op and not node.regions and not rw.is_removed(other)
        if same and list(map(rw.value, other.operands)) == list(map(rw.value, node.operands)):
            rw.replace_value(node.result, other.result)
            rw.remove(node)
            return


def fuse(random: Random, rw: Rewriter, node: Node) -> None:
    """A node and those of its producers that feed nothing else become one node."""
    group = [node]
    for member in group:
        for value in member.operands:
            maker = rw.producer(value)
            if maker and maker not in group and all(reader in group for reader, _ in rw.readers(value)):
                if len(maker.results) == 1:
                    group.append(maker)
    if any(rw.readers(value) for value in node.results):
        rw.fuse(group[::-1], ops.fused, kind="map")


def split(random: Random, rw: Rewriter, node: Node) -> None:
    """A fused node becomes two, where both parts have readers."""
    if node.op is not ops.fused or len(node.regions[0].nodes) < 2:
        return
    (region,) = node.regions
    at = random.randrange(1, len(region.nodes))
    late = {value for inner in region.nodes[at:] for value in inner.operands}
    leaves = {new for old, new in zip(node.results, region.results) if rw.readers(old)}
    first, second = (
        {value for inner in part for value in inner.results} for part in (region.nodes[:at], region.nodes[at:])
    )
    if first & (late | leaves) and second & leaves:
        rw.split(node, at)


def inline(random: Random, rw: Rewriter, node: Node) -> None:
    """A region's nodes come out."""
    if node.op is ops.fused:
        rw.inline(node)


def inside(random: Random, rw: Rewriter, node: Node) -> None:
    """The same edits, in the regions."""
    if node.regions:
        rw.into(node, [edited(random, region) for region in node.regions])


EDITS = (rebuild, commute, cancel, expand, merge, fuse, split, inline, inside)


def edited(random: Random, graph: Graph) -> Graph:
    """A few random edits, in one rewriter or several."""
    for _ in range(random.randint(1, 2)):
        rw = Rewriter(graph, "edit")
        for node in random.sample(graph.nodes, min(len(graph.nodes), 4)):
            if not rw.is_removed(node):
                random.choice(EDITS)(random, rw, node)
        graph = rw.finish()
    return graph


def check_origins(before: Graph, after: Graph) -> None:
    """Every slot has origins that read, in the tagged graph, the same bytes as it does; or an explanation."""
    for seed in (0, 1):
        # A value may stand in for an equal one in another region; tags are told apart by what they read.
        read = {origin: data for slot, data in readings(before, seed) for origin in slot}
        for slot, data in readings(after, seed):
            if isinstance(slot, Unknown):
                assert slot.pass_name == "edit" and slot.reason in (INVENTED, NEW_USE)
                continue
            assert slot, "silence"
            for origin in slot:
                assert read[origin] == data, f"{origin} did not read this value"


def edit_and_check(random: Random) -> None:
    fn = tagged(random_function(random))
    graph = edited(random, fn.graph)
    after = fn.with_graph(graph)
    verify(after)
    results = [data for _, data in readings(fn.graph)][-len(fn.outputs) :]
    assert [data for _, data in readings(graph)][-len(fn.outputs) :] == results, "the edit changes what is computed"
    check_origins(fn.graph, graph)


@given(st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_every_edit_keeps_or_explains_every_origin(random: Random) -> None:
    edit_and_check(random)


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_edits_that_invent_nothing_lose_no_origin(random: Random) -> None:
    fn = tagged(random_function(random, live=True))
    tags = {origin for slot in slots(fn.graph) for origin in slot}
    for edit in (rebuild, commute, fuse):
        graph = fn.graph
        rw = Rewriter(graph, "edit")
        for node in graph.nodes:
            if not rw.is_removed(node):
                edit(Random(0), rw, node)
        left: set[object] = set()
        for slot in slots(rw.finish()):
            assert not isinstance(slot, Unknown)
            left |= slot
        assert left == tags


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no transfer": lambda patch: patch.setattr(Rewriter, "_explained", lambda self, nodes, replaced: list(nodes)),
    "everything is inherited": lambda patch: patch.setattr(
        Rewriter,
        "_explained",
        lambda self, nodes, replaced: [
            node.with_(origins=tuple(join([o for r in replaced for o in r.origins]) for _ in node.operands))
            for node in nodes
        ],
    ),
    "by slot number": lambda patch: patch.setattr(
        Rewriter,
        "_explained",
        lambda self, nodes, replaced: [
            node.with_(
                origins=tuple(replaced[0].origins[i % len(replaced[0].origins)] for i in range(len(node.origins)))
            )
            if replaced[0].origins
            else node
            for node in nodes
        ],
    ),
    "empty unions": lambda patch: patch.setattr(rewriter_module, "join", lambda found: frozenset()),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_transfer_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(100):
            try:
                edit_and_check(Random(seed))
            except CompileError as error:  # verify found it first
                raise AssertionError from error


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_a_clone_is_equal_and_shares_only_constants(random: Random) -> None:
    graph = tagged(random_function(random)).graph
    copy = clone(graph)
    assert same_graph(graph, copy)
    mine = {value for node in graph.walk() for value in (*node.operands, *node.results)}
    theirs = {value for node in copy.walk() for value in (*node.operands, *node.results)}
    assert all(isinstance(value, Constant) for value in mine & theirs)
    assert not set(graph.walk()) & set(copy.walk())


@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_no_edit_gives_the_same_object(random: Random) -> None:
    graph = random_function(random).graph
    rw = Rewriter(graph, "edit")
    for node in graph.nodes:
        rw.into(node, node.regions)
        assert not rw.attempt(node, lambda build: None)
        for value in node.results:
            rw.replace_value(value, value)
    assert rw.finish() is graph


# --- one edit at a time ---------------------------------------------------------------------------------------------

CHAIN = """func @f(%x : f32[2], %z : f32[2]) {
  %a = neg(%x) : f32[2] !(a0)
  %b = exp(%a) : f32[2] !(b0)
  %c = add(%b, %z) : f32[2] !(c0, c1)
  return %c as "c", %a as "a" !(r0, r1)
}"""


def test_a_new_slot_inherits_from_the_replaced_slots_that_read_its_value() -> None:
    fn = parse(CHAIN)
    a, b, c = fn.graph.nodes
    rw = Rewriter(fn.graph, "p")
    with rw.replacing(c, b) as build:
        # %a was read by b (covered), %z by c (the root); %x by neither; the product is invented.
        product = build.apply(ops.mul, a.result, c.operands[1], name="m")
        build.give(build.apply(ops.add, product, fn.inputs[0], name="c"))
    assert body(fn, rw.finish(), origins=True) == [
        "%a = neg(%x) : f32[2] !(a0)",
        "%m = mul(%a, %z) : f32[2] !(b0, c1)",
        '%c = add(%m, %x) : f32[2] !(unknown("p", "invented by the rewrite"), unknown("p", "new use"))',
        'return %c as "c", %a as "a" !(r0, r1)',
    ]


def test_an_unknown_origin_is_not_covered_up_by_known_ones() -> None:
    fn = parse(CHAIN.replace("!(c0, c1)", '!(c0, unknown("q", "why"))').replace("add(%b, %z)", "add(%b, %b)"))
    b, c = fn.graph.nodes[1:]
    rw = Rewriter(fn.graph, "p")
    with rw.replacing(c) as build:
        build.give(build.apply(ops.exp, b.result, name="c"))
    assert '%c = exp(%b) : f32[2] !(unknown("q", "why"))' in body(fn, rw.finish(), origins=True)


def test_replacements_chain() -> None:
    fn = parse(CHAIN)
    a, b, c = fn.graph.nodes
    rw = Rewriter(fn.graph, "p")
    rw.replace_value(b.result, a.result)
    with rw.replacing(c) as build:
        build.give(build.apply(ops.sub, b.result, c.operands[1], name="c"))  # %b stands for %a by now
    with rw.replacing(a) as build:
        build.give(build.apply(ops.tanh, a.operands[0], name="t"))
    rw.remove(b)
    assert body(fn, rw.finish(), origins=True) == [
        "%t = tanh(%x) : f32[2] !(a0)",
        "%c = sub(%t, %z) : f32[2] !(c0, c1)",
        'return %c as "c", %t as "a" !(r0, r1)',
    ]


def test_a_new_node_can_be_replaced_again() -> None:
    fn = parse(CHAIN)
    c = fn.graph.nodes[2]
    rw = Rewriter(fn.graph, "p")
    with rw.replacing(c) as build:
        build.give(build.apply(ops.sub, *c.operands))
    new = rw.producer(c.result)
    assert new is not None
    with rw.replacing(new) as build:
        build.give(build.apply(ops.mul, *new.operands, name="c"))
    assert "%c = mul(%b, %z) : f32[2] !(c0, c1)" in body(fn, rw.finish(), origins=True)


def test_covered_nodes_stay_while_somebody_reads_them() -> None:
    fn = parse(CHAIN)
    a, b, c = fn.graph.nodes
    rw = Rewriter(fn.graph, "p")
    with rw.replacing(c, b, a) as build:
        build.give(build.apply(ops.exp, c.operands[1]))
    assert [node.op.name for node in rw.finish().nodes] == ["neg", "exp"]  # %a is returned, %b is not read any more


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rw, a, b, c: rw.attempt(c, lambda build: build.apply(ops.neg, c.result)), "reads what it replaces"),
        (lambda rw, a, b, c: rw.replace_value(a.result, c.result) or rw.finish(), "cycle"),
        (lambda rw, a, b, c: rw.remove(a), "cannot be removed"),
        (lambda rw, a, b, c: rw.attempt(c, lambda build: []), "has 1 results"),
        (lambda rw, a, b, c: rw.attempt(c, lambda build: build.apply(ops.greater, *c.operands)), "another type"),
        (lambda rw, a, b, c: rw.fuse([a, c], ops.fused, kind="map") and rw.finish(), "cycle"),
        (lambda rw, a, b, c: [rw.attempt(c, lambda build: b.result) for _ in range(2)], "was replaced before"),
        (lambda rw, a, b, c: rw.attempt(c, lambda build: build.param(c.result.type)) and rw.finish(), "no value of"),
    ],
)
def test_an_edit_that_cannot_be_is_refused(edit: Callable[..., object], message: str) -> None:
    fn = parse(CHAIN)
    with pytest.raises(CompileError, match=message):
        edit(Rewriter(fn.graph, "p"), *fn.graph.nodes)


def test_a_replacement_must_give() -> None:
    fn = parse(CHAIN)
    rw = Rewriter(fn.graph, "p")
    with pytest.raises(CompileError, match="gives nothing"), rw.replacing(fn.graph.nodes[2]):
        pass
    assert rw.finish() is fn.graph


FUSABLE = """func @f(%x : f32[2], %y : f32[2]) {
  %a = add(%x, @w) : f32[2] !(a0, a1)
  %b = mul(%a, @s) : f32[2] !(b0, b1)   // m:b
  %c = sub(%x, %b) : f32[2] !(c0, c1)
  %d = add(%b, %y) : f32[2] !(d0, d1)
  return %c as "c", %d as "d" !(r0, r1)
}
const @w : f32[2] = [1.0, 2.0]
const @s : f32[] = 3.0
"""
FUSED = [
    '%b, %c = fused(%x, @w, kind="map") : f32[2], f32[2] !(a0+c0, a1) {   // m:b',
    "(%x_1 : f32[2], %w : f32[2])",
    "%a = add(%x_1, %w) : f32[2] !(a0, a1)",
    "%b_1 = mul(%a, @s) : f32[2] !(b0, b1)   // m:b",
    "%c_1 = sub(%x_1, %b_1) : f32[2] !(c0, c1)",
    "yield %b_1, %c_1 !(d0, r0)",
    "}",
    "%d = add(%b, %y) : f32[2] !(d0, d1)",
    'return %c as "c", %d as "d" !(r0, r1)',
]


def test_fusing_makes_operands_of_outer_values_and_big_constants() -> None:
    fn = parse(FUSABLE)
    rw = Rewriter(fn.graph, "p")
    rw.fuse(fn.graph.nodes[:3], ops.fused, kind="map")
    assert body(fn, rw.finish(), origins=True) == FUSED


def test_inlining_undoes_fusing() -> None:
    fn = parse(FUSABLE)
    rw = Rewriter(fn.graph, "p")
    rw.inline(rw.fuse(fn.graph.nodes[:3], ops.fused, kind="map"))
    assert same_graph(rw.finish(), fn.graph)


def test_splitting_fuses_both_parts() -> None:
    fn = parse(FUSABLE)
    rw = Rewriter(fn.graph, "p")
    rw.split(rw.fuse(fn.graph.nodes[:3], ops.fused, kind="map"), 2)
    after = fn.with_graph(rw.finish())
    verify(after)
    first, second, _ = after.graph.nodes
    assert [node.op.name for node in first.regions[0].nodes] == ["add", "mul"]
    assert [node.op.name for node in second.regions[0].nodes] == ["sub"]
    assert second.operands == (fn.inputs[0], first.result)


def test_a_user_that_stood_before_the_fused_node_comes_after_it() -> None:
    fn = parse("""func @f(%x : f32[2]) {
      %a = neg(%x)
      %u = exp(%a)
      %b = tanh(%a)
      return %u as "u", %b as "b"
    }""")
    rw = Rewriter(fn.graph, "p")
    rw.fuse([fn.graph.nodes[0], fn.graph.nodes[2]], ops.fused, kind="map")
    verify(fn.with_graph(rw.finish()))
    assert [node.op.name for node in rw.finish().nodes] == ["fused", "exp"]


def test_regions_made_by_a_rewrite_explain_their_slots() -> None:
    fn = parse(CHAIN)
    c = fn.graph.nodes[2]
    (region,) = parse_module('func @g(%x : f32[2]) { %y = fused(%x, kind="map") { (%p : f32[2]) %q = neg(%p) yield %q } return %y }', OPS).main.graph.nodes[0].regions  # fmt: skip  # noqa: E501
    rw = Rewriter(fn.graph, "p")
    with rw.replacing(c) as build:
        build.give(build.apply(ops.fused, c.operands[0], regions=(region,), kind="map"))
    invented = Unknown("p", INVENTED)
    found = rw.finish().nodes[-1].regions[0]
    assert (found.nodes[0].origins, found.origins) == ((invented,), (invented,))
