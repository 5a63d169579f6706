"""Sine, cosine and arctangent as our own vector code. Same conventions as `polynomials.py`.

An angle is first brought to |r| <= pi/4 and a number of quarter turns, exactly enough for every finite argument:

- up to 2^30 by pi/2 in three parts, with fused multiply-adds (W. J. Cody and W. Waite, 1980); floats in double lanes;
- beyond by the digits of 2/pi that matter (M. Payne and R. Hanek, *Radian Reduction for Trigonometric Functions*,
  1983): 2/pi is cut into pieces of 24 bits, a piece times 29 bits of the argument is exact, and whole turns are dropped
  from each product before it is added. No lane needs a table of its own. That code is skipped where no lane needs it.
"""

from __future__ import annotations

import math
from functools import cache

from relume.kernels.arithmetic import Math
from relume.kernels.ir import Function, Reg, element, lanes, vector

# sin(r) = r + r z P(z), z = r^2 on [0, (pi/4)^2], minimax in relative error 4.9e-12
SIN = (-0.1666666664152692, 0.008333329374126732, -0.00019839330998110914, 2.7182744810208183e-06)
# cos(r) = 1 - z/2 + z^2 P(z), minimax in absolute error 1.0e-13
COS = (0.04166666662265304, -0.001388888373805262, 2.4799515894123374e-05, -2.720989325563421e-07)
# atan(t) = t + t z P(z), z = t^2 on [0, tan(pi/8)^2], minimax in relative error 2.2e-11
ATAN = (
    -0.3333333251010486,
    0.19999904758579276,
    -0.1428202907866947,
    0.11044923767832554,
    -0.08477410371256967,
    0.04746121671240521,
)
_SIN = tuple((-1) ** (k + 1) / math.factorial(2 * k + 3) for k in range(8))
_COS = tuple((-1) ** k / math.factorial(2 * k + 4) for k in range(8))
_ATAN = tuple((-1) ** (k + 1) / (2 * k + 3) for k in range(21))

_HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54442d18p0", "0x1.1a62633145c07p-54", "-0x1.f1976b7ed8fbcp-110")))
"""pi/2, each part the rest of those before rounded to double."""
_MEDIUM = 2.0**30
"""Below, three parts of pi/2 are enough."""
_SCALE = 300
"""Large arguments are multiplied by 2^-300 and the pieces of 2/pi by 2^300, so that no product is subnormal."""
_PIECES = {"float": 8, "double": 49}
"""Pieces of 24 bits: the largest exponent, and what is left of the nearest multiple of pi/2."""


def sin(f: Function, x: Reg) -> Reg:
    """The sine of any float, however large: 1 ULP. NaN for an infinity; sin(-0) is -0."""
    return _wave(f, x, 0)


def cos(f: Function, x: Reg) -> Reg:
    """The cosine of any float, however large: 1 ULP. NaN for an infinity."""
    return _wave(f, x, 1)


def _wave(f: Function, x: Reg, ahead: int) -> Reg:
    """sin(x + ahead * pi/2)."""
    short = element(x.type) == "float"
    m = Math(f, vector("double", lanes(x.type)))
    wide = f.convert("fpext", x, m.type) if short else x
    quarters, r, low = _reduced(m, wide, short)
    quarters = m.int("add", quarters, ahead)
    z = m.mul(r, r)
    half = m.mul(z, 0.5)
    if short:
        sine = m.fma(m.mul(r, z), m.horner(SIN, z), r)
        cosine = m.fma(m.mul(z, z), m.horner(COS, z), m.sub(1.0, half))
    else:
        # sin(r + low) = sin r + low cos r; cos(r + low) = cos r - low sin r, and what 1 - z/2 lost.
        sine = m.add(m.fma(m.mul(r, z), m.horner(_SIN, z), m.mul(low, m.sub(1.0, half))), r)
        most = m.sub(1.0, half)
        lost = m.sub(m.sub(1.0, most), half)
        tail = m.fma(m.mul(z, z), m.horner(_COS, z), m.fma(m.negative(r), low, lost))
        cosine = m.add(most, tail)
    odd = f.icompare("ne", m.int("and", quarters, 1), m.k(0))
    sign = m.int("shl", m.int("and", quarters, 2), 62)
    out = m.int("xor", m.bits(f.select(odd, cosine, sine)), sign)
    y = f.convert("bitcast", out, m.type)
    y = f.convert("fptrunc", y, x.type) if short else y
    # The reduction gives +0 for -0.
    return y if ahead else Math(f, x.type).when("oeq", x, 0.0, x, y)


