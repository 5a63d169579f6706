"""matmul_packed: right within float32, and the same bits for every schedule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.harness import (
    CONST,
    TARGETS,
    WIDE_ON_AVX2,
    assembly,
    compile_kernel,
    emit,
    run_kernel,
    spec_of,
)

from relume.base.errors import CompileError
from relume.base.targets import AVX2, AVX512, Target
from relume.kernels.matmul import MATMUL_PACKED

PLAIN = {"body": (), "outs": (0,)}
BIAS_GELU = {
    "body": (
        ("add", (0, 1), (), "f32"),
        ("constant", (), (("value", math.sqrt(0.5)),), "f32"),
        ("mul", (2, 3), (), "f32"),
        ("erf", (4,), (), "f32"),
        ("mul", (2, 5), (), "f32"),
        ("add", (6, 2), (), "f32"),
    ),
    "outs": (7,),
}
SHAPES = [(1, 1, 1), (1, 64, 10), (3, 7, 5), (6, 16, 16), (7, 33, 40), (13, 5, 130), (85, 20, 33), (170, 9, 16)]


def pack(b: np.ndarray) -> np.ndarray:
    """[..,K,N] as [..,P,K,16]."""
    *batch, k, n = b.shape
    wide = np.zeros((*batch, k, -(-n // 16) * 16), b.dtype)
    wide[..., :n] = b
    return np.ascontiguousarray(np.moveaxis(wide.reshape(*batch, k, -(-n // 16), 16), -2, -3))


def normal(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray, **options: object) -> np.ndarray:
    """a @ b through the kernel, inside a larger array whose rest must stay as it was."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    room = np.full((*shape[:-1], shape[-1] + 3), 77, a.dtype)
    y = room[..., : shape[-1]]
    run_kernel(MATMUL_PACKED, [("in", a), (CONST, pack(b)), ("out", y)], PLAIN, **options)
    assert (room[..., shape[-1] :] == 77).all(), "written beyond the last column"
    return y.copy()


def chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The rule of the result's bits: fma ascending in k from 0. A product of two float32 is exact in float64, and
    with small integers no sum rounds in float64 either, so each step rounds once."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        out = (out.astype(np.float64) + a[:, k : k + 1].astype(np.float64) * b[k].astype(np.float64)).astype(np.float32)
    return out


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * max(float(np.abs(want).max(initial=0)), 1e-30))


@pytest.mark.parametrize("m,k,n", SHAPES)
def test_every_schedule_is_right_and_gives_the_same_bits(m: int, k: int, n: int) -> None:
    a, b = normal(1, m, k), normal(2, k, n)
    first = product(a, b)
    close(first, a.astype(np.float64) @ b)
    for target in TARGETS:
        for runtime_extents in (False, True):
            for splits in (1, 3):
                got = product(a, b, target=target, runtime_extents=runtime_extents, splits=splits)
                assert got.tobytes() == first.tobytes(), (target.name, runtime_extents, splits)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(m=st.integers(0, 60), k=st.integers(0, 40), n=st.integers(1, 70), runtime=st.booleans(), wide=st.booleans())
