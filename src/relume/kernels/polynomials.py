"""Exponential, logarithm and their kin as our own vector code: the same bits on every target and in every lane.

No call to a mathematical library is made, and every multiplication that feeds an addition either is an explicit fused
multiply-add or stays two instructions, so a scalar tail, a 256-bit and a 512-bit vector round alike.

Method: reduction by multiples of ln 2 in two parts (W. J. Cody and W. Waite, *Software Manual for the Elementary
Functions*, 1980), then a minimax polynomial (Remez exchange, E. Remez, 1934). The float coefficients are our own:
`tests/kernels/test_elementwise.py` computes them again from the definitions in the comments. The double ones are the
Taylor coefficients of exp and artanh, long enough for the reduced interval. Errors are measured by the same tests and
stand in each docstring, in units in the last place of the float result.

Every function takes a register of float or double, of any number of lanes, and gives one of the same type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relume.base.errors import CompileError
from relume.kernels.ir import Function, Reg, element, lanes, vector

# exp(r) = 1 + r + r^2 P(r) on |r| <= ln(2)/2, minimax in relative error 3.1e-9
EXP = (0.49999993412484134, 0.16666520107790686, 0.041668394213484276, 0.008368780413905166, 0.0013814466967542241)
# log(1 + f) = f - f^2/2 + f^3 P(f) on [sqrt(1/2) - 1, sqrt(2) - 1], error of P 3.5e-9
LOG = (
    0.33333333391146835,
    -0.24999990125859692,
    0.19999973228413753,
    -0.16667994710721756,
    0.1428846776438668,
    -0.12452430547575731,
    0.11004414984431231,
    -0.10600131624835428,
    0.10713061835226066,
    -0.0652685912911286,
)
# erf(x) = x + x P(x^2) on [-1, 1], error of P 1.2e-9
ERF = (
    0.1283791659137697,
    -0.37612627136099264,
    0.11283600177817404,
    -0.026854444658310148,
    0.005189535467118877,
    -0.0008020842413561616,
    7.889123305407024e-05,
)
# log(erfc(a)) = P(a) on [1, 4], minimax in the absolute error of erfc 1.0e-9
LOG_ERFC = (
    -0.00035372942573452804,
    -1.1270399940659759,
    -0.6382257498200005,
    -0.10303730299374615,
    0.021805285427512006,
    -0.0029395986922912598,
    0.00018557308936155648,
)


@dataclass(frozen=True)
class _Format:
    """What the algorithms need to know of a floating-point type."""

    integer: str
    """The integer type of the same width."""
    fraction: int
    """Bits of the fraction field."""
    bias: int
    """Of the exponent field."""
    ln2: tuple[float, float]
    """ln 2 = high + low; the high part has so few bits that an exponent times it is exact."""
    exp_range: tuple[float, float]
    """Below and above, exp is 0 and infinite."""
    exp: tuple[float, ...]
    """P of exp(r) = 1 + r + r^2 P(r)."""
    tanh_end: float
    """From here on tanh rounds to 1."""

    @property
    def shift(self) -> float:
        """Adding this leaves the nearest integer in the low bits (half to even, the processor's rounding)."""
        return 1.5 * 2.0**self.fraction

    @property
    def shift_bits(self) -> int:
        return ((self.fraction + self.bias) << self.fraction) | (1 << (self.fraction - 1))

    @property
    def root_bits(self) -> int:
        """The bits of sqrt(1/2): significands are taken from [sqrt(1/2), sqrt(2)), so that log(1) is exactly 0."""
        return ((self.bias - 1) << self.fraction) + int((math.sqrt(2.0) - 1.0) * 2.0**self.fraction)


_FORMATS = {
    "float": _Format("i32", 23, 127, (0.693359375, -2.1219444005469057e-4), (-104.0, 89.0), EXP, 10.0),
    "double": _Format(
        "i64",
        52,
        1023,
        (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")),
        (-746.0, 710.0),
        tuple(1.0 / math.factorial(k + 2) for k in range(12)),
        20.0,
    ),
}


class _Math:
    """Shorthands for arithmetic on registers of one float type."""

    def __init__(self, f: Function, type_: str) -> None:
        self.f, self.type = f, type_
        self.format = _FORMATS[element(type_)]
        self.integer = vector(self.format.integer, lanes(type_))

    def c(self, value: float) -> Reg:
        return self.f.constant(value, self.type)

    def k(self, value: int) -> Reg:
        return self.f.int_constant(value, self.integer)

    def fma(self, a: Reg, b: Reg | float, c: Reg | float) -> Reg:
        return self.f.fma(a, self._reg(b), self._reg(c))

    def add(self, a: Reg, b: Reg | float) -> Reg:
        return self.f.binary("fadd", a, self._reg(b))

    def sub(self, a: Reg | float, b: Reg | float) -> Reg:
        return self.f.binary("fsub", self._reg(a), self._reg(b))

    def mul(self, a: Reg, b: Reg | float) -> Reg:
        return self.f.binary("fmul", a, self._reg(b))

    def div(self, a: Reg | float, b: Reg) -> Reg:
        return self.f.binary("fdiv", self._reg(a), b)

    def int(self, op: str, a: Reg, b: Reg | int) -> Reg:
        return self.f.binary(op, a, b if isinstance(b, Reg) else self.k(b))

    def when(self, how: str, a: Reg, b: Reg | float, yes: Reg | float, no: Reg) -> Reg:
        """`yes` where the comparison holds, else `no`."""
        return self.f.select(self.f.fcompare(how, a, self._reg(b)), self._reg(yes), no)

    def horner(self, coefficients: Sequence[float], x: Reg) -> Reg:
        """The polynomial with `coefficients` from the constant up, by fused multiply-adds from the top down."""
        out = self.c(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            out = self.fma(out, x, coefficient)
        return out

    def bits(self, x: Reg) -> Reg:
        return self.f.convert("bitcast", x, self.integer)

    def power_of_two(self, exponent: Reg) -> Reg:
        """2^exponent for an integer register in the normal range."""
        biased = self.int("add", exponent, self.format.bias)
        return self.f.convert("bitcast", self.int("shl", biased, self.format.fraction), self.type)

    def _reg(self, value: Reg | float) -> Reg:
        return value if isinstance(value, Reg) else self.c(value)


def _reduced(m: _Math, x: Reg) -> tuple[Reg, Reg]:
    """(n, exp(r) - 1) with x = n ln 2 + r and |r| <= ln(2)/2. A NaN stays one in the second."""
    high, low = m.format.ln2
    shifted = m.fma(x, 1.0 / math.log(2.0), m.format.shift)
    whole = m.sub(shifted, m.format.shift)
    r = m.fma(whole, -low, m.fma(whole, -high, x))
    exponent = m.int("sub", m.bits(shifted), m.format.shift_bits)
    return exponent, m.fma(m.mul(r, r), m.horner(m.format.exp, r), r)


def exp(f: Function, x: Reg) -> Reg:
    """e^x: 1 ULP; subnormal results included; 0 and inf beyond the range; NaN stays."""
    m = _Math(f, x.type)
    low, high = m.format.exp_range
    x = m.when("olt", x, low, low, m.when("ogt", x, high, high, x))
    exponent, rest = _reduced(m, x)
    # 2^n may lie outside the normal range by itself: two factors, of which only the last can round.
    half = m.int("ashr", exponent, 1)
    other = m.int("sub", exponent, half)
    return m.mul(m.mul(m.add(rest, 1.0), m.power_of_two(half)), m.power_of_two(other))


def log(f: Function, x: Reg) -> Reg:
    """The natural logarithm: 1 ULP; log(0) = -inf, of a negative number NaN, subnormal arguments included."""
    m = _Math(f, x.type)
    form = m.format
    lift = form.fraction + 1
    tiny = f.fcompare("olt", x, m.c(2.0 ** (1 - form.bias)))
    scaled = f.select(tiny, m.mul(x, 2.0**lift), x)
    from_root = m.int("sub", m.bits(scaled), form.root_bits)
    exponent = m.int("ashr", from_root, form.fraction)
    exponent = m.int("add", exponent, f.select(tiny, m.k(-lift), m.k(0)))
    significand = m.int("add", m.int("and", from_root, (1 << form.fraction) - 1), form.root_bits)
    e = f.convert("sitofp", exponent, x.type)
    rest = m.sub(f.convert("bitcast", significand, x.type), 1.0)
    high, low = form.ln2
    square = m.mul(rest, rest)
    if element(x.type) == "float":
        tail = m.mul(m.mul(square, rest), m.horner(LOG, rest))
        tail = m.fma(square, -0.5, m.fma(e, low, tail))
    else:
        # log(1 + f) = 2 artanh(s), s = f / (2 + f), written so that f itself stays exact (K. C. Ng's arrangement).
        s = m.div(rest, m.add(rest, 2.0))
        z = m.mul(s, s)
        series = m.mul(z, m.horner([2.0 / (2 * k + 3) for k in range(11)], z))
        half = m.mul(square, 0.5)
        tail = m.sub(m.fma(s, m.add(half, series), m.mul(e, low)), half)
    out = m.fma(e, high, m.add(rest, tail))
    out = m.when("olt", x, 0.0, math.nan, m.when("oeq", x, 0.0, -math.inf, out))
    return m.when("uge", x, math.inf, x, out)  # infinity and NaN are their own logarithms


def tanh(f: Function, x: Reg) -> Reg:
    """The hyperbolic tangent, d / (d + 2) with d = e^(2|x|) - 1: 2 ULP; odd, +-1 at infinity."""
    m = _Math(f, x.type)
    size = f.intrinsic("fabs", x)
    size = m.when("ogt", size, m.format.tanh_end, m.format.tanh_end, size)
    exponent, rest = _reduced(m, m.mul(size, 2.0))
    scale = m.power_of_two(exponent)
    d = m.fma(scale, rest, m.sub(scale, 1.0))
    return f.intrinsic("copysign", m.div(d, m.add(d, 2.0)), x)


def sigmoid(f: Function, x: Reg) -> Reg:
    """1 / (1 + e^-x), by e^-|x| so that neither tail loses accuracy: 2 ULP."""
    m = _Math(f, x.type)
    e = exp(f, f.assign(x.type, f"fneg {x.type} {f.intrinsic('fabs', x)}"))
    return m.div(m.when("olt", x, 0.0, e, m.c(1.0)), m.add(e, 1.0))


def erf(f: Function, x: Reg) -> Reg:
    """The error function, float only: x + x P(x^2) up to 1, then 1 - exp(P(|x|)): 1 ULP."""
    if element(x.type) != "float":
        raise CompileError("erf has no code for this element type yet", expected="f32", got=x.type)
    m = _Math(f, x.type)
    size = f.intrinsic("fabs", x)
    near = m.fma(x, m.horner(ERF, m.mul(x, x)), x)
    clamped = m.when("ogt", size, 4.0, 4.0, size)
    far = m.sub(1.0, exp(f, m.horner(LOG_ERFC, clamped)))
    return m.when("olt", size, 1.0, near, f.intrinsic("copysign", far, x))


def pow(f: Function, x: Reg, y: Reg) -> Reg:
    """x^y, float only: e^(y log|x|) in double lanes, rounded once: 1 ULP. Special values as in C99 and NumPy."""
    if element(x.type) != "float":
        raise CompileError("pow has no code for this element type yet", expected="f32 or an integer", got=x.type)
    wide = vector("double", lanes(x.type))
    base, power = f.convert("fpext", x, wide), f.convert("fpext", y, wide)
    m = _Math(f, wide)
    size = f.intrinsic("fabs", base)
    # 0 * inf would be NaN where the answer is 1: |x| = 1, and y = 0 below.
    exponent = m.when("oeq", size, 1.0, 0.0, m.mul(power, log(f, size)))
    out = exp(f, exponent)
    half = m.mul(power, 0.5)
    whole = f.fcompare("oeq", f.intrinsic("floor", power), power)
    halves = f.fcompare("une", f.intrinsic("floor", half), half)
    odd = f.binary("and", whole, halves)
    out = f.select(odd, f.intrinsic("copysign", out, base), out)
    # A finite negative base with a power that is no integer has no real answer.
    undefined = f.binary("and", f.fcompare("olt", base, m.c(0.0)), f.fcompare("one", size, m.c(math.inf)))
    broken = f.fcompare("one", f.intrinsic("floor", power), power)
    out = f.select(f.binary("and", undefined, broken), m.c(math.nan), out)
    # A NaN power with |x| = 1, and then 1^y = x^0 = 1 for whatever y and x.
    out = m.when("uno", power, power, math.nan, out)
    out = m.when("oeq", base, 1.0, 1.0, m.when("oeq", power, 0.0, 1.0, out))
    return f.convert("fptrunc", out, x.type)