def _reduced(m: Math, x: Reg, short: bool) -> tuple[Reg, Reg, Reg]:
    """(n, r, low) with x = n pi/2 + r + low, |r| about pi/4 at most, n modulo 4. `short`: x was a float."""
    shifted = m.fma(x, 2.0 / math.pi, m.format.shift)
    whole = m.sub(shifted, m.format.shift)
    first = m.fma(whole, -_HALF_PI[0], x)  # Exact: both are multiples of 2^-53 or x's last bit, and close.
    if short:
        r = low = m.fma(whole, -_HALF_PI[1], first)
    else:
        product, error = m.two_product(whole, -_HALF_PI[1])
        r, low = m.two_sum(first, product)
        low = m.add(low, m.fma(whole, -_HALF_PI[2], error))
    quarters = m.bits(shifted)
    large = m.f.fcompare("oge", m.size(x), m.c(_MEDIUM))
    with m.rarely(large, [quarters, r, low]) as rare:
        beyond = _reduced_large(m, x, short)
        rare.next = [m.f.select(large, *pair) for pair in zip(beyond, rare.carried)]
    quarters, r, low = rare.results
    return quarters, r, low


def _reduced_large(m: Math, x: Reg, short: bool) -> tuple[Reg, Reg, Reg]:
    """`_reduced` for |x| >= 2^30: x * 2/pi modulo 4, piece by piece, the largest first."""
    f, count = m.f, lanes(x.type)
    scaled = m.mul(x, 2.0**-_SCALE)
    if short:
        parts = [scaled]  # 24 bits.
    else:
        top = f.convert("bitcast", m.int("and", m.bits(scaled), -1 << 27), m.type)
        parts = [top, m.sub(scaled, top)]
    kind = "float" if short else "double"
    pieces = _two_over_pi(_PIECES[kind])
    table = f"two_over_pi_{kind}"
    listed = ", ".join(f"double {f.constant(piece, 'double')}" for piece in pieces)
    f.declare(f"@{table} = private unnamed_addr constant [{len(pieces)} x double] [{listed}], align 64")
    zero = m.c(0.0)
    with f.loop(0, len(pieces), carry=[zero, zero, zero]) as loop:
        turns, high, low = loop.carried
        piece = f.splat(f.load("double", f.address(Reg(f"@{table}", "ptr"), loop.i, 8), 8), count)
        for part in parts:
            term = m.mul(part, piece)
            term = m.fma(f.intrinsic("roundeven", m.mul(term, 0.25)), -4.0, term)
            high, error = m.two_sum(high, term)
            low = m.add(low, error)
            whole = f.intrinsic("roundeven", high)
            turns = m.add(turns, whole)
            high, low = m.fast_two_sum(m.sub(high, whole), low)
        loop.next = [turns, high, low]
    turns, high, low = loop.results
    r, error = m.two_product(high, _HALF_PI[0])
    error = m.add(error, m.fma(high, _HALF_PI[1], m.mul(low, _HALF_PI[0])))
    return m.bits(m.add(turns, m.format.shift)), r, error


@cache
def _two_over_pi(count: int) -> tuple[float, ...]:
    """The first `count` groups of 24 bits of 2/pi, each at its place, times 2^300."""
    bits = 24 * count
    guard = bits + 64
    # Machin's formula, pi = 16 arctan(1/5) - 4 arctan(1/239), in integers.
    pi = 16 * _arctan_of_reciprocal(5, guard) - 4 * _arctan_of_reciprocal(239, guard)
    digits = (2 << (2 * guard)) // pi >> 64
    groups = [digits >> (bits - 24 * (k + 1)) & 0xFFFFFF for k in range(count)]
    return tuple(math.ldexp(group, _SCALE - 24 * (k + 1)) for k, group in enumerate(groups))


def _arctan_of_reciprocal(n: int, bits: int) -> int:
    """arctan(1/n) * 2^bits, a few units too small."""
    total, power, k = 0, (1 << bits) // n, 0
    while power:
        total += -power // (2 * k + 1) if k % 2 else power // (2 * k + 1)
        power //= n * n
        k += 1
    return total


def atan(f: Function, x: Reg) -> Reg:
    """The arctangent: 2 ULP; odd, pi/2 at infinity.

    |x| is c + t (1 + c |x|) with c of 0, 1 or infinity, |t| <= tan(pi/8): the arctangent is that of c and that of t.
    """
    m = Math(f, x.type)
    size = m.size(x)
    near = f.fcompare("olt", size, m.c(math.tan(math.pi / 8)))
    far = f.fcompare("ogt", size, m.c(math.tan(3 * math.pi / 8)))

    def choose(low: Reg | float, middle: Reg, high: Reg | float) -> Reg:
        low, high = (value if isinstance(value, Reg) else m.c(value) for value in (low, high))
        return f.select(near, low, f.select(far, high, middle))

    t = m.div(choose(size, m.sub(size, 1.0), -1.0), choose(1.0, m.add(size, 1.0), size))
    z = m.mul(t, t)
    short = element(x.type) == "float"
    high = [0.7853981852531433, 1.5707963705062866] if short else [_HALF_PI[0] / 2, _HALF_PI[0]]
    low = [math.pi / 4 - high[0], math.pi / 2 - high[1]] if short else [_HALF_PI[1] / 2, _HALF_PI[1]]
    rest = m.fma(m.mul(t, z), m.horner(ATAN if short else _ATAN, z), choose(0.0, m.c(low[0]), low[1]))
    return m.signed(m.add(choose(0.0, m.c(high[0]), high[1]), m.add(t, rest)), x)
