"""Meanings that are checked against something other than the references themselves."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relume import ops
from relume.base import dims, dtypes
from relume.base.dtypes import DType
from relume.graph.opdef import InferError, OpDef
from relume.graph.types import Attr, Tensor
from relume.ops.arithmetic import narrow
from relume.ops.random import philox

INTEGERS = [dtype for dtype in dtypes.ALL if dtype.is_integer]
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def call(op: OpDef, *arrays: np.ndarray, **attrs: Attr) -> np.ndarray:
    """The only result, with dtype and shape as inferred."""
    complete = op.complete(attrs)
    types = [Tensor(dtypes.from_numpy(array.dtype), array.shape) for array in arrays]
    (type_,) = op.infer(types, complete, ())
    (result,) = op.reference(*arrays, attrs=complete, regions=())
    assert isinstance(type_, Tensor) and (result.dtype, result.shape) == (type_.dtype.numpy, type_.dims)
    return result


def wrap(value: int, dtype: DType) -> int:
    """The representative of `value` modulo 2**bits that the type holds."""
    bits = dtype.bytes * 8
    low = -(1 << (bits - 1)) if dtype.is_signed else 0
    return (value - low) % (1 << bits) + low


def edges(dtype: DType) -> list[int]:
    bounds = np.iinfo(dtype.numpy)
    near = [0, 1, 2, 3, 7, int(bounds.max), int(bounds.max) - 1, int(bounds.min), int(bounds.min) + 1]
    return sorted({*near, *((-1, -2, -3, -7) if dtype.is_signed else ())})


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else math.trunc(Fraction(a, b))


def power(a: int, b: int) -> int:
    if b < 0:
        return truncated(1, a ** min(-b, 3 + b % 2)) if abs(a) > 1 else truncated(1, a ** (-b % 2 + 2))
    return a**b if b < 64 else pow(a, b, 1 << 64)


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": truncated,
    "max": max,
    "min": min,
    "pow": power,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_integer_arithmetic_is_exact_and_wraps(name: str, dtype: DType) -> None:
    pairs = list(itertools.product(edges(dtype), repeat=2))
    a, b = (np.array(column, dtype.numpy) for column in zip(*pairs))
    want = [wrap(EXACT[name](x, y), dtype) for x, y in pairs]
    assert call(ops.OPS[name], a, b).tolist() == want


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_unary_ops_wrap(dtype: DType) -> None:
    x = np.array(edges(dtype), dtype.numpy)
    assert call(ops.neg, x).tolist() == [wrap(-value, dtype) for value in edges(dtype)]
    assert call(ops.abs_, x).tolist() == [wrap(abs(value), dtype) for value in edges(dtype)]
    assert call(ops.sign, x).tolist() == [(value > 0) - (value < 0) for value in edges(dtype)]
    assert call(ops.relu, x).tolist() == [max(value, 0) for value in edges(dtype)]


@pytest.mark.parametrize("to", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_casts_of_floats_truncate_and_give_the_minimum_out_of_range(source: DType, to: DType) -> None:
    bounds = np.iinfo(to.numpy)
    raw = [0.0, -0.0, 0.99, -0.99, 1.5, -1.5, float(bounds.max), float(bounds.min), 2.0 * bounds.max, -1e9, 1e30]
    x = narrow(np.array([*raw, *np.nextafter(raw, 0), math.inf, -math.inf, math.nan]), source.numpy)
    want = []
    for value in x.astype(np.float64).tolist():
        whole = math.trunc(value) if math.isfinite(value) else None
        want.append(whole if whole is not None and bounds.min <= whole <= bounds.max else int(bounds.min))
    assert call(ops.cast, x, to=to).tolist() == want


@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("to", INTEGERS, ids=str)
def test_casts_of_integers_wrap(source: DType, to: DType) -> None:
    x = np.array(edges(source), source.numpy)
    assert call(ops.cast, x, to=to).tolist() == [wrap(value, to) for value in edges(source)]


@given(st.lists(st.floats(width=64, allow_nan=False), min_size=1, max_size=8))
@quick
def test_narrowing_to_bf16_rounds_once(values: list[float]) -> None:
    wide = np.array(values)
    got = narrow(wide, dtypes.bf16.numpy).astype(np.float64)
    for value, rounded in zip(values, got.tolist()):
        if not math.isfinite(value) or not math.isfinite(rounded) or abs(value) < 2.0**-120:
            continue
        exponent = math.frexp(value)[1] - 8  # bf16 has 8 significant bits
        scaled = Fraction(value) / Fraction(2) ** exponent
        assert Fraction(rounded) == round(scaled) * Fraction(2) ** exponent  # Python rounds halves to even


def test_narrowing_to_bf16_is_not_misled_by_float32() -> None:
    # 1 + 2**-8 + 2**-40 is above the tie; rounded to float32 first it would be the tie, and go to even.
    assert float(narrow(np.array(1 + 2.0**-8 + 2.0**-40), dtypes.bf16.numpy)) == 1 + 2.0**-7
    assert narrow(np.array([np.inf, -np.inf, 1e300, np.nan, -0.0]), dtypes.bf16.numpy).astype(float).tolist()[:3] == [
        np.inf,
        -np.inf,
        np.inf,
    ]


def test_max_and_min_propagate_nan_from_either_side() -> None:
    a, b = np.array([np.nan, 1, 2, np.inf], np.float32), np.array([1, np.nan, 3, np.nan], np.float32)
    np.testing.assert_array_equal(call(ops.max_, a, b), np.array([np.nan, np.nan, 3, np.nan], np.float32))
    np.testing.assert_array_equal(call(ops.min_, a, b), np.array([np.nan, np.nan, 2, np.nan], np.float32))
    np.testing.assert_array_equal(call(ops.relu, a), np.array([np.nan, 1, 2, np.inf], np.float32))


def test_round_takes_halves_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998], np.float32)
    assert call(ops.round_, x).tolist() == [0, 2, 2, 0, -2, 2]


def test_argmax_takes_the_first_of_equals_and_nan_first() -> None:
    x = np.array([[1, 3, 3], [np.nan, 9, np.nan], [5, np.nan, np.inf], [-np.inf] * 3], np.float32)
    assert call(ops.argmax, x, axis=1).tolist() == [1, 0, 1, 0]


def test_reductions_over_nothing_give_the_neutral_element() -> None:
    x, n = np.zeros((2, 0), np.float32), np.zeros((2, 0), np.int32)
    over = {"axes": (1,), "keep": False}
    assert call(ops.reduce_sum, x, **over).tolist() == [0, 0]
    assert call(ops.reduce_max, x, **over).tolist() == [-np.inf] * 2
    assert call(ops.reduce_min, x, **over).tolist() == [np.inf] * 2
    assert np.isnan(call(ops.reduce_mean, x, **over)).all()
    assert call(ops.reduce_max, n, **over).tolist() == [-(2**31)] * 2
    assert call(ops.reduce_min, n, **over).tolist() == [2**31 - 1] * 2


def test_a_long_float32_sum_is_rounded_once() -> None:
    x = np.full(1_000_003, 0.1, np.float32)
    exact = Fraction(float(np.float32(0.1))) * x.size
    assert float(call(ops.reduce_sum, x, axes=(0,))) == float(np.float32(float(exact)))


# --- windows --------------------------------------------------------------------------------------------------------


@st.composite
def geometries(draw: st.DrawFn) -> tuple[list[int], dict[str, Attr]]:
    """Extents of data and a geometry of windows on one or two axes; not every one fits."""
    rank = draw(st.integers(1, 2))

    def each(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    attrs = {
        "window": tuple(each(1, 3)),
        "strides": tuple(each(1, 3)),
        "pads": tuple(each(0, 2, 2 * rank)),
        "dilations": tuple(each(1, 2)),
    }
    return each(0, 6), attrs


def positions(data: list[int], attrs: dict[str, Attr], ceil: bool) -> list[list[list[int]]] | None:
    """For each axis, for each window, the coordinates under it. By the definition.

    None where a window is too long: by more than a stride, with ceil by two strides or more.
    """
    out = []
    rank = len(data)
    for axis, size in enumerate(data):
        window, stride, before, after, dilation = (
            attrs["window"][axis], attrs["strides"][axis], attrs["pads"][axis], attrs["pads"][rank + axis],
            attrs["dilations"][axis],
        )  # fmt: skip
        reach = (window - 1) * dilation + 1
        lacking = reach - (size + before + after)
        if lacking > stride and not (ceil and lacking < 2 * stride):
            return None
        starts = []
        start = -before
        while start + reach <= size + after:
            starts.append(start)
            start += stride
        if ceil:
            # One more may reach past the end where something is left; all must start before the end of the data.
            left = starts[-1] + reach < size + after if starts else lacking < stride
            starts = [at for at in (*starts, *([start] if left else [])) if at < size]
        out.append([[start + tap * dilation for tap in range(window)] for start in starts])
    return out


@given(geometries(), st.booleans(), st.booleans())
@quick
def test_pools_are_what_their_definition_says(case: tuple[list[int], dict[str, Attr]], ceil: bool, pads: bool) -> None:
    data, attrs = case
    x = np.random.default_rng(0).standard_normal((1, 2, *data)).astype(np.float32)
    grid = positions(data, attrs, ceil)
    if grid is None:
        with pytest.raises(InferError, match="does not fit"):
            call(ops.max_pool, x, **attrs, ceil=ceil)
        return
    largest, mean = (
        call(ops.max_pool, x, **attrs, ceil=ceil),
        call(ops.avg_pool, x, **attrs, ceil=ceil, count_pads=pads),
    )
    assert largest.shape == mean.shape == (1, 2, *(len(axis) for axis in grid))
    rank = len(data)
    for place in np.ndindex(largest.shape[2:]):
        taps = list(itertools.product(*(grid[axis][index] for axis, index in enumerate(place))))
        inside = [tap for tap in taps if all(0 <= at < size for at, size in zip(tap, data))]
        before, after = attrs["pads"][:rank], attrs["pads"][rank:]
        counted = [tap for tap in taps if all(-b <= at < size + a for at, size, b, a in zip(tap, data, before, after))]
        for channel in range(2):
            values = [float(x[(0, channel, *tap)]) for tap in inside]
            assert largest[(0, channel, *place)] == max(values, default=-np.inf)
            count = len(counted) if pads else len(inside)
            want = np.float32(sum(values) / count) if count else np.float32(np.nan)
            np.testing.assert_allclose(mean[(0, channel, *place)], want, rtol=1e-6, atol=1e-7)
    blocked = np.repeat(x[..., None], 16, axis=-1)
    for op, plain, more in ((ops.max_pool, largest, {}), (ops.avg_pool, mean, {"count_pads": pads})):
        lanes = call(op, blocked, **attrs, ceil=ceil, blocked=True, **more)
        np.testing.assert_array_equal(lanes, np.repeat(plain[..., None], 16, axis=-1))


@given(geometries(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.booleans())
@quick
def test_convolution_is_what_its_definition_says(
    case: tuple[list[int], dict[str, Attr]], groups: int, per_group: int, outputs: int, bias: bool
) -> None:
    data, attrs = case
    window = attrs.pop("window")
    rng = np.random.default_rng(1)
    x = rng.integers(-5, 6, (2, groups * per_group, *data)).astype(np.float32)
    w = rng.integers(-5, 6, (groups * outputs, per_group, *window)).astype(np.float32)
    operands = [x, w, *([np.arange(groups * outputs, dtype=np.float32)] if bias else [])]
    grid = positions(data, {**attrs, "window": window}, ceil=False)
    if grid is None:
        with pytest.raises(InferError, match="does not fit"):
            call(ops.conv, *operands, **attrs, groups=groups)
        return
    y = call(ops.conv, *operands, **attrs, groups=groups)
    for n, o, *place in np.ndindex(y.shape):
        total = float(o) if bias else 0.0
        for c, *k in np.ndindex(w.shape[1:]):
            at = [grid[axis][index][k[axis]] for axis, index in enumerate(place)]
            if all(0 <= coordinate < size for coordinate, size in zip(at, data)):
                total += float(x[(n, o // outputs * per_group + c, *at)] * w[(o, c, *k)])
        assert y[(n, o, *place)] == total  # small whole numbers: exact
    integers = [operand.astype(np.int32) for operand in operands]
    np.testing.assert_array_equal(call(ops.conv, *integers, **attrs, groups=groups), y.astype(np.int32))


@pytest.mark.parametrize(("channels", "outputs"), [(3, 16), (20, 5), (32, 33)])
def test_blocked_convolution_is_convolution_between_pack_and_unpack(channels: int, outputs: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, channels, 7, 6)).astype(np.float32)
    w = rng.standard_normal((outputs, channels, 3, 2)).astype(np.float32)
    b = rng.standard_normal(outputs).astype(np.float32)
    geometry = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}
    packed = call(ops.pack, x, axis=1, block=16)
    packed[:, -1, ..., channels % 16 or 16 :] = np.nan  # padding lanes are never read
    blocked = call(
        ops.conv_blocked,
        packed,
        call(ops.pack, w, axis=0, block=16),
        call(ops.pack, b, axis=0, block=16),
        **geometry,
        channels=channels,
    )
    np.testing.assert_array_equal(
        call(ops.unpack, blocked, axis=1, size=outputs), call(ops.conv, x, w, b, **geometry, groups=1)
    )
    depthwise = rng.standard_normal((channels, 3, 2)).astype(np.float32)
    lanes = call(
        ops.depthwise_blocked,
        call(ops.pack, x, axis=1, block=16),
        call(ops.pack, depthwise, axis=0, block=16),
        **geometry,
    )
    np.testing.assert_array_equal(
        call(ops.unpack, lanes, axis=1, size=channels),
        call(ops.conv, x, depthwise[:, None], **geometry, groups=channels),
    )


@pytest.mark.parametrize("n", [1, 16, 37])
def test_packed_matmul_is_matmul_of_panels(n: int) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 5, 9)).astype(np.float32), rng.standard_normal((9, n)).astype(np.float32)
    panels = call(ops.transpose, call(ops.pack, b, axis=1, block=16), perm=(1, 0, 2))
    np.testing.assert_array_equal(call(ops.matmul_packed, a, panels, n=n), call(ops.matmul, a, b))


# --- shapes ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 6), st.integers(-8, 8) | st.none(), st.integers(-8, 8) | st.none(), st.integers(-3, 3))
@quick
def test_slices_are_those_of_python(extent: int, start: int | None, stop: int | None, step: int) -> None:
    if step == 0:
        return
    x = np.arange(extent, dtype=np.float32)
    first, last, _ = slice(start, stop, step).indices(extent)
    got = call(ops.slice_, x, starts=(first,), stops=(last,), steps=(step,))
    assert got.tolist() == x[start:stop:step].tolist()
    # The same with the extent unknown, and bounds that are expressions over it.
    n = dims.symbol("N")
    (type_,) = ops.slice_.infer(
        [Tensor(dtypes.f32, (n,))],
        {"starts": (n + (first - extent),), "stops": (n + (last - extent),), "steps": (step,)},
        (),
    )
    assert isinstance(type_, Tensor) and dims.evaluate(type_.dims[0], {"N": extent}) == got.size


@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(1, 5), st.data())
@quick
def test_unpack_undoes_pack(shape: list[int], block: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.random.default_rng(4).standard_normal(shape)
    packed = call(ops.pack, x, axis=axis, block=block)
    np.testing.assert_array_equal(call(ops.unpack, packed, axis=axis, size=shape[axis]), x)
    assert np.count_nonzero(packed) == np.count_nonzero(x)  # what fills the last block is 0


# --- quantisation and random numbers ----------------------------------------------------------------------------------


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.sampled_from([0.1, 0.5, 3.0]), st.integers(0, 255))
@quick
def test_quantize_divides_rounds_half_to_even_and_saturates(values: list[float], scale: float, zero: int) -> None:
    x, step = np.array(values, np.float32), np.float32(scale)
    got = call(ops.quantize, x, np.array(step), np.array(zero, np.uint8))
    for value, stored in zip(x, got.tolist()):
        with np.errstate(all="ignore"):
            quotient = float(value / step)
        if math.isnan(quotient):
            assert stored == 0
        elif math.isinf(quotient):
            assert stored == (255 if quotient > 0 else 0)
        else:
            assert stored == min(max(round(quotient) + zero, 0), 255)


def test_dequantize_rounds_the_difference_and_the_product_once_each() -> None:
    x = np.array([2**31 - 1, -(2**31), 16777217, 5], np.int32)
    got = call(ops.dequantize, x, np.array(0.1, np.float32), np.array(-1, np.int32))
    want = [np.float32(int(value) + 1) * np.float32(0.1) for value in x]
    assert got.tolist() == [float(value) for value in want]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # The known answers of Random123 1.14 (kat_vectors, philox4x32 10).
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox(np.array(counter, np.uint64), key).tolist() == list(words)


def test_random_numbers_are_uniform_and_a_function_of_key_and_position() -> None:
    key = np.array([7, 11], np.uint64)
    many = call(ops.random_uniform, key, dims=(100_000,), low=-1.0, high=3.0)
    assert many.min() >= -1 and many.max() <= 3 and abs(many.mean() - 1) < 0.02 and abs(many.var() - 16 / 12) < 0.02
    counts, _ = np.histogram(many, bins=16, range=(-1, 3))
    assert abs(counts - 6250).max() < 400
    np.testing.assert_array_equal(call(ops.random_uniform, key, dims=(3, 7), low=-1.0, high=3.0).reshape(-1), many[:21])
    for other in ([8, 11], [7, 12], [7 + 2**32, 11]):
        assert (call(ops.random_uniform, np.array(other, np.uint64), dims=(50,), low=-1.0, high=3.0) != many[:50]).any()


def test_a_convolution_of_64_channels_takes_no_seconds() -> None:
    x, w = np.ones((1, 32, 64, 64), np.float32), np.ones((64, 32, 3, 3), np.float32)
    y = call(ops.conv, x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
    assert y[0, 0, 1, 1] == 9 * 32
