"""Random functions whose states nobody writes: what `derive` takes apart means, put together again, the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_functions import drawn
from test_random_graphs import agree

from relume import ops
from relume.graph import passes
from relume.graph.opdef import Trait
from relume.graph.rewriter import Rewriter
from relume.graph.sites import assign
from relume.graph.types import Function, Graph, Node, State, Unknown, Value
from relume.graph.verify import verify
from relume.passes.dce import dce
from relume.passes.derive import VIEWS, derive, split, steady
from relume.reference import evaluate

TEST = Unknown("test", "an input that is a state now")


def reading(fn: Function) -> Function:
    """The function without its writes, and with its first input as one more state."""
    rewriter = Rewriter(fn.graph, "test")
    for node in fn.graph.nodes:
        if node.op.has(Trait.EFFECT):
            rewriter.replace_value(node.results[0], node.operands[0])
            rewriter.remove(node)
    graph = rewriter.finish()
    first, *inputs = fn.inputs
    state = Value(State(first.tensor), "w")
    read = Node(ops.state_read, (state,), {}, (first,), origins=(TEST,))
    outputs = graph.results[: len(fn.outputs)]
    states = tuple(replace(value, name=f"s{index}") for index, value in enumerate(fn.states))
    renamed = dict(zip(fn.states, states))
    nodes = [node.with_(operands=tuple(renamed.get(value, value) for value in node.operands)) for node in graph.nodes]
    made = Graph((*inputs, state, *states), (read, *nodes), (*outputs, state, *states))
    return assign(Function(fn.name, made, 1 + len(states), fn.output_names))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_main_and_derived_together_mean_the_function(seed: int) -> None:
    drawn_fn, (w, *inputs), states = drawn(seed, symbolic=False, in_place=True)
    fn = reading(drawn_fn)
    verify(fn)
    states = [w, *states]
    want = evaluate(fn, inputs, states)
    after = passes.run([derive, dce], fn, check=True)
    assert derive(after.graph) is after.graph, "once is enough"
    agree(evaluate(after, inputs, states)[0], want[0])
    first, derived = split(after)
    verify(first)
    kept: list[np.ndarray] = []
    if derived is not None:
        verify(derived)
        assert not derived.inputs and derive(derived.graph) is derived.graph
        by_name = dict(zip((state.name for state in fn.states), states))
        kept, _ = evaluate(derived, [], [by_name[state.name] for state in derived.states])
    agree(evaluate(first, [*inputs, *kept], states)[0], want[0])
    left = steady(first.graph)
    assert all(node.op in VIEWS for node in first.graph.nodes if not left.isdisjoint(node.results)), "all that is work"