def test_the_bits_are_those_of_one_ascending_chain_of_fma(m: int, k: int, n: int, runtime: bool, wide: bool) -> None:
    rng = np.random.default_rng(m * 10000 + k * 100 + n)
    # 13-bit integers: sums of a few products of 26 bits round in float32 but not in float64.
    a, b = (rng.integers(-4096, 4096, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    got = product(a, b, runtime_extents=runtime, target=WIDE_ON_AVX2 if wide else AVX2)
    assert got.tobytes() == chain(a, b).tobytes()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(target: Target) -> None:
    a, b = normal(1, 8, 3, 50), normal(2, 50, 37)
    whole = product(a, b, target=target)
    for n in range(8):
        assert product(a[n], b, target=target).tobytes() == whole[n].tobytes()
        assert product(a[n, 1:2], b, target=target).tobytes() == whole[n, 1:2].tobytes()


@pytest.mark.parametrize("runtime_extents", [False, True])
def test_both_sides_may_have_batch_axes(runtime_extents: bool) -> None:
    a, b = normal(1, 2, 3, 9, 20), normal(2, 2, 3, 20, 21)
    close(product(a, b, runtime_extents=runtime_extents, splits=4), a.astype(np.float64) @ b)
    close(product(a, b[0], runtime_extents=runtime_extents), a.astype(np.float64) @ b[0])
    shared = np.broadcast_to(a[:, :1], a.shape)  # Stride 0 along an axis of the left side.
    close(product(shared, b, runtime_extents=runtime_extents), shared.astype(np.float64) @ b)


def test_any_strides_will_do() -> None:
    a, b = normal(1, 40, 23).T, normal(2, 40, 18)
    close(product(a, b), a.astype(np.float64) @ b)
    y = np.empty((18, 23), np.float32).T
    for target in TARGETS:
        run_kernel(MATMUL_PACKED, [("in", a), (CONST, pack(b)), ("out", y)], PLAIN, target=target)
        assert np.ascontiguousarray(y).tobytes() == product(a, b).tobytes()


@pytest.mark.parametrize("n", [32, 37])
@pytest.mark.parametrize("runtime_extents", [False, True])
def test_an_epilogue_has_the_same_bits_in_every_schedule(n: int, runtime_extents: bool) -> None:
    a, b, bias = normal(1, 17, 60), normal(2, 60, n), normal(3, n)
    results = []
    for target in TARGETS:
        y = np.empty((17, n), np.float32)
        operands = [("in", a), (CONST, pack(b)), ("in", np.broadcast_to(bias, y.shape)), ("out", y)]
        run_kernel(MATMUL_PACKED, operands, BIAS_GELU, target=target, runtime_extents=runtime_extents, splits=2)
        results.append(y)
    z = a.astype(np.float64) @ b + bias
    close(results[0], z * (1 + np.vectorize(math.erf)(z * math.sqrt(0.5))))
    assert results[0].tobytes() == results[1].tobytes()


def test_a_residual_may_be_overwritten_and_a_broadcast_may_not() -> None:
    a, b, residual, bias = normal(1, 20, 30), normal(2, 30, 37), normal(3, 20, 37), normal(4, 37)
    body = (("add", (0, 1), (), "f32"), ("add", (3, 2), (), "f32"))
    y = residual.copy()
    operands = [("in", a), (CONST, pack(b)), ("in", y), ("in", np.broadcast_to(bias, y.shape)), ("out", y)]
    params = {"body": body, "outs": (4,)}
    spec, _ = spec_of(MATMUL_PACKED, operands, params)
    assert MATMUL_PACKED.may_reuse(spec) == {4: (2,)}
    run_kernel(MATMUL_PACKED, operands, params, splits=2)
    close(y, a.astype(np.float64) @ b + residual + bias)


def test_a_body_may_have_two_results_of_other_types() -> None:
    a, b = normal(1, 9, 12), normal(2, 12, 19)
    positive, doubled = np.empty((9, 19), np.bool_), np.empty((9, 19), np.float64)
    body = (
        ("constant", (), (("value", 0.0),), "f32"),
        ("greater", (0, 1), (), "bool"),
        ("cast", (0,), (("to", "f64"),), "f64"),
    )
    operands = [("in", a), (CONST, pack(b)), ("out", positive), ("out", doubled)]
    run_kernel(MATMUL_PACKED, operands, {"body": body, "outs": (2, 3)})
    want = product(a, b)
    assert (positive == (want > 0)).all() and (doubled == want).all()


def test_float64_is_exact_enough() -> None:
    a, b = normal(1, 11, 70, dtype=np.float64), normal(2, 70, 35, dtype=np.float64)
    first = product(a, b)
    np.testing.assert_allclose(first, a @ b, rtol=1e-13, atol=1e-13)
    assert product(a, b, target=WIDE_ON_AVX2, runtime_extents=True).tobytes() == first.tobytes()


def test_nan_and_infinity_pass_through_and_padding_columns_do_not_matter() -> None:
    a, b = normal(1, 5, 8), normal(2, 8, 3)
    a[2, 3], a[4, 0] = np.nan, np.inf
    got = product(a, b)
    assert np.isnan(got[2]).all() and np.isinf(got[4]).all() and np.isfinite(got[[0, 1, 3]]).all()


def test_a_long_reduction_is_right() -> None:
    a, b = normal(1, 2, 20_000), normal(2, 20_000, 17)
    close(product(a, b), a.astype(np.float64) @ b)


def test_nothing_to_do_writes_nothing() -> None:
    for m, n in ((0, 5), (4, 0)):
        assert product(normal(1, m, 3), normal(2, 3, n)).size == 0
        assert product(normal(1, m, 3), normal(2, 3, n), runtime_extents=True).size == 0


def test_integers_are_refused() -> None:
    a = np.ones((2, 2), np.int32)
    with pytest.raises(CompileError, match="multiplies f32 or f64"):
        emit(MATMUL_PACKED, [("in", a), (CONST, pack(a)), ("out", a.copy())], PLAIN)


def test_the_avx512_code_uses_512_bits_keeps_its_sums_in_registers_and_calls_nothing_but_the_poll() -> None:
    operands = [("in", normal(1, 112, 64)), (CONST, pack(normal(2, 64, 64))), ("out", np.empty((112, 64), np.float32))]
    for runtime_extents in (False, True):
        *_, text = emit(MATMUL_PACKED, operands, PLAIN, target=AVX512, runtime_extents=runtime_extents)
        lines = assembly(text, AVX512).splitlines()
        assert sum("vfmadd" in line and "zmm" in line for line in lines) >= 28 * 4
        assert not any("vfmadd" in line and "ymm" in line for line in lines)
        assert {line.split()[1].split("@")[0] for line in lines if line.lstrip().startswith("call")} <= {"relume_poll"}
        assert not any("rsp), %zmm" in line for line in lines), "a sum was spilled and read again"


def test_the_number_of_tasks_is_the_same_for_every_target_and_known_or_unknown_extents() -> None:
    operands = [("in", normal(1, 200, 30)), (CONST, pack(normal(2, 30, 70))), ("out", np.empty((200, 70), np.float32))]
    counts = {
        compile_kernel(MATMUL_PACKED, operands, PLAIN, target=target, runtime_extents=runtime).tasks
        for target in TARGETS
        for runtime in (False, True)
    }
    assert len(counts) == 1
