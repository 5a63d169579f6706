"""Every element-wise step against the reference of its op; the polynomials against float64, in ULPs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from harness import AVX2, AVX512, WIDE_ON_AVX2, assembly, emit, run_kernel

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.base.targets import Target
from relume.kernels import polynomials, trigonometry
from relume.kernels.map import MAP
from relume.ops import OPS

RNG = np.random.default_rng(19)


def step(op: str, *arrays: np.ndarray, to: DType | None = None, scalar: bool = False) -> np.ndarray:
    """`op` on flat arrays of equal length (a multiple of 225): 16 lanes at a time, or one by one."""
    result = to or (dtypes.bool_ if op in ("equal", "less", "greater") else dtypes.from_numpy(arrays[-1].dtype))
    out = np.zeros(arrays[0].size, result.numpy)
    body = ((op, tuple(range(len(arrays))), (("to", result),) if op == "cast" else (), result.name),)
    params = {"body": body, "outs": (len(arrays),)}
    if not scalar:
        run_kernel(MAP, [*(("in", array) for array in arrays), ("out", out)], params)
        return out
    for low in range(0, out.size, 225):  # no axis is as long as a vector, so the loop that handles tails does it all
        part = slice(low, low + 225)
        square = np.zeros((15, 16), result.numpy)[:, :15]
        operands = [("in", np.ascontiguousarray(array[part]).reshape(15, 15)) for array in arrays]
        run_kernel(MAP, [*operands, ("out", square)], params)
        out[part] = square.reshape(-1)
    return out


def padded(*arrays: np.ndarray) -> list[np.ndarray]:
    """Repeated to the next multiple of 225."""
    return [np.resize(array, -(-array.size // 225) * 225) for array in arrays]


def values(dtype: DType) -> np.ndarray:
    """The corners of a type, and some of its middle."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        near = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 0, 1, 2, 3, 7, 100]
        return np.array([*near, *([-1, -2, -3, -7, -100] if dtype.is_signed else [])], dtype.numpy)
    some = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, 0.1, 7.75, 100.0, 127.5, 128.0, 255.5, 1e4, 5e4, np.inf]
    some += [-x for x in some]
    with np.errstate(all="ignore"):
        tiny = np.array([1e-45, 1e-40, 1e-7, 3e38, 2.0**31, 2.0**32, 2.0**63, 2.0**64, -(2.0**31), -(2.0**63), np.nan])
        return np.concatenate([np.array(some), tiny]).astype(dtype.numpy)


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    one = values(dtype)
    return one.repeat(one.size), np.tile(one, one.size)


def ulps(got: np.ndarray, want: np.ndarray, dtype: DType) -> np.ndarray:
    """Distance to the exact value, in the spacing of `dtype` there; infinite where only one side is special."""
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype.numpy)
        same = (got == rounded) | ((got != got) & (rounded != rounded))
        finite = np.isfinite(got.astype(np.float64)) & np.isfinite(rounded.astype(np.float64))
        spacing = np.spacing(np.abs(rounded)).astype(np.float64)
        return np.where(same, 0.0, np.where(finite, np.abs(got.astype(np.float64) - want) / spacing, np.inf))


def same(got: np.ndarray, want: np.ndarray, message: str = "") -> None:
    """Equal values, NaN equal to NaN (which NumPy does not know of bf16)."""
    if got.dtype == dtypes.bf16.numpy:
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want, err_msg=message)


UNARY = ("neg", "abs", "relu", "sign", "floor", "ceil", "round", "sqrt", "reciprocal")
BINARY = ("add", "sub", "mul", "div", "rem", "max", "min", "equal", "less", "greater")
BITS = ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")
INTEGERS = [dtype for dtype in dtypes.ALL if dtype.is_integer]
FLOATS = [dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16]


