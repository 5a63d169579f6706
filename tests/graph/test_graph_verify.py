"""What no text can say and the verifier still refuses: graphs that only a wrong pass can make."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

from relume import ops
from relume.base.errors import VerifyError
from relume.graph import verify as verify_module
from relume.graph.printer import print_function
from relume.graph.text import parse_module
from relume.graph.types import Constant, Function, Graph, Node, Value
from relume.graph.verify import INVARIANTS, verify
from relume.ops import OPS

FN = parse_module(
    """func @f(%x : f32[3], %c : bool[]) {
      %a = neg(%x)   // m:a
      %y = if(%c, %a) { (%p : f32[3]) %q = exp(%p) yield %q } { (%r : f32[3]) %s = add(%r, @w) yield %s }
      %t = transpose(%y, perm=[0])
      return %t
    }
    const @w : f32[3] = [1, 2, 3]""",
    OPS,
).main
A, IF, T = FN.graph.nodes
THEN, ELSE = IF.regions


def over(*nodes: Node, results: tuple[Value, ...] | None = None) -> Function:
    return FN.with_graph(Graph(FN.graph.params, nodes, results if results is not None else FN.graph.results))


def with_then(then: Graph) -> Function:
    return over(A, IF.with_(regions=(then, ELSE)), T)


def with_constant(constant: Constant) -> Function:
    add = ELSE.nodes[0].with_(operands=(ELSE.params[0], constant))
    return over(A, IF.with_(regions=(THEN, Graph(ELSE.params, (add,), ELSE.results))), T)


def writable() -> Constant:
    return Constant(FN.inputs[0].type, "w", np.zeros(3, np.float32))


WRONG: dict[str, tuple[Callable[[], Function], str]] = {
    "use before definition": (lambda: over(IF, A, T), "single-assignment"),
    "defined twice": (lambda: over(A, IF, IF.with_(), T), "single-assignment"),
    "a result from nowhere": (lambda: over(A, IF, T, results=(Value(A.result.type),)), "single-assignment"),
    "an outer value in a region": (lambda: with_then(Graph(THEN.params, (), (A.result,))), "single-assignment"),
    "a parameter is defined again": (
        lambda: over(A.with_(results=(FN.inputs[0],)), IF.with_(operands=(FN.inputs[1], FN.inputs[0])), T),
        "single-assignment",
    ),
    "one region twice": (lambda: over(A, IF.with_(regions=(THEN, THEN)), T), "single-assignment"),
    "one empty region twice": (
        lambda: over(IF.with_(operands=(FN.inputs[1],), origins=(), results=(), regions=(EMPTY, EMPTY)), results=()),
        "closed-regions",
    ),
    "a region too few": (lambda: over(A, IF.with_(regions=(THEN,)), T), "closed-regions"),
    "an operand too many": (
        lambda: over(A.with_(operands=(FN.inputs[0],) * 2, origins=()), IF, T),
        "nodes-fit-their-ops",
    ),
    "an attribute is missing": (lambda: over(A, IF, T.with_(attrs={})), "nodes-fit-their-ops"),
    "an attribute too many": (lambda: over(A.with_(attrs={"perm": (0,)}), IF, T), "nodes-fit-their-ops"),
    "another result type": (
        lambda: over(A, IF, T.with_(results=(Value(FN.inputs[1].type),)), results=()),
        "types-are-inferred",
    ),
    "a region of another signature": (lambda: with_then(Graph((), (), THEN.params)), "single-assignment"),
    "a region without parameters": (lambda: with_then(Graph((), (), (writable(),))), "types-are-inferred"),
    "a constant that can be written": (lambda: with_constant(writable()), "constants-are-immutable"),
    "a constant of another type": (
        lambda: with_constant(Constant(FN.inputs[0].type, "w", Constant.of(np.zeros(3)).data)),
        "constants-are-immutable",
    ),
    "an output without a name": (
        lambda: Function("f", FN.graph, 0, ()),
        "signature-is-whole",
    ),
    "silence in a slot": (
        lambda: over(A.with_(origins=(frozenset(),)), IF, T),
        "origins-are-complete",
    ),
    "something else in a slot": (
        lambda: over(A.with_(origins=("nothing",)), IF, T),
        "origins-are-complete",
    ),
}
EMPTY = Graph((), (), ())


@pytest.mark.parametrize("name", WRONG)
def test_the_invariant_is_named_with_the_place(name: str) -> None:
    make, invariant = WRONG[name]
    fn = make()
    with pytest.raises(VerifyError) as caught:
        verify(fn)
    message = str(caught.value)
    assert f"[{invariant}]" in message and "@f" in message
    assert print_function(fn)  # Whatever is wrong with it, it can be looked at.


def test_the_graph_behind_these_is_right() -> None:
    verify(FN)


def test_every_invariant_is_written_in_the_prose_and_has_a_docstring() -> None:
    prose = verify_module.__doc__ or ""
    assert all(f"{number}. " in prose for number in range(1, len(INVARIANTS) + 1))
    assert f"{len(INVARIANTS) + 1}. " not in prose
    assert all(inspect.getdoc(invariant) for invariant in INVARIANTS)


def test_every_invariant_is_broken_by_some_test() -> None:
    by_text = {"states-are-linear", "next-states-descend", "symbols-are-bound"}  # in verify.rlm
    names = {invariant.__name__.replace("_", "-") for invariant in INVARIANTS}
    assert names == by_text | {invariant for _, invariant in WRONG.values()}


def test_the_guilty_line_is_marked_among_ten() -> None:
    lines = "".join(f"  %v{index + 1} = neg(%v{index})\n" for index in range(30))
    fn = parse_module(f"func @g(%v0 : f32[3]) {{\n{lines}  return %v30\n}}", OPS).main
    nodes = list(fn.graph.nodes)
    nodes[20] = nodes[20].with_(op=ops.greater, operands=(nodes[19].result,) * 2, origins=())
    with pytest.raises(VerifyError) as caught:
        verify(fn.with_graph(Graph(fn.graph.params, tuple(nodes), fn.graph.results)))
    shown = (caught.value.context or "").split("\n")
    assert len(shown) == 11
    assert [line for line in shown if line.startswith(">")] == [">   %v21 = greater(%v20, %v20) : f32[3]"]
