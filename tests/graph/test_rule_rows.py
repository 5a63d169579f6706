"""Rules as rows: patterns, guards, counting, and ends that are found."""

from __future__ import annotations

import pytest

from relume import ops
from relume.base.errors import CompileError
from relume.graph.builder import Builder
from relume.graph.rules import EXACT, Rule, apply_rules, parse_pattern, rule, sides
from relume.graph.text import parse_module, print_function
from relume.graph.types import Constant, Node, Value
from relume.graph.verify import verify
from relume.ops import OPS


def rewritten(text: str, *rules: Rule) -> str:
    """The nodes of the only function after the rules, and its results."""
    fn = parse_module(text, OPS).main
    after = fn.with_graph(apply_rules(fn.graph, rules, "test"))
    verify(after)
    lines = print_function(after).split("\n")
    return " ".join(line.strip() for line in lines[1 : lines.index("}")])


# neg(neg(x)) -> x
@rule("neg(neg(x))", EXACT, example="func @f(%x : f32[3]) { %a = neg(%x) %y = neg(%a) return %y }")
def neg_of_neg(build: Builder, x: Value) -> Value:
    return x


# x * x -> square, spelt exp(x) here to see it
@rule("mul(x, x)", EXACT, example="func @f(%x : f32[3]) { %y = mul(%x, %x) return %y }")
def square(build: Builder, x: Value) -> Value:
    return build.apply(ops.exp, x)


# x + @c -> x - @c where @c is 0
@rule("node=add(x, @c)", EXACT, example="func @f(%x : f32[3]) { %y = add(@c, %x) return %y }\nconst @c : f32[] = 0")
def add_nothing(build: Builder, x: Value, c: Constant, node: Node) -> Value | None:
    return build.apply(ops.sub, x, c) if not c.data.any() and x.type == node.result.type else None


def test_a_rule_fires_until_nothing_is_left_and_counts() -> None:
    before = neg_of_neg.hits
    text = "func @f(%x : f32[3]) { %a = neg(%x) %b = neg(%a) %c = neg(%b) %y = neg(%c) return %y }"
    assert rewritten(text, neg_of_neg) == 'return %x as "y"'
    assert neg_of_neg.hits == before + 2


def test_nothing_fires_nothing_changes() -> None:
    graph = parse_module("func @f(%x : f32[3]) { %y = neg(%x) return %y }", OPS).main.graph
    assert apply_rules(graph, [neg_of_neg, square, add_nothing], "test") is graph


def test_one_name_is_one_value() -> None:
    assert "exp" in rewritten("func @f(%x : f32[3]) { %y = mul(%x, %x) return %y }", square)
    assert "exp" not in rewritten("func @f(%x : f32[3], %z : f32[3]) { %y = mul(%x, %z) return %y }", square)


def test_one_name_is_one_constant_by_content() -> None:
    text = "func @f() { %y = mul(@a, @b) return %y }\nconst @a : f32[] = 2\nconst @b : f32[] = 2"
    assert "exp" in rewritten(text, square)


def test_commutative_operands_match_in_both_orders() -> None:
    for call in ("add(%x, @c)", "add(@c, %x)"):
        text = f"func @f(%x : f32[3]) {{ %y = {call} return %y }}\nconst @c : f32[] = 0"
        assert "sub(%x, @c)" in rewritten(text, add_nothing)


def test_a_match_that_declines_leaves_the_next_one_to_try() -> None:
    text = "func @f() { %y = add(@a, @b) return %y }\nconst @a : f32[] = 0\nconst @b : f32[] = 2"
    assert "sub(@b, @a)" in rewritten(text, add_nothing)


def test_a_rule_that_declines_does_not_count() -> None:
    before = add_nothing.hits
    text = "func @f(%x : f32[3]) { %y = add(%x, @c) return %y }\nconst @c : f32[] = 1"
    assert "add" in rewritten(text, add_nothing) and add_nothing.hits == before


def test_regions_are_rewritten_too() -> None:
    text = """func @f(%c : bool[], %x : f32[3]) {
      %y = if(%c, %x) { (%p : f32[3]) %a = neg(%p) %b = neg(%a) yield %b } { (%q : f32[3]) yield %q }
      return %y
    }"""
    assert "neg" not in rewritten(text, neg_of_neg)


def test_a_node_with_other_readers_is_not_computed_twice_where_the_rule_says_so() -> None:
    @rule("neg(inner=exp(x))", EXACT, example="", single=("inner",))
    def neg_of_exp(build: Builder, x: Value) -> Value:
        return build.apply(ops.exp, x)

    text = "func @f(%x : f32[3]) {{ %a = exp(%x) %y = neg(%a) return %y{} }}"
    assert "neg" not in rewritten(text.format(""), neg_of_exp)
    assert "neg" in rewritten(text.format(", %a"), neg_of_exp)


def test_any_operands_and_named_nodes() -> None:
    @rule("node=concat(*)", EXACT, example="")
    def concat_of_one(build: Builder, node: Node) -> Value | None:
        return node.operands[0] if len(node.operands) == 1 else None

    text = "func @f(%x : f32[3]) { %a = concat(%x, axis=0) %y = concat(%a, %x, axis=0) return %y }"
    assert rewritten(text, concat_of_one) == '%y = concat(%x, %x, axis=0) : f32[6] return %y as "y"'


def test_two_rules_that_chase_each_other_are_named() -> None:
    @rule("node=add(x, y)", EXACT, example="")
    def there(build: Builder, x: Value, y: Value, node: Node) -> Value:
        return build.apply(ops.sub, x, y)

    @rule("sub(x, y)", EXACT, example="")
    def back(build: Builder, x: Value, y: Value) -> Value:
        return build.apply(ops.add, x, y)

    graph = parse_module("func @f(%x : f32[3]) { %y = add(%x, %x) return %y }", OPS).main.graph
    with pytest.raises(CompileError, match="back and there, which chase each other"):
        apply_rules(graph, [there, back, neg_of_neg], "test")


def test_a_rule_must_fire_on_its_example() -> None:
    before, after = sides(neg_of_neg, OPS)
    assert (len(before.graph.nodes), len(after.graph.nodes)) == (2, 0)

    @rule("neg(neg(x))", EXACT, example="func @f(%x : f32[3]) { %y = neg(%x) return %y }")
    def lazy(build: Builder, x: Value) -> Value:
        return x

    with pytest.raises(CompileError, match="rule lazy does not fire"):
        sides(lazy, OPS)


@pytest.mark.parametrize("text", ["x", "add(x", "add(x,)", "add(a=x)", "add(x) y", "", "add(x, 1)"])
def test_a_malformed_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|parenthesis"):
        parse_pattern(text)


def test_a_function_may_only_ask_for_what_is_captured() -> None:
    with pytest.raises(ValueError, match="captures no 'z'"):

        @rule("add(x, y)", EXACT, example="")
        def wrong(build: Builder, z: Value) -> Value:
            return z
