"""conv_winograd: near to the direct convolution, exact where arithmetic is, and the same bits for every schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.harness import CONST, TARGETS, WIDE_ON_AVX2, assembly, emit, run_kernel, spec_of
from tests.kernels.test_conv import BIAS_RELU, SCHEDULES, block, normal, reference, unblock

from relume import ops
from relume.base.errors import CompileError
from relume.base.targets import AVX2, AVX512
from relume.kernels.winograd import CONV_WINOGRAD


def transformed(w: np.ndarray, tile: int) -> np.ndarray:
    """[O,C,3,3] as the kernel takes it."""
    (u,) = ops.winograd_weights.reference(w, attrs={"tile": tile}, regions=())
    (packed,) = ops.pack.reference(u, attrs={"axis": 0, "block": 16}, regions=())
    return np.ascontiguousarray(packed)


def whole_tiles(x: np.ndarray, tile: int) -> np.ndarray:
    """x [N,C,H,W], in blocks, within a buffer that is NaN beyond what the last tiles may read."""
    n, _, h, w = x.shape
    inside = block(np.pad(x, [(0, 0), (0, 0), (0, (2 - h) % tile), (0, (2 - w) % tile)]))
    room = np.full((n, inside.shape[1], inside.shape[2] + 3, inside.shape[3] + 3, 16), np.nan, x.dtype)
    view = room[:, :, 1:-2, 2:-1]
    view[...] = inside
    return view


def winograd(x: np.ndarray, w: np.ndarray, tile: int, **options) -> np.ndarray:
    """The convolution of plain arrays, without pads."""
    u = transformed(w, tile)
    n, c, height, width = x.shape
    y = np.full((n, u.shape[0], height - 2, width - 2, 16), np.nan, x.dtype)
    params = {"channels": c, "tile": tile, "body": (), "outs": (0,)}
    run_kernel(CONV_WINOGRAD, [("in", whole_tiles(x, tile)), (CONST, u), ("out", y)], params, **options)
    assert not np.isnan(y).any(), "an element was not written, or something outside was read"
    return unblock(y, w.shape[0])


def direct(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return reference(x, w, (1, 1), (0,) * 4, (1, 1))


SHAPES = [
    # batch, input and output channels, extents of the result
    (1, 16, 16, (4, 4)),
    (2, 20, 40, (9, 15)),
    (3, 5, 33, (1, 1)),
    (1, 64, 48, (30, 29)),
]


@pytest.mark.parametrize("tile", [4, 2])
@pytest.mark.parametrize("n,c,o,size", SHAPES)
def test_every_schedule_is_near_the_direct_convolution_and_gives_the_same_bits(n, c, o, size, tile) -> None:
    x, w = normal(1, n, c, size[0] + 2, size[1] + 2), normal(2, o, c, 3, 3)
    first = winograd(x, w, tile)
    want = direct(x, w)
    assert np.abs(first - want).max() <= {4: 2e-5, 2: 2e-6}[tile] * np.abs(want).max()
    for target, runtime_extents, splits in SCHEDULES:
        got = winograd(x, w, tile, target=target, runtime_extents=runtime_extents, splits=splits)
        assert got.tobytes() == first.tobytes(), (target.name, runtime_extents, splits)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 2),
    c=st.sampled_from((1, 2, 5, 18)),
    o=st.sampled_from((1, 17, 34)),
    size=st.tuples(st.integers(1, 13), st.integers(1, 17)),
    tile=st.sampled_from((4, 2)),
    wide=st.booleans(),
    runtime_extents=st.booleans(),
    splits=st.integers(1, 4),
)
def test_it_is_exact_where_nothing_rounds(n, c, o, size, tile, wide, runtime_extents, splits) -> None:
    draw = np.random.default_rng(c)
    x = draw.integers(-1000, 1000, (n, c, size[0] + 2, size[1] + 2)).astype(np.float64)
    # Multiples of the common denominator of G w G^T: transformed weights are integers too.
    w = draw.integers(-1000, 1000, (o, c, 3, 3)).astype(np.float64) * 576
    target = WIDE_ON_AVX2 if wide else AVX2
    got = winograd(x, w, tile, target=target, runtime_extents=runtime_extents, splits=splits)
    assert (got == direct(x, w)).all()


@pytest.mark.parametrize("tile", [4, 2])
def test_bits_depend_on_neither_the_place_in_the_batch_nor_what_the_tile_does_not_see(tile) -> None:
    x, w = normal(1, 5, 20, 23, 31), normal(2, 24, 20, 3, 3)
    whole = winograd(x, w, tile)
    for n in range(5):
        assert winograd(x[n : n + 1], w, tile).tobytes() == whole[n : n + 1].tobytes()
    part = winograd(np.ascontiguousarray(x[:, :, :10, :18]), w, tile)
    assert part.tobytes() == np.ascontiguousarray(whole[:, :, :8, :16]).tobytes()
    lower = winograd(np.ascontiguousarray(x[:, :, 8:, 4:]), w, tile)
    assert lower.tobytes() == np.ascontiguousarray(whole[:, :, 8:, 4:]).tobytes()


LONG = (
    ("add", (0, 1), (), "f32"), ("add", (3, 2), (), "f32"), ("sigmoid", (4,), (), "f32"), ("mul", (4, 5), (), "f32")
)  # fmt: skip
SHORT = (("add", (0, 1), (), "f32"), ("add", (3, 2), (), "f32"), ("relu", (4,), (), "f32"))


@pytest.mark.parametrize("size", [(8, 8), (7, 18)])
@pytest.mark.parametrize("body", [SHORT, LONG], ids=["short", "long"])
def test_an_epilogue_adds_bias_and_overwrites_a_residual(body, size) -> None:
    x, w = normal(1, 2, 16, size[0] + 2, size[1] + 2), normal(2, 48, 16, 3, 3)
    residual, bias = normal(3, 2, 3, *size, 16), normal(4, 1, 3, 1, 1, 16)
    for tile, runtime_extents, target in itertools.product((4, 2), (False, True), TARGETS):
        params = {"channels": 16, "tile": tile}
        xb, u = whole_tiles(x, tile), transformed(w, tile)
        bare = np.empty_like(residual)
        run_kernel(CONV_WINOGRAD, [("in", xb), (CONST, u), ("out", bare)], {**params, "body": (), "outs": (0,)})
        total = bare + bias + residual
        y = residual.copy()
        operands = [("in", xb), (CONST, u), ("in", np.broadcast_to(bias, y.shape)), ("in", y), ("out", y)]
        outs = (2 + len(body),)
        spec, _ = spec_of(CONV_WINOGRAD, operands, {**params, "body": body, "outs": outs})
        assert CONV_WINOGRAD.may_reuse(spec) == {4: (3,)}
        run_kernel(
            CONV_WINOGRAD, operands, {**params, "body": body, "outs": outs},
            target=target, runtime_extents=runtime_extents, splits=2,
        )  # fmt: skip
        if body is SHORT:
            assert y.tobytes() == np.maximum(total, np.float32(0)).tobytes()
        else:
            np.testing.assert_allclose(y, total / (1 + np.exp(-total.astype(np.float64))), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [4, 2])
@pytest.mark.parametrize("runtime_extents", [False, True])
def test_the_result_may_be_written_inside_a_larger_buffer(tile, runtime_extents) -> None:
    x, w = normal(1, 1, 16, 9, 11), normal(2, 32, 16, 3, 3)
    want = winograd(x, w, tile)
    room = np.full((1, 2, 10, 14, 16), 77, np.float32)
    y = room[:, :, 1:8, 2:11]
    operands = [("in", whole_tiles(x, tile)), (CONST, transformed(w, tile)), ("out", y)]
    params = {"channels": 16, "tile": tile, "body": (), "outs": (0,)}
    run_kernel(CONV_WINOGRAD, operands, params, runtime_extents=runtime_extents, splits=2)
    assert (unblock(y, 32) == want).all()
    y[...] = 77
    assert (room == 77).all(), "something outside was written"


def test_a_nan_stays_within_the_tiles_that_see_it() -> None:
    x, w = normal(1, 1, 16, 14, 14), normal(2, 16, 16, 3, 3)
    u = transformed(w, 4)
    y = np.empty((1, 1, 12, 12, 16), np.float32)
    params = {"channels": 16, "tile": 4, "body": (), "outs": (0,)}
    clean = winograd(x, w, 4)
    x[0, 3, 10, 2] = np.nan
    run_kernel(CONV_WINOGRAD, [("in", block(x)), (CONST, u), ("out", y)], params)
    got = unblock(y, 16)
    seen = np.zeros((12, 12), bool)
    seen[8:12, 0:4] = True
    assert np.isnan(got[0, :, seen]).all()
    assert (got[0, :, ~seen] == clean[0, :, ~seen]).all()


@pytest.mark.parametrize("runtime_extents", [False, True])
def test_the_avx512_code_uses_512_bits_and_calls_nothing_but_the_poll(runtime_extents) -> None:
    operands = [
        ("in", normal(1, 1, 4, 58, 58, 16)),
        (CONST, normal(2, 4, 36, 64, 16)),
        ("in", np.broadcast_to(normal(3, 1, 4, 1, 1, 16), (1, 4, 56, 56, 16))),
        ("out", np.empty((1, 4, 56, 56, 16), np.float32)),
    ]
    params = {"channels": 64, "tile": 4, "body": BIAS_RELU, "outs": (3,)}
    *_, text = emit(CONV_WINOGRAD, operands, params, target=AVX512, runtime_extents=runtime_extents)
    lines = assembly(text, AVX512).splitlines()
    # 12 tiles by 2 blocks, four steps at once.
    assert sum("vfmadd231ps" in line and "zmm" in line for line in lines) >= 4 * 22
    assert not any("vfmadd" in line and "ymm" in line for line in lines)
    assert {line.split()[1].split("@")[0] for line in lines if line.lstrip().startswith("call")} <= {"relume_poll"}


def test_what_the_kernel_cannot_do_is_refused() -> None:
    x, y = normal(1, 1, 1, 6, 6, 16), normal(3, 1, 1, 4, 4, 16)
    params = {"channels": 16, "tile": 4, "body": (), "outs": (0,)}
    for u, changed, message in [
        (normal(2, 1, 36, 16, 16), {"tile": 3}, "no transform"),
        (normal(2, 1, 36, 16, 16), {"tile": 2}, "one position per input"),
        (normal(2, 1, 36, 16, 16), {"channels": 12}, "the weights have all channels"),
        (normal(2, 1, 36, 700, 16), {"channels": 700}, "too many input channels"),
    ]:
        with pytest.raises(CompileError, match=message):
            emit(CONV_WINOGRAD, [("in", x), (CONST, u), ("out", y)], {**params, **changed})
