"""SiteIds name every use once, and neither names nor order nor constants' values change them."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, random_function, slots

from relume.base import dims
from relume.graph.sites import assign
from relume.graph.text import parse_module, print_function
from relume.graph.types import Constant, Function, Graph, Node, Origin, Tensor, Value
from relume.ops import OPS


def sites(fn: Function) -> list[str]:
    """The digests of all slots, in order."""
    found = []
    for slot in slots(assign(fn).graph):
        assert isinstance(slot, frozenset)
        (origin,) = slot
        assert isinstance(origin, Origin) and origin.iterations == ()
        found.append(origin.site.digest)
    return found


def sites_of(text: str) -> list[str]:
    return sites(parse_module(text, OPS).main)


def renamed(fn: Function, random: Random) -> Function:
    """Other names for values, constants and symbols, and other numbers in the constants."""
    symbol = {"N": dims.symbol(random.choice(("A", "Zz", "_")))}

    def type_of(value: Value) -> Tensor:
        return Tensor(value.dtype, tuple(dims.substitute(dim, symbol) for dim in value.dims))

    def rename(graph: Graph) -> Graph:
        new: dict[Value, Value] = {}

        def define(value: Value) -> Value:
            return new.setdefault(value, Value(type_of(value), f"n{random.random()}"))

        def use(value: Value) -> Value:
            return Constant.of(value.data + random.random(), "k") if isinstance(value, Constant) else new[value]

        params = tuple(map(define, graph.params))
        nodes = tuple(
            node.with_(
                operands=tuple(map(use, node.operands)),
                results=tuple(map(define, node.results)),
                regions=tuple(map(rename, node.regions)),
            )
            for node in graph.nodes
        )
        return Graph(params, nodes, tuple(map(use, graph.results)))

    return Function("other", rename(fn.graph), fn.state_count, fn.output_names)


def permuted(graph: Graph, random: Random) -> Graph:
    """The same nodes in a random order that respects dependence."""
    waiting = list(graph.nodes)
    known = set(graph.params)
    out: list[Node] = []
    while waiting:
        ready = [node for node in waiting if all(isinstance(v, Constant) or v in known for v in node.operands)]
        node = random.choice(ready)
        waiting.remove(node)
        out.append(node.with_(regions=tuple(permuted(region, random) for region in node.regions)))
        known.update(node.results)
    return Graph(graph.params, tuple(out), graph.results)


def by_result(fn: Function) -> dict[Value, object]:
    """The origins of the node behind each value, but for dead ones."""
    found: dict[Value, object] = {}
    for graph in graphs(assign(fn).graph):
        live = set(graph.results)
        for node in reversed(graph.nodes):
            if live & set(node.results):
                live.update(node.operands)
                found.update((value, node.origins) for value in node.results)
    return found


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_every_slot_has_a_site_of_its_own(random: Random) -> None:
    found = sites(random_function(random))
    assert len(set(found)) == len(found)


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_names_symbols_and_constant_values_do_not_matter(random: Random) -> None:
    fn = random_function(random)
    assert sites(renamed(fn, random)) == sites(fn)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_independent_nodes_does_not_matter(random: Random) -> None:
    fn = random_function(random, live=True)
    other = fn.with_graph(permuted(fn.graph, random))
    assert by_result(other) == by_result(fn)
    assert sorted(sites(other)) == sorted(sites(fn))


@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_assigning_changes_nothing_else(random: Random) -> None:
    fn = random_function(random)
    assert print_function(assign(fn)) == print_function(fn)


def test_equal_nodes_are_told_apart_by_the_walk_from_the_outputs() -> None:
    text = "func @f(%x : f32[2]) {{ {} %d = sub(%b, %c) return %d }}"
    b, c = "%b = add(%x, @b)", "%c = add(%x, @c)"
    constants = "\nconst @b : f32[2] = [1, 2]\nconst @c : f32[2] = [3, 4]"
    first = assign(parse_module(text.format(f"{b} {c}") + constants, OPS).main).graph
    second = assign(parse_module(text.format(f"{c} {b}") + constants, OPS).main).graph
    assert first.nodes[0].origins == second.nodes[1].origins != first.nodes[1].origins == second.nodes[0].origins


def test_what_does_matter() -> None:
    base = "func @f(%x : f32[A,B], %y : f32[A,B]) { %t = transpose(%x, perm=[1,0]) return %t, %y }"
    same = base.replace("A", "C").replace("B", "A")
    assert sites_of(same) == sites_of(base)
    for old, new in (("[1,0]", "[0,1]"), ("f32", "f64"), ("(%x,", "(%y,"), ("[A,B]", "[A,A]"), ("%t, %y", "%y, %t")):
        other = base.replace(old, new)
        assert other != base and sites_of(other) != sites_of(base), new


def test_the_hash_seed_does_not_matter() -> None:
    program = (
        "from random import Random; from random_graphs import random_function; from relume.graph.sites import assign;"
        "from relume.graph.text import print_function;"
        "print(print_function(assign(random_function(Random(1))), origins=True))"
    )
    path = os.pathsep.join(path for path in sys.path if path)
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1 and "!(" in texts.pop()
