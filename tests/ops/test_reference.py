"""The evaluator: symbols, checks, regions, states, and what it must not touch."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest

from relume.base.errors import InputError, RunError, VerifyError
from relume.graph.text import parse_module
from relume.graph.types import Function, Tensor
from relume.ops import OPS
from relume.reference import evaluate

F32, I64 = np.float32, np.int64


def function(text: str) -> Function:
    return parse_module(text, OPS).main


def f32(*values: float) -> np.ndarray:
    return np.array(values, F32)


ADD = function("func @main(%x : f32[N,3], %y : f32[N,1]) { %s = add(%x, %y) return %s }")


def test_symbols_are_bound_by_the_inputs() -> None:
    for n in (0, 1, 4):
        (out,), states = evaluate(ADD, [np.ones((n, 3), F32), np.ones((n, 1), F32)])
        assert out.shape == (n, 3) and (out == 2).all() and states == []


@pytest.mark.parametrize(
    ("shapes", "expected", "got"),
    [
        ([(2, 3), (4, 1)], "N = 2", "4, in f32[4,1]"),
        ([(2, 4), (2, 1)], "3, in f32[N,3]", "4, in f32[2,4]"),
        ([(2, 3, 1), (2, 1)], "f32[N,3]", "f32[2,3,1]"),
    ],
)
def test_an_input_of_another_shape_is_refused_by_name(shapes: list[tuple[int, ...]], expected: str, got: str) -> None:
    with pytest.raises(InputError) as refusal:
        evaluate(ADD, [np.ones(shape, F32) for shape in shapes])
    guilty = "y" if shapes[1] == (4, 1) else "x"
    assert f"input '{guilty}'" in refusal.value.what
    assert expected in str(refusal.value.expected) and got in str(refusal.value.got)


@pytest.mark.parametrize("wrong", [np.ones((2, 3)), np.ones((2, 3), ">f4"), np.ones((2, 3), complex), [[1.0]], None])
def test_an_input_of_another_type_is_refused_and_never_converted(wrong: object) -> None:
    with pytest.raises(InputError, match="input 'x' has the wrong type"):
        evaluate(ADD, [wrong, np.ones((2, 1), F32)])  # type: ignore[list-item]


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(InputError, match="takes 2 inputs"):
        evaluate(ADD, [np.ones((2, 3), F32)])
    with pytest.raises(InputError, match="takes 0 states"):
        evaluate(ADD, [np.ones((2, 3), F32), np.ones((2, 1), F32)], [np.ones(1, F32)])


def test_an_extent_that_no_input_gives_is_an_input_error() -> None:
    fn = function("func @main(%x : f32[2*N]) { %y = neg(%x) return %y }")
    with pytest.raises(InputError, match="no input gives the extent N"):
        evaluate(fn, [f32(1, 2)])


def test_extents_that_are_expressions_are_checked() -> None:
    fn = function("func @main(%x : f32[N], %y : f32[2*N+1]) { %z = concat(%x, %y, axis=0) return %z }")
    (out,), _ = evaluate(fn, [f32(1, 2), f32(3, 4, 5, 6, 7)])
    assert out.tolist() == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(InputError, match=r"2\*N\+1 = 5"):
        evaluate(fn, [f32(1, 2), f32(3)])


def test_symbols_in_attributes_have_their_value() -> None:
    fn = function(
        "func @main(%x : f32[N,M]) {\n"
        "  %r = reshape(%x, dims=[N*M])\n"
        "  %s = slice(%r, starts=[N*M-1], stops=[-1], steps=[-2])\n"
        "  %e = extents(dims=[N,(M+1)//2])\n"
        "  return %s, %e }"
    )
    (backwards, extents), _ = evaluate(fn, [np.arange(6, dtype=F32).reshape(2, 3)])
    assert backwards.tolist() == [5, 3, 1] and extents.tolist() == [2, 2] and extents.dtype == I64


def test_outputs_are_fresh_arrays_in_c_order() -> None:
    fn = function(
        "func @main(%x : f32[2,3]) {\n"
        "  %t = transpose(%x, perm=[1,0])\n"
        '  return %x as "x", %t as "t", %t as "again", @c as "c" }\n'
        "const @c : f32[2] = [1,2]"
    )
    x = np.arange(6, dtype=F32).reshape(2, 3)
    outs, _ = evaluate(fn, [x])
    constant = fn.graph.results[-1].data  # type: ignore[attr-defined]
    assert all(out.flags.c_contiguous and out.flags.writeable and out.flags.owndata for out in outs)
    arrays = [x, constant, *outs]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert outs[1].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_no_reference_can_write_an_operand() -> None:
    def vandal(x: np.ndarray, *, attrs: object, regions: object) -> tuple[np.ndarray, ...]:
        x[...] = 0
        return (x,)

    op = replace(OPS["neg"], reference=vandal)
    fn = parse_module("func @main(%x : f32[2]) { %y = neg(%x) return %y }", {"neg": op}).main
    with pytest.raises(ValueError, match="read-only"):
        evaluate(fn, [f32(1, 2)])


def test_inputs_may_be_read_only_and_strided() -> None:
    x = np.arange(12, dtype=F32).reshape(6, 2)[::-2, :1]
    x.flags.writeable = False
    (out,), _ = evaluate(function("func @main(%x : f32[N,1]) { %y = neg(%x) return %y }"), [x])
    assert out.reshape(-1).tolist() == [-10, -6, -2]


def test_values_are_freed_after_their_last_use() -> None:
    alive: list[int] = []
    made: list[weakref.ref[np.ndarray]] = []

    def spy(x: np.ndarray, *, attrs: object, regions: object) -> tuple[np.ndarray, ...]:
        alive.append(sum(ref() is not None for ref in made))
        result = np.array(x)
        made.append(weakref.ref(result))
        return (result,)

    ops = {"neg": replace(OPS["neg"], reference=spy)}
    lines = "".join(f"  %v{index + 1} = neg(%v{index})\n" for index in range(5))
    evaluate(parse_module(f"func @main(%v0 : f32[2]) {{\n{lines}  return %v5 }}", ops).main, [f32(1, 2)])
    assert alive == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("params", "node", "arrays", "message"),
    [
        ("%x : f32[N], %y : f32[M]", "add(%x, %y)", [f32(1, 2), f32(1, 2, 3)], "do not broadcast"),
        ("%x : f32[N]", "reshape(%x, dims=[2,2])", [f32(1, 2, 3)], "number of elements"),
        ("%x : f32[N]", "slice(%x, starts=[0], stops=[4], steps=[1])", [f32(1, 2, 3)], "leaves axis 0"),
        ("%x : f32[N]", "pad(%x, pads=[N-3,0], value=0.0)", [f32(1)], "out of range"),
        ("%x : f32[1,1,N], %w : f32[1,1,M]", "conv(%x, %w, strides=[1], pads=[0,0], dilations=[1], groups=1)",
         [np.ones((1, 1, 2), F32), np.ones((1, 1, 4), F32)], "does not fit"),
        ("%x : f32[N], %i : i64[M]", "gather(%x, %i, axis=0)", [f32(1, 2), np.array([2])], "index 2 is out of range"),
        ("%x : f32[N]", "argmax(%x, axis=0, keep=false)", [f32()], "empty axis"),
        ("%x : f32[N]", "reshape(%x, dims=[1,6//N])", [f32()], "divided by 0"),
    ],
)  # fmt: skip
def test_what_fails_at_run_time_names_the_node(params: str, node: str, arrays: list[np.ndarray], message: str) -> None:
    fn = function(f"func @main({params}) {{\n  %r = {node} // net.onnx:Guilty_7\n  return %r }}")
    with pytest.raises(RunError, match=message) as failure:
        evaluate(fn, arrays)
    assert str(failure.value.where) == "net.onnx:Guilty_7"


def test_a_reference_that_disagrees_with_infer_is_found() -> None:
    lying = replace(OPS["neg"], infer=lambda types, attrs, regions: (Tensor(types[0].dtype, (3,)),))
    text = "func @main(%x : f32[2]) { %y = neg(%x) // net.onnx:Neg_0\n return %y }"
    with pytest.raises(VerifyError, match="neg: the result 'y' does not have its type") as failure:
        evaluate(parse_module(text, {"neg": lying}).main, [f32(1, 2)])
    assert str(failure.value.where) == "net.onnx:Neg_0"
    assert str(failure.value.expected) == "f32[3]" and failure.value.got == "f32[2]"


def test_states_are_read_and_written_in_order() -> None:
    fn = function(
        "func @main(%x : f32[2]) states(%s : f32[2], %t : f32[2]) {\n"
        "  %old = state_read(%s)\n  %new = add(%old, %x)\n  %s1 = state_write(%s, %new)\n"
        "  %again = state_read(%s1)\n  return %again states(%s1, %t) }"
    )
    s, t = f32(1, 2), f32(5, 6)
    (out,), (next_s, next_t) = evaluate(fn, [f32(10, 20)], [s, t])
    assert out.tolist() == next_s.tolist() == [11, 22] and next_t.tolist() == [5, 6]
    assert s.tolist() == [1, 2] and next_t is not t


IF = """
func @main(%c : bool[], %x : f32[N]) {
  %y = if(%c, %x) : f32[N] { (%a : f32[N]) %r = neg(%a) yield %r } { (%b : f32[N]) %r = exp(%b) yield %r }
  return %y
}
"""


def test_if_runs_one_region_only() -> None:
    def forbidden(x: np.ndarray, *, attrs: object, regions: object) -> tuple[np.ndarray, ...]:
        raise AssertionError("the other branch ran")

    ops = {**OPS, "exp": replace(OPS["exp"], reference=forbidden)}
    (out,), _ = evaluate(parse_module(IF, ops).main, [np.array(True), f32(1, 2)])
    assert out.tolist() == [-1, -2]
    (other,), _ = evaluate(parse_module(IF, OPS).main, [np.array(False), f32(0)])
    assert other.tolist() == [1]


GROW = """
func @main(%n : i64[], %x : f32[K]) {
  %y, %rows = loop(%n, @go, %x, %x, carried=1, scans=1, length=L) : f32[T], f32[L,K] {
    (%i : i64[], %c : bool[], %acc : f32[T], %k : f32[K])
    %next = concat(%acc, %k, axis=0)
    %f = cast(%i, to=f32)
    %row = mul(%k, %f)
    yield %c, %next, %row
  }
  %z = neg(%y)
  return %z, %rows
}
const @go : bool[] = true
"""


@pytest.mark.parametrize("trips", [-3, 0, 1, 4])
def test_a_loop_may_grow_its_carried_values_and_stacks_its_scans(trips: int) -> None:
    (z, rows), _ = evaluate(function(GROW), [np.array(trips), f32(1, 2)])
    count = max(trips, 0)
    assert z.tolist() == [-1, -2] * (count + 1)
    assert rows.shape == (count, 2) and rows.tolist() == [[i, 2 * i] for i in range(count)]


def test_a_loop_ends_when_its_condition_fails_and_nests() -> None:
    fn = function(
        """
        func @main(%start : i64[]) {
          %total = loop(@many, @go, %start, carried=1, scans=0) {
            (%i : i64[], %c : bool[], %n : i64[])
            %m = loop(%i, @go, %n, carried=1, scans=0) {
              (%j : i64[], %d : bool[], %k : i64[]) %next = add(%k, @one) yield %d, %next
            }
            %more = less(%m, @limit)
            yield %more, %m
          }
          return %total
        }
        const @many : i64[] = 4611686018427387904
        const @go : bool[] = true
        const @one : i64[] = 1
        const @limit : i64[] = 10
        """
    )
    (total,), _ = evaluate(fn, [np.array(0)])
    assert total == 10  # 0 + 0 + 1 + 2 + 3 + 4 is the first sum that is not below 10


def test_a_failure_in_a_region_names_the_inner_node() -> None:
    fn = function(
        "func @main(%c : bool[], %x : f32[3], %i : i64[1]) {\n"
        "  %y = if(%c, %x, %i) {\n"
        "    (%a : f32[3], %j : i64[1])\n    %r = gather(%a, %j, axis=0) // net.onnx:Inner\n    yield %r } {\n"
        "    (%a : f32[3], %j : i64[1])\n    %r = slice(%a, starts=[0], stops=[1], steps=[1])\n    yield %r }\n"
        "  return %y }"
    )
    with pytest.raises(RunError, match="out of range") as failure:
        evaluate(fn, [np.array(True), f32(1, 2, 3), np.array([3])])
    assert str(failure.value.where) == "net.onnx:Inner"
    (out,), _ = evaluate(fn, [np.array(False), f32(1, 2, 3), np.array([3])])
    assert out.tolist() == [1]
