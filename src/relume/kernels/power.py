"""x^y = e^(y log|x|): float in double lanes, double with a logarithm in two doubles.

The relative error of the power is the absolute error of y log|x|, which reaches 745 for double: the logarithm needs ten
bits more than a double has. Same conventions as `polynomials.py`.
"""

from __future__ import annotations

import math

from relume.kernels import polynomials
from relume.kernels.arithmetic import Math
from relume.kernels.ir import Function, Reg, element, lanes, vector

_TWO_THIRDS = (2.0 / 3.0, 2.0**-54 / 1.5)
"""2/3 in two doubles: the first is 2^-54 * 2/3 too small."""


def pow(f: Function, x: Reg, y: Reg) -> Reg:
    """x^y: 1 ULP of float, 2 of double. Special values as in C99 and NumPy."""
    if element(x.type) == "float":
        wide = vector("double", lanes(x.type))
        out = _pow(Math(f, wide), f.convert("fpext", x, wide), f.convert("fpext", y, wide), short=True)
        return f.convert("fptrunc", out, x.type)
    return _pow(Math(f, x.type), x, y, short=False)


def _pow(m: Math, base: Reg, power: Reg, short: bool) -> Reg:
    """In double lanes; `short`: to the accuracy of a float."""
    f = m.f
    size = m.size(base)
    exponent, low = (m.mul(power, polynomials.log(f, size)), None) if short else _exponent(m, size, power)
    # 0 * inf would be NaN where the answer is 1: |x| = 1, and y = 0 below.
    exponent = m.when("oeq", size, 1.0, 0.0, exponent)
    out = polynomials.exp(f, exponent, low)
    half = m.mul(power, 0.5)
    whole = f.fcompare("oeq", f.intrinsic("floor", power), power)
    halves = f.fcompare("une", f.intrinsic("floor", half), half)
    odd = f.binary("and", whole, halves)
    out = f.select(odd, m.signed(out, base), out)
    # A finite negative base with a power that is no integer has no real answer.
    undefined = f.binary("and", f.fcompare("olt", base, m.c(0.0)), f.fcompare("one", size, m.c(math.inf)))
    broken = f.fcompare("one", f.intrinsic("floor", power), power)
    out = f.select(f.binary("and", undefined, broken), m.c(math.nan), out)
    # A NaN power with |x| = 1, and then 1^y = x^0 = 1 for whatever y and x.
    out = m.when("uno", power, power, math.nan, out)
    return m.when("oeq", base, 1.0, 1.0, m.when("oeq", power, 0.0, 1.0, out))


def _exponent(m: Math, size: Reg, power: Reg) -> tuple[Reg, Reg]:
    """power * log(size) in two doubles; the second is 0 where the first decides alone."""
    high, low = _log(m, size)
    high = m.when("oeq", size, 0.0, -math.inf, m.when("uge", size, math.inf, size, high))
    exponent, error = m.two_product(high, power)
    return exponent, m.when("olt", m.size(exponent), 800.0, m.fma(low, power, error), m.c(0.0))


def _log(m: Math, x: Reg) -> tuple[Reg, Reg]:
    """log(x) in two doubles, to 65 bits: e ln 2 + 2 artanh(s), s = f / (2 + f), whose first two terms are pairs."""
    e, rest = polynomials.split(m, x)
    below, below_low = m.two_sum(m.c(2.0), rest)
    s = m.div(rest, below)
    s_low = m.div(m.sub(m.fma(m.negative(s), below, rest), m.mul(s, below_low)), below)
    z, z_low = m.two_product(s, s)
    z_low = m.fma(m.add(s, s), s_low, z_low)
    cube, cube_low = m.two_product(s, z)
    cube_low = m.add(cube_low, m.fma(s, z_low, m.mul(s_low, z)))
    second, second_low = m.two_product(cube, _TWO_THIRDS[0])
    second_low = m.add(second_low, m.fma(cube, _TWO_THIRDS[1], m.mul(cube_low, _TWO_THIRDS[0])))
    others = m.mul(m.mul(cube, z), m.horner([2.0 / (2 * k + 5) for k in range(10)], z))
    high, low = m.format.ln2
    total, lost = m.two_sum(m.mul(e, high), m.add(s, s))
    for term in (m.mul(e, low), second):
        total, more = m.two_sum(total, term)
        lost = m.add(lost, more)
    lost = m.add(lost, m.add(m.add(m.add(s_low, s_low), second_low), others))
    return m.fast_two_sum(total, lost)
