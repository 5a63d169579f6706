"""`rows` against its steps one by one, which it must equal bit for bit; how often it walks; what it may overwrite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from harness import compile_kernel, emit, run_kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import run_all

from relume.base import dtypes
from relume.base.errors import CompileError
from relume.kernels.elementwise import Step
from relume.kernels.map import MAP
from relume.kernels.reduce import REDUCE
from relume.kernels.rows import ROWS
from relume.kernels.stages import REDUCTIONS, Stages

RNG = np.random.default_rng(23)


def step(op: str, *args: int, dtype: str = "f32") -> Step:
    return (op, args, (), dtype)


def number(value: float) -> Step:
    return ("constant", (), (("value", value),), "f32")


SOFTMAX = [step("reduce_max", 0), step("sub", 0, 1), step("exp", 2), step("reduce_sum", 3), step("div", 3, 4)]
LOG_SOFTMAX = [*SOFTMAX[:4], step("log", 4), step("sub", 2, 5)]
LAYER_NORM = [
    step("reduce_mean", 0), step("sub", 0, 3), step("mul", 4, 4), step("reduce_mean", 5), number(1e-5),
    step("add", 6, 7), step("sqrt", 8), step("reciprocal", 9), step("mul", 4, 10), step("mul", 11, 1),
    step("add", 12, 2),
]  # fmt: skip
RMS_NORM = [step("mul", 0, 0), step("reduce_mean", 2), step("sqrt", 3), step("div", 0, 4), step("mul", 5, 1)]


def one_by_one(inputs: Sequence[np.ndarray], length: int, body: Sequence[Step]) -> list[np.ndarray]:
    """All values, each step by a kernel of its own: [kept..., length], or [kept..., 1] where it is known from such."""
    values = list(inputs)
    kept = inputs[0].shape[:-1]
    for op, args, attrs, name in body:
        dtype = dtypes.BY_NAME[name].numpy
        shape = (*kept, max((values[arg].shape[-1] for arg in args), default=1))
        if op in REDUCTIONS:
            out = np.empty(kept, dtype)
            row = np.broadcast_to(values[args[0]], (*kept, length))
            run_kernel(REDUCE, [("in", row), ("out", out)], {"kind": REDUCTIONS[op], "kept": len(kept)})
            values.append(out[..., None])
            continue
        out = np.empty((*kept, length if any(values[arg].shape[-1] != 1 for arg in args) else 1), dtype)
        views = [("in", np.broadcast_to(values[arg], out.shape)) for arg in args]
        single = (op, tuple(range(len(args))), attrs, name)
        run_kernel(MAP, [*views, ("out", out)], {"body": (single,), "outs": (len(args),)})
        assert out.shape == shape or length == 1
        values.append(out)
    return values


def check(inputs: Sequence[np.ndarray], length: int, body: Sequence[Step], outs: Sequence[int]) -> None:
    """`rows` gives the bits of the steps one by one, in every variant."""
    values = one_by_one(inputs, length, body)
    kept = inputs[0].shape[:-1]
    steps = [step[0] for step in body]
    wanted = []
    for out in outs:
        reduces = out >= len(inputs) and steps[out - len(inputs)] in REDUCTIONS
        wanted.append(values[out][..., 0] if reduces else np.broadcast_to(values[out], (*kept, length)))
    operands = [*(("in", array) for array in inputs), *(("out", np.empty(w.shape, w.dtype)) for w in wanted)]
    got = run_all(ROWS, operands, {"body": tuple(body), "outs": tuple(outs)}, [length])
    for array, want in zip(got, wanted):
        assert array.tobytes() == np.ascontiguousarray(want).tobytes()


def rows(*shape: int, dtype: str = "f4") -> np.ndarray:
    return (RNG.standard_normal(shape) * 2).astype(dtype)


@pytest.mark.parametrize("length", [1, 5, 12, 16, 33, 120])
@pytest.mark.parametrize("count", [1, 5])
def test_norms_have_the_bits_of_their_steps(length: int, count: int) -> None:
    x = rows(count, length)
    weights = [np.broadcast_to(rows(length), x.shape) for _ in range(2)]
    check([x], length, SOFTMAX, [5])
    check([x], length, LOG_SOFTMAX, [6])
    check([x, *weights], length, LAYER_NORM, [13])
    check([x, weights[0]], length, RMS_NORM, [6])


def test_softmax_is_softmax() -> None:
    x = rows(7, 50)
    x[2, 3:] = -np.inf
    x[3] = -np.inf
    x[4, 9] = np.nan
    x[5, 2] = np.inf
    (got,) = run_all(ROWS, [("in", x), ("out", x.copy())], {"body": tuple(SOFTMAX), "outs": (5,)}, [50])
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(axis=1, keepdims=True), dtype=np.float64)
        np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-12)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[np.ndarray], int, list[Step], list[int]]:
    """Inputs with gaps between rows, repeated along the rows or across them, and any steps and reductions on them."""
    length = draw(st.sampled_from((1, 3, 15, 16, 17, 40)))
    kept = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5)), max_size=2)))
    inputs: list[np.ndarray] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("whole", "gaps", "one", "shared")))
        if kind == "gaps":
            inputs.append(rows(*kept, length + 3)[..., :length])
        elif kind == "shared":
            inputs.append(np.broadcast_to(rows(length), (*kept, length)))
        else:
            inputs.append(rows(*kept, length if kind == "whole" else 1))
    body: list[Step] = []
    for index in range(draw(st.integers(1, 9))):
        values = st.integers(0, len(inputs) + index - 1)
        op = draw(st.sampled_from((*REDUCTIONS, "sub", "mul", "max", "exp", "abs", "neg", "constant")))
        if op == "constant":
            body.append(number(draw(st.sampled_from((0.5, -3.0)))))
        else:
            body.append(step(op, *(draw(values) for _ in range(2 if op in ("sub", "mul", "max") else 1))))
    outs = draw(st.lists(st.integers(len(inputs), len(inputs) + len(body) - 1), min_size=1, max_size=2, unique=True))
    return inputs, length, body, outs


@given(bodies())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_body_has_the_bits_of_its_steps(case: tuple[list[np.ndarray], int, list[Step], list[int]]) -> None:
    with np.errstate(all="ignore"):
        check(*case)


def test_over_nothing() -> None:
    x, one = np.zeros((3, 0), np.float32), rows(3, 1)
    body = [step(f"reduce_{kind}", 0) for kind in ("sum", "mean", "max", "min")] + [step("add", 2, 1), step("exp", 0)]
    operands = [("in", x), ("in", one), *(("out", np.zeros(3, np.float32)) for _ in range(4)), ("out", x.copy())]
    params = {"body": tuple(body), "outs": (2, 3, 4, 5, 7)}
    for runtime in (False, True):
        run_kernel(ROWS, operands, params, [0], runtime_extents=runtime)
        for (_, got), want in zip(operands[2:], (0, np.nan, -np.inf, np.inf)):
            np.testing.assert_array_equal(got, np.full(3, want, np.float32))


@pytest.mark.parametrize("length", [7, 16, 37])
def test_every_type_goes_through_a_body(length: int) -> None:
    x, mask, codes = (
        rows(3, length, dtype="f8"),
        rows(3, length) > 0,
        RNG.integers(-99, 99, (3, length)).astype(np.int8),
    )
    body = [
        step("cast", 2, dtype="f64"), step("select", 1, 0, 3, dtype="f64"), step("reduce_sum", 4, dtype="f64"),
        step("less", 4, 5, dtype="bool"), step("cast", 4, dtype="f16"), step("reduce_max", 2, dtype="i8"),
        step("sub", 2, 8, dtype="i8"),
    ]  # fmt: skip
    attrs = {3: (("to", dtypes.f64),), 7: (("to", dtypes.f16),)}
    body = [(op, args, attrs.get(n, ()), dtype) for n, (op, args, _, dtype) in enumerate(body, 3)]
    check([x, mask, codes], length, body, [6, 7, 9])


def test_a_dear_value_is_kept_and_a_cheap_one_computed_again() -> None:
    def walks(body: Sequence[Step], out: int, inputs: int) -> list[tuple[tuple[int, ...], int | None, int | None]]:
        x = rows(4, 64)
        spec, _, _ = emit(ROWS, [*[("in", x)] * inputs, ("out", x)], {"body": tuple(body), "outs": (out,)}, [64])
        return [(walk.reads, walk.held, walk.keeps) for walk in Stages(spec).walks]

    assert walks(SOFTMAX, 5, 1) == [((0,), None, None), ((0,), None, 3), ((), 3, None)]
    assert walks(LAYER_NORM, 13, 3) == [((0,), None, None), ((0,), None, None), ((0, 1, 2), None, None)]


def test_a_result_may_sit_on_what_no_later_walk_reads() -> None:
    x, mask = rows(5, 40), np.broadcast_to(rows(40), (5, 40))
    for body, out, inputs, allowed in (
        (SOFTMAX, 5, [x], (0,)),
        (LAYER_NORM, 13, [x, mask, mask], (0,)),
        ([*SOFTMAX, step("mul", 0, 5)], 6, [x], ()),
    ):
        operands = [*(("in", array) for array in inputs), ("out", np.empty_like(x))]
        params = {"body": tuple(body), "outs": (out,)}
        compiled = compile_kernel(ROWS, operands, params, [40])
        assert ROWS.may_reuse(compiled.spec) == {len(inputs): allowed}
        if allowed:
            compiled.call([array for _, array in operands])
            same = x.copy()
            compiled.call([same, *inputs[1:], same])
            assert same.tobytes() == operands[-1][1].tobytes()


def test_a_row_in_pieces_is_refused() -> None:
    x = rows(4, 10)[:, ::2]
    with pytest.raises(CompileError, match="no run of elements"):
        emit(ROWS, [("in", x), ("out", np.empty((4, 5), np.float32))], {"body": tuple(SOFTMAX), "outs": (5,)}, [5])


def test_long_rows_poll_and_many_become_tasks() -> None:
    def calls(x: np.ndarray) -> tuple[int, int]:
        operands = [("in", x), ("out", np.empty_like(x))]
        params = {"body": tuple(SOFTMAX), "outs": (5,)}
        compiled = compile_kernel(ROWS, operands, params, [x.shape[1]])
        return compiled.text.count("call i32 @relume_poll"), compiled.tasks

    assert calls(np.zeros((4, 128), np.float32)) == (1, 1)
    polls, tasks = calls(np.zeros((256, 20000), np.float32))
    assert polls > 3 and tasks >= 64
