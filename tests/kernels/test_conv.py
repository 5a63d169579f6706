"""conv_blocked, depthwise_blocked and conv_plain: right within float32, and the same bits for every schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.harness import CONST, TARGETS, WIDE_ON_AVX2, assembly, emit, run_kernel, spec_of

from relume.base.errors import CompileError
from relume.base.targets import AVX2, AVX512, Target
from relume.kernels.conv import CONV_BLOCKED
from relume.kernels.conv_plain import CONV_PLAIN
from relume.kernels.depthwise import DEPTHWISE_BLOCKED
from relume.program.types import KernelDef

SCHEDULES = list(itertools.product(TARGETS, (False, True), (1, 3)))
"""(target, run-time extents, splits)"""
BIAS_RELU = (("add", (0, 1), (), "f32"), ("relu", (2,), (), "f32"))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed: int, *shape: int) -> np.ndarray:
    """12-bit integers: a sum of their products rounds in float32 but not in float64."""
    return np.random.default_rng(seed).integers(-2048, 2048, shape).astype(np.float32)


def reference(x, w, strides, pads, dilations, groups=1, rounds=False) -> np.ndarray:
    """Convolution of [N,C,*S] by [O,C/g,*K] in float64; with `rounds`, to float32 after each product of (c, k...)."""
    rank = x.ndim - 2
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    kernel = w.shape[2:]
    extents = [
        (x.shape[2 + axis] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1 for axis in range(rank)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *extents), np.float32 if rounds else np.float64)
    per_group, channels = w.shape[0] // groups, w.shape[1]
    for o in range(w.shape[0]):
        for c in range(channels):
            for place in np.ndindex(*kernel):
                window = tuple(
                    slice(p * d, p * d + (e - 1) * s + 1, s) for p, d, e, s in zip(place, dilations, extents, strides)
                )
                step = x[(slice(None), o // per_group * channels + c, *window)] * np.float64(w[(o, c, *place)])
                out[:, o] = (out[:, o].astype(np.float64) + step).astype(out.dtype)
    return out


def block(x: np.ndarray) -> np.ndarray:
    """[N,C,H,W] as [N,CB,H,W,16]; the padding lanes are NaN, for nobody to read."""
    n, c, h, w = x.shape
    out = np.full((n, -(-c // 16) * 16, h, w), np.nan, x.dtype)
    out[:, :c] = x
    return np.ascontiguousarray(out.reshape(n, -1, 16, h, w).transpose(0, 1, 3, 4, 2))


def unblock(y: np.ndarray, channels: int) -> np.ndarray:
    n, blocks, h, w, _ = y.shape
    return y.transpose(0, 1, 4, 2, 3).reshape(n, blocks * 16, h, w)[:, :channels]


def block_weights(w: np.ndarray) -> np.ndarray:
    """[O,C,KH,KW] as [OB,C,KH,KW,16], zero padded."""
    o, *rest = w.shape
    out = np.zeros((-(-o // 16) * 16, *rest), w.dtype)
    out[:o] = w
    return np.ascontiguousarray(np.moveaxis(out.reshape(-1, 16, *rest), 1, -1))


def blocked(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), outputs=0, **options) -> np.ndarray:
    """The blocked convolution of plain arrays."""
    xb = block(np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]))
    wb = block_weights(w)
    extents = reference(x[:1, :1], w[:1, :1], strides, pads, dilations).shape[2:]
    y = np.full((x.shape[0], wb.shape[0], *extents, 16), np.nan, x.dtype)
    window = {"strides": strides, "dilations": dilations}
    params = {**window, "channels": w.shape[1], "out_channels": outputs, "body": (), "outs": (0,)}
    run_kernel(CONV_BLOCKED, [("in", xb), (CONST, wb), ("out", y)], params, **options)
    channels = unblock(y, outputs or 16 * len(wb))
    assert not np.isnan(channels).any(), "an element was not written, or a padding lane was read"
    return channels[:, : w.shape[0]]


def depthwise(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), **options) -> np.ndarray:
    """The blocked depthwise convolution of [N,C,H,W] by [C,1,KH,KW]."""
    xb = block(np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])]))
    wb = block_weights(w)[:, 0]
    extents = reference(x[:1, :1], w[:1], strides, pads, dilations).shape[2:]
    y = np.empty((x.shape[0], xb.shape[1], *extents, 16), x.dtype)
    params = {"strides": strides, "dilations": dilations, "body": (), "outs": (0,)}
    run_kernel(DEPTHWISE_BLOCKED, [("in", xb), (CONST, wb), ("out", y)], params, **options)
    return unblock(y, x.shape[1])


def plain(x, w, strides=None, pads=None, dilations=None, groups=1, **options) -> np.ndarray:
    """The plain convolution."""
    rank = x.ndim - 2
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    shape = reference(x[:1, : w.shape[1]], w[:1], strides, pads, dilations).shape
    y = np.full((x.shape[0], w.shape[0], *shape[2:]), np.nan, x.dtype)
    params = {
        "strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "body": (), "outs": (0,)
    }  # fmt: skip
    run_kernel(CONV_PLAIN, [("in", x), (CONST, w), ("out", y)], params, **options)
    return y


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))


# --- blocked --------------------------------------------------------------------------------------------------------

BLOCKED = [
    # c, o, (h, w), (kh, kw), strides, pads, dilations
    (1, 8, (8, 8), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (3, 20, (17, 23), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    (20, 16, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (48, 33, (9, 5), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
    (3, 16, (21, 20), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    (17, 16, (11, 40), (3, 2), (2, 1), (2, 0, 1, 1), (2, 3)),
    (16, 16, (30, 61), (1, 3), (1, 2), (0, 1, 0, 1), (1, 1)),
    (18, 20, (75, 1), (5, 1), (2, 1), (2, 0, 1, 0), (2, 1)),
    (16, 16, (75, 1), (5, 3), (1, 1), (0, 1, 0, 1), (1, 1)),
    (80, 120, (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
]


@pytest.mark.parametrize("c,o,size,kernel,strides,pads,dilations", BLOCKED)
def test_every_blocked_schedule_is_right_and_gives_the_bits_of_the_plain_one(
    c, o, size, kernel, strides, pads, dilations
) -> None:
    x, w = normal(1, 2, c, *size), normal(2, o, c, *kernel)
    want = plain(x, w, strides, pads, dilations)
    close(want, reference(x, w, strides, pads, dilations))
    for target, runtime_extents, splits in SCHEDULES:
        got = blocked(x, w, strides, pads, dilations, target=target, runtime_extents=runtime_extents, splits=splits)
        assert got.tobytes() == want.tobytes(), (target.name, runtime_extents, splits)


@pytest.mark.parametrize("o", [8, 20, 24, 25])
def test_lanes_beyond_the_outputs_need_not_be_computed_and_the_others_have_the_same_bits(o: int) -> None:
    x, w = normal(1, 2, 20, 7, 15), normal(2, o, 20, 3, 3)
    want = plain(x, w)
    for target, runtime_extents, splits in SCHEDULES:
        got = blocked(x, w, outputs=o, target=target, runtime_extents=runtime_extents, splits=splits)
        assert got.tobytes() == want.tobytes(), (target.name, runtime_extents, splits)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    c=st.integers(1, 35),
    size=st.tuples(st.integers(5, 16), st.integers(5, 34)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    wide=st.booleans(),
    runtime_extents=st.booleans(),
)
def test_blocked_bits_are_those_of_one_chain_of_fma_ascending_in_channel_and_kernel(
    c, size, kernel, strides, dilations, pads, wide, runtime_extents
) -> None:
    x, w = integers(c, 1, c, *size), integers(c + 1, 5, c, *kernel)
    target = WIDE_ON_AVX2 if wide else AVX2
    got = blocked(x, w, strides, pads, dilations, target=target, runtime_extents=runtime_extents)
    # A sum that cancels to zero keeps its sign in neither: compare values, which are exact.
    assert (got == reference(x, w, strides, pads, dilations, rounds=True)).all()


def test_an_image_has_the_same_bits_alone_and_in_a_batch() -> None:
    x, w = normal(1, 8, 20, 9, 9), normal(2, 24, 20, 3, 3)
    whole = blocked(x, w)
    for n in range(8):
        assert blocked(x[n : n + 1], w).tobytes() == whole[n : n + 1].tobytes()


@pytest.mark.parametrize("kernel_def", [CONV_BLOCKED, DEPTHWISE_BLOCKED], ids=str)
@pytest.mark.parametrize("runtime_extents", [False, True])
def test_an_epilogue_adds_bias_and_overwrites_a_residual(kernel_def: KernelDef, runtime_extents: bool) -> None:
    x, residual, bias = normal(1, 2, 1, 9, 20, 16), normal(3, 2, 1, 7, 18, 16), normal(4, 1, 1, 1, 1, 16)
    w = normal(2, 1, 16, 3, 3, 16) if kernel_def is CONV_BLOCKED else normal(2, 1, 3, 3, 16)
    channels = {"channels": 16} if kernel_def is CONV_BLOCKED else {}
    params = {"strides": (1, 1), "dilations": (1, 1), **channels}
    bare = np.empty_like(residual)
    run_kernel(kernel_def, [("in", x), (CONST, w), ("out", bare)], {**params, "body": (), "outs": (0,)})
    want = np.maximum(bare + bias + residual, np.float32(0))
    body = (("add", (0, 1), (), "f32"), ("add", (3, 2), (), "f32"), ("relu", (4,), (), "f32"))
    for target in TARGETS:
        y = residual.copy()
        operands = [("in", x), (CONST, w), ("in", np.broadcast_to(bias, y.shape)), ("in", y), ("out", y)]
        spec, _ = spec_of(kernel_def, operands, params)
        assert kernel_def.may_reuse(spec) == {4: (3,)}
        run_kernel(
            kernel_def, operands, {**params, "body": body, "outs": (5,)},
            target=target, runtime_extents=runtime_extents, splits=2,
        )  # fmt: skip
        assert y.tobytes() == want.tobytes()


def test_the_result_may_be_written_inside_a_larger_buffer() -> None:
    x, w = normal(1, 1, 1, 9, 9, 16), normal(2, 2, 16, 3, 3, 16)
    params = {"strides": (1, 1), "dilations": (1, 1), "channels": 16, "body": (), "outs": (0,)}
    want = np.empty((1, 2, 7, 7, 16), np.float32)
    run_kernel(CONV_BLOCKED, [("in", x), (CONST, w), ("out", want)], params)
    for runtime_extents in (False, True):
        room = np.full((1, 2, 11, 10, 16), 77, np.float32)
        y = room[:, :, 1:8, 2:9]
        run_kernel(CONV_BLOCKED, [("in", x), (CONST, w), ("out", y)], params, runtime_extents=runtime_extents, splits=2)
        assert (y == want).all()
        y[...] = 77
        assert (room == 77).all(), "the halo was written"


DEPTHWISE = [
    (20, (40, 1), (3, 1), (2, 1), (1, 0, 1, 0), (1, 1)),
    (32, (14, 14), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    (40, (7, 7), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
    (16, (31, 29), (3, 3), (2, 2), (0, 1, 1, 0), (1, 1)),
    (16, (20, 20), (7, 5), (2, 1), (3, 2, 3, 2), (1, 2)),
]


@pytest.mark.parametrize("c,size,kernel,strides,pads,dilations", DEPTHWISE)
def test_every_depthwise_schedule_is_right_and_gives_the_bits_of_the_plain_one(
    c, size, kernel, strides, pads, dilations
) -> None:
    x, w = normal(1, 2, c, *size), normal(2, c, 1, *kernel)
    want = plain(x, w, strides, pads, dilations, groups=c)
    close(want, reference(x, w, strides, pads, dilations, groups=c))
    for target, runtime_extents, splits in SCHEDULES:
        got = depthwise(x, w, strides, pads, dilations, target=target, runtime_extents=runtime_extents, splits=splits)
        assert got.tobytes() == want.tobytes(), (target.name, runtime_extents, splits)


@pytest.mark.parametrize("size", [(56, 56), (7, 7), (14, 14)])
def test_the_avx512_code_uses_512_bits_keeps_its_sums_in_registers_and_calls_nothing_but_the_poll(size) -> None:
    h, w = size
    operands = [
        ("in", normal(1, 1, 4, h + 2, w + 2, 16)),
        (CONST, normal(2, 4, 64, 3, 3, 16)),
        ("in", np.broadcast_to(normal(3, 1, 4, 1, 1, 16), (1, 4, h, w, 16))),
        ("out", np.empty((1, 4, h, w, 16), np.float32)),
    ]
    params = {"strides": (1, 1), "dilations": (1, 1), "channels": 64, "body": BIAS_RELU, "outs": (3,)}
    for runtime_extents in (False, True):
        *_, text = emit(CONV_BLOCKED, operands, params, target=AVX512, runtime_extents=runtime_extents)
        lines = assembly(text, AVX512).splitlines()
        assert sum("vfmadd" in line and "zmm" in line for line in lines) >= 9 * 25
        assert not any("vfmadd" in line and "ymm" in line for line in lines)
        assert {line.split()[1].split("@")[0] for line in lines if line.lstrip().startswith("call")} <= {"relume_poll"}
        assert not any("rsp), %zmm" in line for line in lines), "a sum was spilled and read again"


# --- plain ----------------------------------------------------------------------------------------------------------

PLAIN = [
    # x, w, strides, pads, dilations, groups
    ((2, 3, 50), (4, 3, 5), (1,), (2, 2), (1,), 1),
    ((1, 6, 41), (9, 2, 3), (2,), (0, 3), (2,), 3),
    ((2, 8, 9, 24), (8, 2, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    ((1, 4, 5, 6), (6, 2, 5, 6), (1, 1), (4, 5, 4, 5), (1, 1), 2),
    ((1, 2, 6, 7, 23), (5, 2, 3, 2, 3), (1, 2, 1), (1, 0, 2, 1, 1, 2), (1, 1, 2), 1),
    ((2, 2, 3, 4, 5, 6), (2, 1, 2, 2, 2, 2), (1, 1, 2, 1), (1, 1, 0, 1, 0, 1, 1, 1), (1, 1, 1, 1), 2),
    ((1, 1, 3, 3), (1, 1, 3, 3), (1, 1), (7, 7, 7, 7), (1, 1), 1),
    ((3, 5), (4, 5), (), (), (), 1),
]


@pytest.mark.parametrize("x_shape,w_shape,strides,pads,dilations,groups", PLAIN)
def test_every_plain_schedule_is_right_and_gives_the_same_bits(
    x_shape, w_shape, strides, pads, dilations, groups
) -> None:
    x, w = normal(1, *x_shape), normal(2, *w_shape)
    first = plain(x, w, strides, pads, dilations, groups)
    close(first, reference(x, w, strides, pads, dilations, groups))
    for target, runtime_extents, splits in SCHEDULES:
        got = plain(
            x, w, strides, pads, dilations, groups, target=target, runtime_extents=runtime_extents, splits=splits
        )
        assert got.tobytes() == first.tobytes(), (target.name, runtime_extents, splits)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rank=st.integers(1, 3),
    groups=st.integers(1, 3),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 5),
    data=st.data(),
)
def test_plain_bits_are_those_of_one_chain_of_fma_ascending_in_channel_and_kernel(
    rank, groups, channels, outputs, data
) -> None:
    def ints(low: int, high: int, count: int) -> tuple[int, ...]:
        return data.draw(st.tuples(*[st.integers(low, high)] * count))

    kernel, strides, dilations, pads = ints(1, 4, rank), ints(1, 3, rank), ints(1, 3, rank), ints(0, 4, 2 * rank)
    room = [max(1, (k - 1) * d + 1 - p - q) for k, d, p, q in zip(kernel, dilations, pads, pads[rank:])]
    size = [low + extra for low, extra in zip(room, ints(0, 9, rank - 1) + ints(0, 40, 1))]
    x, w = integers(1, 2, groups * channels, *size), integers(2, groups * outputs, channels, *kernel)
    got = plain(x, w, strides, pads, dilations, groups, runtime_extents=data.draw(st.booleans()))
    assert (got == reference(x, w, strides, pads, dilations, groups, rounds=True)).all()


def test_plain_takes_any_strides_and_weights_that_are_no_constant() -> None:
    x, w = normal(1, 2, 30, 9, 3).transpose(0, 3, 2, 1), normal(2, 3, 3, 3, 4).transpose(3, 0, 1, 2)
    want = plain(x, w)
    close(want, reference(x, w, (1, 1), (0,) * 4, (1, 1)))
    y = np.empty((28, 7, 4, 2), np.float32).transpose(3, 2, 1, 0)
    params = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1, "body": (), "outs": (0,)}
    for runtime_extents in (False, True):
        run_kernel(CONV_PLAIN, [("in", x), ("in", w), ("out", y)], params, runtime_extents=runtime_extents)
        assert (y == want).all()


def test_plain_runs_an_epilogue_in_vectors_and_at_the_edges() -> None:
    x, w, bias = normal(1, 1, 4, 6, 21), normal(2, 8, 4, 3, 3), normal(3, 8, 1, 1)
    pads = (1, 1, 1, 1)
    want = np.maximum(plain(x, w, pads=pads) + bias, np.float32(0))
    y = np.empty_like(want)
    params = {"strides": (1, 1), "pads": pads, "dilations": (1, 1), "groups": 1, "body": BIAS_RELU, "outs": (3,)}
    run_kernel(CONV_PLAIN, [("in", x), (CONST, w), ("in", np.broadcast_to(bias, y.shape)), ("out", y)], params)
    assert y.tobytes() == want.tobytes()


def test_float64_is_exact_enough() -> None:
    x, w = normal(1, 1, 3, 9, 25).astype(np.float64), normal(2, 5, 3, 3, 3).astype(np.float64)
    want = reference(x, w, (1, 1), (0,) * 4, (1, 1))
    first = plain(x, w)
    np.testing.assert_allclose(first, want, rtol=1e-12, atol=1e-12)
    for target in TARGETS:
        assert blocked(x, w, target=target).tobytes() == first.tobytes()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_the_plain_convolution_of_integers_wraps_around(dtype: type) -> None:
    limits = np.iinfo(dtype)
    draw = np.random.default_rng(1)
    x = draw.integers(limits.min, limits.max, (2, 4, 7, 25), dtype, endpoint=True)
    w = draw.integers(limits.min, limits.max, (6, 2, 3, 3), dtype, endpoint=True)
    got = np.zeros((2, 6, 4, 24), dtype)
    params = {
        "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 1), "groups": 2, "body": (), "outs": (0,)
    }  # fmt: skip
    run_kernel(CONV_PLAIN, [("in", x), (CONST, w), ("out", got)], params)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)])
    want = np.zeros_like(got)
    for o, (row, column) in itertools.product(range(6), np.ndindex(3, 3)):
        for c in range(2):
            window = padded[:, o // 3 * 2 + c, row : row + 7 : 2, column : column + 24]
            want[:, o] += window * w[o, c, row, column]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("kernel_def", [CONV_BLOCKED, DEPTHWISE_BLOCKED], ids=str)
def test_integers_are_refused(kernel_def: KernelDef) -> None:
    x = np.ones((1, 1, 3, 3, 16), np.int8)
    params = {
        "strides": (1,) * 3, "pads": (0,) * 6, "dilations": (1,) * 3, "groups": 1, "channels": 1,
        "body": (), "outs": (0,),
    }  # fmt: skip
    with pytest.raises(CompileError, match="multiplies f32 or f64"):
        emit(kernel_def, [("in", x), (CONST, x), ("out", x.copy())], params)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda target: target.name)
def test_weights_that_do_not_fit_are_refused(target: Target) -> None:
    x, w, y = normal(1, 1, 1, 5, 5, 16), normal(2, 1, 3, 3, 3, 16), normal(3, 1, 1, 3, 3, 16)
    params = {"strides": (1, 1), "dilations": (1, 1), "channels": 4, "body": (), "outs": (0,)}
    with pytest.raises(CompileError, match="the weights have all channels"):
        emit(CONV_BLOCKED, [("in", x), (CONST, w), ("out", y)], params, target=target)
    with pytest.raises(CompileError, match="known extents of its weights"):
        emit(CONV_BLOCKED, [("in", x), ("in", w), ("out", y)], params, target=target, runtime_extents=True)