def check_exactly(op: str, *arrays: np.ndarray) -> None:
    arrays = tuple(padded(*arrays))
    (want,) = OPS[op].reference(*arrays, attrs={}, regions=())
    got = step(op, *arrays)
    same(got, want, op)
    assert step(op, *arrays, scalar=True).tobytes() == got.tobytes(), "the scalar code gives other bits"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_arithmetic_and_comparisons_are_exact(dtype: DType) -> None:
    for op in BINARY:
        check_exactly(op, *pairs(dtype))
    for op in UNARY if dtype.is_float else UNARY[:4]:
        check_exactly(op, values(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_powers_wrap_and_negative_exponents_truncate(dtype: DType) -> None:
    check_exactly("pow", *pairs(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bits_and_shifts_by_any_count(dtype: DType) -> None:
    for op in BITS:
        check_exactly(op, *pairs(dtype))
    check_exactly("bit_not", values(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_remainders_of_any_magnitudes_are_exact(dtype: DType) -> None:
    raw = RNG.integers(0, 256, (2, 225 * 40 * dtype.bytes)).astype(np.uint8).view(dtype.numpy)
    a, b = padded(*raw)
    check_exactly("rem", a, b)
    got = step("rem", a, b)
    assert (np.signbit(got) == np.signbit(a))[got == got].all()


@pytest.mark.parametrize("dtype", [dtypes.i64, dtypes.u64], ids=str)
def test_wide_integers_round_to_bf16_once(dtype: DType) -> None:
    ties = np.array([s * ((1 << 62) + (1 << 54) + d) for s in (1, -1) for d in (-1, 0, 1)], object)
    x = ties[: 3 if dtype is dtypes.u64 else 6].astype(dtype.numpy)
    got = step("cast", *padded(x), to=dtypes.bf16)[: x.size]
    low, high = 2.0**62, 2.0**62 + 2.0**55  # What lies between them halfway goes to the even one, the lower.
    assert got.astype(np.float64).tolist() == [low, low, high, -low, -low, -high][: x.size]


def test_logic() -> None:
    for op in ("and", "or", "equal"):
        check_exactly(op, *pairs(dtypes.bool_))
    check_exactly("not", values(dtypes.bool_))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.i8, dtypes.u64, dtypes.bool_], ids=str)
def test_select(dtype: DType) -> None:
    a, b = padded(*pairs(dtype))
    check_exactly("select", RNG.random(a.size) < 0.5, a, b)


def test_any_byte_but_zero_is_true_when_it_is_read() -> None:
    raw = np.arange(225, dtype=np.uint8).view(np.bool_)
    np.testing.assert_array_equal(step("cast", raw, to=dtypes.i32), (np.arange(225) != 0).astype(np.int32))
    assert step("not", raw).view(np.uint8).tolist() == [1] + [0] * 224


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_casts_between_all_types(source: DType) -> None:
    x = values(source)
    if source.is_float:
        with np.errstate(all="ignore"):
            x = np.concatenate([x, (RNG.standard_normal(200) * 10.0 ** RNG.integers(-8, 8, 200)).astype(source.numpy)])
    elif source.is_integer:
        random = RNG.integers(0, 256, 300 * source.bytes).astype(np.uint8).view(source.numpy)
        x = np.concatenate([x, random, random >> (source.bytes * 4)])
    (x,) = padded(x)
    for to in dtypes.ALL:
        (want,) = OPS["cast"].reference(x, attrs={"to": to}, regions=())
        got = step("cast", x, to=to)
        same(got, want, f"{source} to {to}")
        assert step("cast", x, to=to, scalar=True).tobytes() == got.tobytes()


# --- the polynomials ------------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])
EXACT: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "expm1": np.expm1,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
}
BOUND = {"exp": 1.0, "log": 1.0, "tanh": 2.5, "erf": 1.5, "sigmoid": 2.5, "expm1": 1.5, "log1p": 1.0}
BOUND |= {"sin": 0.51, "cos": 0.51, "atan": 2.0}


def everywhere() -> np.ndarray:
    """Random bit patterns (subnormals, infinities and NaN among them), and the stretches where things happen."""
    bits = RNG.integers(0, 2**32, 225 * 2000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    middle = [np.linspace(-110, 100, 225 * 600), np.linspace(-5, 5, 225 * 600), np.linspace(-0.1, 0.1, 225 * 100)]
    with np.errstate(all="ignore"):
        return np.concatenate([bits, *middle, *padded(values(dtypes.f32))]).astype(np.float32)


@pytest.mark.parametrize("op", EXACT)
def test_a_few_units_in_the_last_place_everywhere(op: str) -> None:
    x = everywhere()
    with np.errstate(all="ignore"):
        error = ulps(step(op, x), EXACT[op](x.astype(np.float64)), dtypes.f32)
    worst = int(error.argmax())
    print(f"\n{op}: {error[worst]:.3f} ULP at {x[worst]!r}")
    assert error[worst] <= BOUND[op]


@pytest.mark.parametrize("op", EXACT)
def test_double_precision(op: str) -> None:
    x = np.concatenate([np.linspace(-700, 700, 22500), np.linspace(-3, 3, 22500), *padded(values(dtypes.f64))])
    x = np.concatenate([x, RNG.integers(0, 2**63, 22500).view(np.float64)])
    with np.errstate(all="ignore"):
        error = ulps(step(op, x), EXACT[op](x if op == "erf" else x.astype(np.longdouble)), dtypes.f64)
    print(f"\n{op} f64: {error.max():.3f} ULP")
    assert error.max() <= (4.0 if op == "erf" else 2.5)  # its yardstick has an error of its own


def test_angles_next_to_a_zero() -> None:
    """The arguments that lie closest to a multiple of pi/2, of all floats and of all doubles (J.-M. Muller and others,
    Handbook of Floating-Point Arithmetic, table 10.1)."""
    x = np.full(225, math.ldexp(16367173, 72), np.float32)
    assert step("cos", x)[0] == np.float32(-1.6147697982476211876e-9)
    x = np.full(225, math.ldexp(6381956970095103, 797))
    assert step("cos", x)[0] == pytest.approx(-4.68716592425462761112e-19, rel=4e-16)


def test_powers_in_double_precision() -> None:
    x, y = (np.concatenate(parts) for parts in zip(*(
        (RNG.uniform(0.5, 2, 22500), RNG.uniform(-1000, 1000, 22500)),
        (RNG.uniform(0.999, 1.001, 22500), RNG.uniform(-5e5, 5e5, 22500)),
        (RNG.uniform(0, 100, 22500), RNG.uniform(-150, 150, 22500)),
        (RNG.integers(0, 2**63, 22500).view(np.float64), RNG.uniform(-2, 2, 22500)),
        padded(*pairs(dtypes.f64)),
    )))  # fmt: skip
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        want = np.where(np.isfinite(x), want, np.power(x, y))  # glibc's powl(-inf, -2^63) is inf.
        error = ulps(step("pow", x, y), want, dtypes.f64)
    assert error.max() <= 2.0


def test_powers() -> None:
    x, y = everywhere(), RNG.permutation(everywhere())
    near = RNG.uniform(0.5, 2.0, 225 * 200).astype(np.float32)
    special = padded(*pairs(dtypes.f32))
    x, y = np.concatenate([x, near, special[0]]), np.concatenate([y, y[: near.size] * 0 + near[::-1] * 60, special[1]])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        got = step("pow", x, y)
        error = ulps(got, want, dtypes.f32)
    print(f"\npow: {error.max():.3f} ULP")
    assert error.max() <= 1.0
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16], ids=str)
def test_short_floats_are_within_one_unit(dtype: DType) -> None:
    (x,) = padded(np.arange(2**16, dtype=np.uint16).view(dtype.numpy))
    for op, exact in EXACT.items():
        with np.errstate(all="ignore"):
            want = exact(x.astype(np.float64)).astype(dtype.numpy)
            got = step(op, x)
        special = ~np.isfinite(want.astype(np.float32))
        same(got[special], want[special], op)
        order = [array[~special].view(np.int16).astype(np.int32) & 0x7FFF for array in (got, want)]
        assert np.abs(order[0] - order[1]).max() <= 1, op


SPECIAL = {
    "exp": [(-np.inf, 0.0), (np.inf, np.inf), (0.0, 1.0), (89.0, np.inf), (-104.0, 0.0), (-103.0, 1.4e-45)],
    "log": [(0.0, -np.inf), (-0.0, -np.inf), (-1.0, np.nan), (-np.inf, np.nan), (np.inf, np.inf), (1.0, 0.0)],
    "tanh": [(np.inf, 1.0), (-np.inf, -1.0), (-0.0, -0.0), (1e-40, 1e-40), (20.0, 1.0)],
    "erf": [(np.inf, 1.0), (-np.inf, -1.0), (-0.0, -0.0), (5.0, 1.0)],
    "sigmoid": [(np.inf, 1.0), (-np.inf, 0.0), (0.0, 0.5), (100.0, 1.0)],
    "expm1": [(np.inf, np.inf), (-np.inf, -1.0), (-0.0, -0.0), (0.0, 0.0), (1e-40, 1e-40), (88.9, np.inf), (-50, -1)],
    "log1p": [(-1.0, -np.inf), (-1.5, np.nan), (-np.inf, np.nan), (np.inf, np.inf), (-0.0, -0.0), (-1e-40, -1e-40)],
    "sin": [(-0.0, -0.0), (0.0, 0.0), (np.inf, np.nan), (-np.inf, np.nan), (1e-40, 1e-40), (-1e-40, -1e-40)],
    "cos": [(-0.0, 1.0), (0.0, 1.0), (np.inf, np.nan), (-np.inf, np.nan), (1e-40, 1.0)],
    "atan": [(-0.0, -0.0), (np.inf, np.pi / 2), (-np.inf, -np.pi / 2), (1e-40, 1e-40), (1.0, np.pi / 4)],
}


@pytest.mark.parametrize("op", SPECIAL)
def test_special_values(op: str) -> None:
    x = np.array([pair[0] for pair in SPECIAL[op]] + [np.nan], np.float32)
    want = np.array([pair[1] for pair in SPECIAL[op]] + [np.nan], np.float32)
    got = step(op, *padded(x))[: x.size]
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f64], ids=str)
@pytest.mark.parametrize("op", [*EXACT, "pow", "rem"])
def test_every_width_gives_the_same_bits(op: str, dtype: DType) -> None:
    (x,) = padded(everywhere()[::997].astype(dtype.numpy))
    x = np.concatenate([x, *padded(values(dtype))])
    arrays = [x] if op in EXACT else [x, x[::-1].copy()]
    vector = step(op, *arrays)
    assert step(op, *arrays, scalar=True).tobytes() == vector.tobytes()
    wide = np.zeros_like(x)
    body = ((op, tuple(range(len(arrays))), (), dtype.name),)
    operands = [*(("in", array) for array in arrays), ("out", wide)]
    run_kernel(MAP, operands, {"body": body, "outs": (len(arrays),)}, target=WIDE_ON_AVX2)
    assert wide.tobytes() == vector.tobytes()


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=str)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_no_library_is_called(dtype: DType, target: Target) -> None:
    """Every op and cast of a type in one body: its code calls nothing but the poll. (AVX-512 is compiled, not run.)"""
    names = ["select_", "equal"] if dtype.kind == "bool" else [*BINARY, *UNARY[:4], "select_"]
    names += ["and", "or", "not"] if dtype.kind == "bool" else []
    if dtype.is_float:
        names += [*UNARY[4:], *EXACT]
    if dtype.kind != "bool":
        names.append("pow")
    if dtype.is_integer:
        names += [*BITS, "bit_not"]
    body = [("equal", (0, 1), (), "bool")]
    for name in names:
        arguments = (2, 0, 1) if name == "select_" else (0,) if name in (*UNARY, *EXACT, "not", "bit_not") else (0, 1)
        boolean = name in ("equal", "less", "greater")
        body.append((name.rstrip("_"), arguments, (), "bool" if boolean else dtype.name))
    body += [("cast", (0,), (("to", to),), to.name) for to in dtypes.ALL]
    types = [dtypes.BY_NAME[step[-1]] for step in body]
    operands = [("in", np.zeros(40, dtype.numpy)), ("in", np.zeros(40, dtype.numpy))]
    operands += [("out", np.zeros(40, type_.numpy)) for type_ in types]
    _, _, text = emit(MAP, operands, {"body": tuple(body), "outs": tuple(range(2, 2 + len(body)))}, target=target)
    calls = re.findall(r"\bcallq?\s+(\S+)|\bjmp\s+([a-z_]\w*)@PLT", assembly(text, target))
    assert {name for pair in calls for name in pair if name} == {"relume_poll@PLT"}


