"""The table of passes: what is checked before anything runs, and what after every pass."""

from __future__ import annotations

import pytest

from relume import ops
from relume.base.errors import CompileError, ModelError, VerifyError
from relume.graph.passes import Pass, check_table, graph_pass, invariant, run
from relume.graph.rewriter import Rewriter, clone
from relume.graph.text import parse_module
from relume.graph.types import Graph, Value
from relume.ops import OPS

FN = parse_module("func @f(%x : f32[3]) { %a = neg(%x) // m:a\n %y = exp(%a) return %y }", OPS).main


@invariant
def no_neg(graph: Graph) -> str | None:
    """There is no neg."""
    return "there is a neg" if any(node.op is ops.neg for node in graph.walk()) else None


@invariant
def nice(graph: Graph) -> str | None:
    """Always true."""
    return None


@graph_pass(ensures=(no_neg,), required=True)
def drop_neg_(graph: Graph) -> Graph:
    """Forgets every neg."""
    rewriter = Rewriter(graph, "drop-neg")
    for node in graph.nodes:
        if node.op is ops.neg:
            rewriter.replace_value(node.result, node.operands[0])
            rewriter.remove(node)
    return rewriter.finish()


@graph_pass(needs=(no_neg,))
def needy(graph: Graph) -> Graph:
    """Changes nothing."""
    return graph


@graph_pass(breaks=(no_neg,))
def spoiler(graph: Graph) -> Graph:
    """Changes nothing either."""
    return graph


def named(name: str, function: object, **contract: object) -> Pass:
    return Pass(name, function, **contract)  # type: ignore[arg-type]


def test_a_pass_is_named_after_its_function_and_keeps_its_words() -> None:
    assert (drop_neg_.name, drop_neg_.doc, drop_neg_.required) == ("drop-neg", "Forgets every neg.", True)
    assert (no_neg.name, no_neg.doc) == ("no-neg", "There is no neg.")


def test_the_table_tells_what_holds_after_each_pass() -> None:
    assert check_table([drop_neg_, needy, spoiler], [nice]) == ((nice, no_neg), (nice, no_neg), (nice,))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([needy, drop_neg_], "pass needy, number 1 in the table, needs no-neg"),
        ([drop_neg_, spoiler, needy], "pass needy, number 3 in the table, needs no-neg"),
        ([spoiler, named("spoiler", clone)], "two passes are called spoiler"),
        ([named("both", clone, ensures=(nice,), breaks=(nice,))], "both ensures and breaks nice"),
    ],
)
def test_a_wrong_table_is_refused(table: list[Pass], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        check_table(table, [nice])


def test_a_pass_may_stand_in_the_table_twice() -> None:
    seen: list[str] = []
    after = run([drop_neg_, needy, drop_neg_], FN, check=True, after=lambda name, fn: seen.append(name))
    assert [node.op.name for node in after.graph.nodes] == ["exp"]
    assert seen == ["drop-neg", "needy", "drop-neg"]


def test_the_same_function_comes_back_where_nothing_changes() -> None:
    assert run([spoiler], FN, check=True) is FN


def _wrong_type(graph: Graph) -> Graph:
    first, second = graph.nodes
    broken = second.with_(
        results=(Value(FN.inputs[0].type, "y"),), op=ops.greater, operands=(first.result,) * 2, origins=()
    )
    return Graph(graph.params, (first, broken), broken.results)


def _misfit(graph: Graph) -> Graph:
    rewriter = Rewriter(graph, "misfit")
    with rewriter.replacing(graph.nodes[0]) as build:
        build.give(build.apply(ops.transpose, graph.params[0], perm=(1, 0)))
    return rewriter.finish()


def _refuses(graph: Graph) -> Graph:
    raise ModelError("no")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (named("liar", lambda graph: graph, ensures=(no_neg,)), "after pass liar: no-neg does not hold"),
        (named("copier", clone), "pass copier changed nothing, yet returned another graph"),
        (named("wrong-type", _wrong_type), "after pass wrong-type: greater infers other result types"),
        (named("misfit", _misfit), "pass misfit built a node that does not fit"),
    ],
)
def test_a_pass_that_breaks_its_word_is_named(step: Pass, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        run([step], FN, check=True)


def test_what_a_pass_raises_tells_the_pass() -> None:
    with pytest.raises(ModelError) as caught:
        run([named("refuses", _refuses)], FN)
    assert caught.value.__notes__ == ["in pass refuses on @f"]


def test_the_nodes_around_the_guilty_one_are_shown() -> None:
    with pytest.raises(VerifyError) as caught:
        run([named("wrong-type", _wrong_type)], FN, check=True)
    assert "> " in (caught.value.context or "") and "%a = neg(%x) : f32[3]   // m:a" in str(caught.value)
