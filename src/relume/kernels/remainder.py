"""The remainder of a truncated division, exact for every pair of floats. Same conventions as `polynomials.py`."""

from __future__ import annotations

import math

from relume.kernels.arithmetic import Math
from relume.kernels.ir import Function, Int, Reg, lanes


def rem(f: Function, a: Reg, b: Reg) -> Reg:
    """a - trunc(a / b) * b, exactly, with a's sign (C's fmod). NaN where b is 0, a infinite or either NaN; a where only
    b is infinite.

    Long division of the significands, so many bits at a time that a rounded quotient is off by at most one: a fused
    multiply-add then gives the rest exactly, since it has no more bits than the divisor. It takes as many steps as the
    lane with the largest quotient needs, one where that has less than 20 bits (49 for double).
    """
    m = Math(f, a.type)
    step = m.format.fraction - 3
    x, y = m.size(a), m.size(b)
    # Ordered comparisons: false for NaN. Lanes without an answer, or with `a` for one, divide 1 by 1.
    fine = f.binary("and", f.fcompare("olt", x, m.c(math.inf)), f.fcompare("ogt", y, m.c(0.0)))
    divides = f.binary("and", fine, f.fcompare("oge", x, y))
    top, rest = _parts(m, f.select(divides, x, m.c(1.0)))
    bottom, divisor = _parts(m, f.select(divides, y, m.c(1.0)))
    left = m.int("sub", top, bottom)
    trips = f.div(f.add(f.max(_largest(m, left), 1), step - 1), step)
    with f.loop(0, trips, carry=[rest, left]) as loop:
        rest, left = loop.carried
        bits = f.intrinsic("smin", left, m.k(step))
        rest = m.mul(rest, m.power_of_two(bits))
        quotient = f.intrinsic("trunc", m.div(rest, divisor))
        rest = m.fma(m.negative(quotient), divisor, rest)
        loop.next = [m.when("olt", rest, 0.0, m.add(rest, divisor), rest), m.int("sub", left, bits)]
    rest = loop.results[0]
    # 2^n may lie outside the normal range by itself: two factors, both exact here.
    half = m.int("ashr", bottom, 1)
    rest = m.mul(m.mul(rest, m.power_of_two(half)), m.power_of_two(m.int("sub", bottom, half)))
    return m.signed(f.select(divides, rest, f.select(fine, x, m.c(math.nan))), a)


def _parts(m: Math, x: Reg) -> tuple[Reg, Reg]:
    """(n, s) with x = s 2^n, s in [1, 2), for a positive finite x."""
    form = m.format
    lift = form.fraction + 1
    tiny = m.f.fcompare("olt", x, m.c(2.0 ** (1 - form.bias)))
    bits = m.bits(m.f.select(tiny, m.mul(x, 2.0**lift), x))
    exponent = m.int("sub", m.int("lshr", bits, form.fraction), form.bias)
    significand = m.int("or", m.int("and", bits, (1 << form.fraction) - 1), form.bias << form.fraction)
    exponent = m.int("sub", exponent, m.f.select(tiny, m.k(lift), m.k(0)))
    return exponent, m.f.convert("bitcast", significand, m.type)


def _largest(m: Math, x: Reg) -> Int:
    """The largest lane of a signed integer register, as i64."""
    kind, count = m.format.integer, lanes(x.type)
    if count > 1:
        x = m.f.call(kind, f"llvm.vector.reduce.smax.v{count}{kind}", (x.type, x))
    return x if kind == "i64" else m.f.convert("sext", x, "i64")