# --- where the coefficients come from -------------------------------------------------------------------------------


def remez(
    function: Callable[[float], float], low: float, high: float, degree: int, weight: Callable[[float], float]
) -> np.ndarray:
    """The polynomial (constant first) of least weighted error on [low, high], by Remez exchange on a fine grid."""
    count, middle, half = degree + 2, (low + high) / 2, (high - low) / 2
    grid = middle - half * np.cos(np.linspace(0, np.pi, 4001))
    want, scale = np.array([function(x) for x in grid]), np.array([weight(x) for x in grid])
    nodes = np.array([round(4000 * n / (count - 1)) for n in range(count)])
    solution = np.zeros(count)
    for _ in range(30):
        basis = np.polynomial.chebyshev.chebvander((grid[nodes] - middle) / half, degree)
        levels = ((-1.0) ** np.arange(count) / scale[nodes])[:, None]
        solution = np.linalg.solve(np.hstack([basis, levels]), want[nodes])
        error = (np.polynomial.chebyshev.chebval((grid - middle) / half, solution[:-1]) - want) * scale
        runs = np.split(np.arange(grid.size), np.flatnonzero(np.diff(np.sign(error))) + 1)
        peaks = [run[np.argmax(np.abs(error[run]))] for run in runs]
        while len(peaks) > count:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        if len(peaks) < count or list(peaks) == list(nodes):
            break
        nodes = np.array(peaks)
    series = np.polynomial.Chebyshev(solution[:-1], domain=[low, high])
    return series.convert(kind=np.polynomial.Polynomial).coef


