"""Exponential, logarithm and their kin as our own vector code: the same bits on every target and in every lane.

No call to a mathematical library is made. Trigonometry is in `trigonometry.py`, powers are in `power.py`.

Method: reduction by multiples of ln 2 in two parts (W. J. Cody and W. Waite, *Software Manual for the Elementary
Functions*, 1980), then a minimax polynomial (Remez exchange, E. Remez, 1934). The float coefficients are our own:
`tests/kernels/test_elementwise.py` computes them again from the definitions in the comments. The double ones are the
Taylor coefficients, long enough for the reduced interval, but for erf. Errors are measured by the same tests and
stand in each docstring, in units in the last place of the float result.

Every function takes a register of float or double, of any number of lanes, and gives one of the same type.
"""

from __future__ import annotations

import math

from relume.kernels.arithmetic import Math
from relume.kernels.ir import Function, Reg, element

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
# erfc(a) e^(a^2) = P(v) on [1, 6], v = (48 / (a + 2) - 11) / 5: interpolation at 17 Chebyshev nodes
ERFCX = (
    0.2214295402299318,
    0.16189356804102495,
    0.038560570425182426,
    0.005588816281841416,
    0.00019713917772796167,
    -8.079220428815804e-05,
    -7.340517938285315e-06,
    1.979561977004956e-06,
    1.6349937389162677e-07,
    -7.005372083302365e-08,
    -5.88605813599345e-10,
    2.6250114875898546e-09,
    -2.6869739848144794e-10,
    -7.46898490767896e-11,
    2.213468297540544e-11,
    4.783102019032145e-13,
    -9.365906742974564e-13,
)
_MORE_THAN_ONE = 0.12837916709551257
"""2 / sqrt(pi) - 1, to its own last bit."""

_POLYNOMIALS = {
    "float": {"exp": EXP, "erf": ERF},
    "double": {
        "exp": tuple(1.0 / math.factorial(k + 2) for k in range(12)),
        "erf": (
            _MORE_THAN_ONE,
            *(2.0 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(1, 20)),
        ),
    },
}


def _polynomial(m: Math, name: str, x: Reg) -> Reg:
    return m.horner(_POLYNOMIALS[element(m.type)][name], x)


def _reduced(m: Math, x: Reg, low: Reg | None = None) -> tuple[Reg, Reg]:
    """(n, exp(r) - 1) with x + low = n ln 2 + r and |r| <= ln(2)/2. A NaN stays one in the second."""
    ln2_high, ln2_low = m.format.ln2
    shifted = m.fma(x, 1.0 / math.log(2.0), m.format.shift)
    whole = m.sub(shifted, m.format.shift)
    r = m.fma(whole, -ln2_low, m.fma(whole, -ln2_high, x))
    if low is not None:
        r = m.add(r, low)
    exponent = m.int("sub", m.bits(shifted), m.format.shift_bits)
    return exponent, m.fma(m.mul(r, r), _polynomial(m, "exp", r), r)


def exp(f: Function, x: Reg, low: Reg | None = None) -> Reg:
    """e^(x + low): 1 ULP; subnormal results included; 0 and inf beyond the range; NaN stays."""
    m = Math(f, x.type)
    bottom, top = m.format.exp_range
    x = m.when("olt", x, bottom, bottom, m.when("ogt", x, top, top, x))
    exponent, rest = _reduced(m, x, low)
    # 2^n may lie outside the normal range by itself: two factors, of which only the last can round.
    half = m.int("ashr", exponent, 1)
    other = m.int("sub", exponent, half)
    return m.mul(m.mul(m.add(rest, 1.0), m.power_of_two(half)), m.power_of_two(other))


def expm1(f: Function, x: Reg) -> Reg:
    """e^x - 1 without cancellation near 0: 1 ULP; -1 and inf beyond the range; NaN stays."""
    m = Math(f, x.type)
    end, (_, top) = -2.0 * m.format.tanh_end, m.format.exp_range
    exponent, rest = _reduced(m, m.when("olt", x, end, end, m.when("ogt", x, top, top, x)))
    # 2^n itself may be too large by one: there half of the result is computed.
    large = f.icompare("sgt", exponent, m.k(m.format.bias))
    scale = m.power_of_two(m.int("sub", exponent, f.select(large, m.k(1), m.k(0))))
    out = m.fma(scale, rest, m.sub(scale, f.select(large, m.c(0.5), m.c(1.0))))
    return m.signed(f.select(large, m.add(out, out), out), x)