def _exp_rest(r: float) -> float:
    return (math.expm1(r) - r) / r / r if abs(r) > 1e-3 else 0.5 + r / 6 + r * r / 24 + r**3 / 120


def _log_rest(x: float) -> float:
    if abs(x) < 0.02:
        return sum((-x) ** k / (k + 3) for k in range(14))
    return (math.log1p(x) - x + x * x / 2) / x**3


def _erf_rest(u: float) -> float:
    root = math.sqrt(u)
    return (math.erf(root) / root if u > 1e-8 else 2 / math.sqrt(math.pi) * (1 - u / 3)) - 1


def _alternating(x: float, divisor: Callable[[int], int]) -> float:
    """-1/divisor(0) + x/divisor(1) - x^2/divisor(2) ..."""
    return sum((-1) ** (k + 1) * x**k / divisor(k) for k in range(30))


def _sin_rest(z: float) -> float:
    return _alternating(z, lambda k: math.factorial(2 * k + 3))


def _cos_rest(z: float) -> float:
    return -_alternating(z, lambda k: math.factorial(2 * k + 4))


def _atan_rest(z: float) -> float:
    return _alternating(z, lambda k: 2 * k + 3)


_HALF_LN2 = math.log(2) / 2 * 1.001
DEFINITIONS = {
    "EXP": (_exp_rest, -_HALF_LN2, _HALF_LN2, lambda r: r * r * math.exp(-r) + 1e-9),
    "LOG": (_log_rest, math.sqrt(0.5) - 1, math.sqrt(2) - 1, lambda x: 1.0),
    "ERF": (_erf_rest, 0.0, 1.0, lambda u: 1.0),
    "LOG_ERFC": (lambda a: math.log(math.erfc(a)), 1.0, 4.0, lambda a: math.erfc(a) + 1e-9),
    "SIN": (_sin_rest, 0.0, (math.pi / 4) ** 2 * 1.001, lambda z: z + 1e-9),
    "COS": (_cos_rest, 0.0, (math.pi / 4) ** 2 * 1.001, lambda z: z * z + 1e-9),
    "ATAN": (_atan_rest, 0.0, math.tan(math.pi / 8) ** 2 * 1.001, lambda z: z + 1e-9),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_coefficients_are_the_minimax_ones(name: str) -> None:
    function, low, high, weight = DEFINITIONS[name]
    coefficients = np.array(getattr(polynomials, name, None) or getattr(trigonometry, name))
    again = remez(function, low, high, coefficients.size - 1, weight)
    points = np.linspace(low, high, 999)
    scale = np.array([weight(x) for x in points])
    ours, theirs = (np.polynomial.polynomial.polyval(points, c) for c in (coefficients, again))
    assert np.abs((ours - theirs) * scale).max() < 1e-11


def test_the_scaled_complementary_error_function_interpolates_its_continued_fraction() -> None:
    v = np.linspace(-1, 1, 999).astype(np.longdouble)
    a = 48 / (5 * v + 11) - 2
    fraction = a.copy()
    for k in range(2000, 0, -1):
        fraction = a + np.longdouble(k) / 2 / fraction
    # pi to the bits of the wider type.
    want = 1 / (np.sqrt(np.longdouble("3.14159265358979323846")) * fraction)
    got = np.polynomial.polynomial.polyval(v, np.array(polynomials.ERFCX, np.longdouble))
    assert (np.abs(got - want) * np.exp(-a * a)).max() < 1e-17


def test_the_digits_of_two_over_pi() -> None:
    pieces = trigonometry._two_over_pi(8)
    total = sum(Fraction(piece) for piece in pieces) / 2**300
    # Its first 192 bits, as Cody and Waite, and every Payne-Hanek table since, print them.
    assert int(total * 2**192) == 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041