def log(f: Function, x: Reg) -> Reg:
    """The natural logarithm: 1 ULP; log(0) = -inf, of a negative number NaN, subnormal arguments included."""
    m = Math(f, x.type)
    out = _log(m, x)
    out = m.when("olt", x, 0.0, math.nan, m.when("oeq", x, 0.0, -math.inf, out))
    return m.when("uge", x, math.inf, x, out)  # infinity and NaN are their own logarithms


def log1p(f: Function, x: Reg) -> Reg:
    """log(1 + x), accurate also where 1 + x rounds: 1 ULP; -inf at -1, NaN below."""
    m = Math(f, x.type)
    total, lost = m.two_sum(m.c(1.0), x)
    out = _log(m, total, m.div(lost, total))
    out = m.when("olt", x, -1.0, math.nan, m.when("oeq", x, -1.0, -math.inf, m.signed(out, x)))
    return m.when("uge", x, math.inf, x, out)


def split(m: Math, x: Reg) -> tuple[Reg, Reg]:
    """(e, f) with x = 2^e (1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1], for a positive finite x. f is exact."""
    form = m.format
    lift = form.fraction + 1
    tiny = m.f.fcompare("olt", x, m.c(2.0 ** (1 - form.bias)))
    scaled = m.f.select(tiny, m.mul(x, 2.0**lift), x)
    from_root = m.int("sub", m.bits(scaled), form.root_bits)
    exponent = m.int("ashr", from_root, form.fraction)
    exponent = m.int("add", exponent, m.f.select(tiny, m.k(-lift), m.k(0)))
    significand = m.int("add", m.int("and", from_root, (1 << form.fraction) - 1), form.root_bits)
    return m.f.convert("sitofp", exponent, x.type), m.sub(m.f.convert("bitcast", significand, x.type), 1.0)


def _log(m: Math, x: Reg, correction: Reg | None = None) -> Reg:
    """log(x) + correction for a positive finite x, where the correction is tiny against the logarithm or x is 1."""
    e, rest = split(m, x)
    high, low = m.format.ln2
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
    if correction is not None:
        tail = m.add(tail, correction)
    return m.fma(e, high, m.add(rest, tail))


def tanh(f: Function, x: Reg) -> Reg:
    """The hyperbolic tangent, d / (d + 2) with d = e^(2|x|) - 1: 2 ULP; odd, +-1 at infinity."""
    m = Math(f, x.type)
    size = f.intrinsic("fabs", x)
    size = m.when("ogt", size, m.format.tanh_end, m.format.tanh_end, size)
    exponent, rest = _reduced(m, m.mul(size, 2.0))
    scale = m.power_of_two(exponent)
    d = m.fma(scale, rest, m.sub(scale, 1.0))
    return f.intrinsic("copysign", m.div(d, m.add(d, 2.0)), x)


def sigmoid(f: Function, x: Reg) -> Reg:
    """1 / (1 + e^-x), by e^-|x| so that neither tail loses accuracy: 2 ULP."""
    m = Math(f, x.type)
    e = exp(f, f.assign(x.type, f"fneg {x.type} {f.intrinsic('fabs', x)}"))
    return m.div(m.when("olt", x, 0.0, e, m.c(1.0)), m.add(e, 1.0))


def erf(f: Function, x: Reg) -> Reg:
    """The error function, 1 ULP: x + x P(x^2) up to 1, then 1 - erfc(|x|)."""
    m = Math(f, x.type)
    size = m.size(x)
    near = m.fma(x, _polynomial(m, "erf", m.mul(x, x)), x)
    if element(x.type) == "float":
        far = m.sub(1.0, exp(f, m.horner(LOG_ERFC, m.when("ogt", size, 4.0, 4.0, size))))
    else:
        clamped = m.when("ogt", size, 6.0, 6.0, size)
        v = m.fma(m.div(1.0, m.add(clamped, 2.0)), 9.6, -2.2)
        decay = exp(f, m.negative(m.mul(clamped, clamped)))
        far = m.sub(1.0, m.mul(decay, m.horner(ERFCX, v)))
    return m.when("olt", size, 1.0, near, m.signed(far, x))
