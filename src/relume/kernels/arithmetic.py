"""Arithmetic on registers of one float type, written as formulas; and what algorithms need to know of the type.

Every multiplication that feeds an addition either is an explicit fused multiply-add or stays two instructions, so a
scalar tail, a 256-bit and a 512-bit vector round alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from relume.kernels.ir import Function, Loop, Reg, element, lanes, vector


@dataclass(frozen=True)
class Format:
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


FORMATS = {
    "float": Format("i32", 23, 127, (0.693359375, -2.1219444005469057e-4), (-104.0, 89.0), 10.0),
    "double": Format(
        "i64",
        52,
        1023,
        (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")),
        (-746.0, 710.0),
        20.0,
    ),
}


class Math:
    """Shorthands for arithmetic on registers of one float type."""

    def __init__(self, f: Function, type_: str) -> None:
        self.f, self.type = f, type_
        self.format = FORMATS[element(type_)]
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

    def negative(self, a: Reg) -> Reg:
        return self.f.assign(a.type, f"fneg {a.type} {a}")

    def size(self, a: Reg) -> Reg:
        """|a|."""
        return self.f.intrinsic("fabs", a)

    def signed(self, size: Reg, like: Reg) -> Reg:
        """`size` with the sign of `like`."""
        return self.f.intrinsic("copysign", size, like)

    def two_sum(self, a: Reg, b: Reg) -> tuple[Reg, Reg]:
        """a + b exactly, as a rounded sum and its error (Knuth)."""
        total = self.add(a, b)
        part = self.sub(total, a)
        return total, self.add(self.sub(a, self.sub(total, part)), self.sub(b, part))

    def fast_two_sum(self, a: Reg, b: Reg) -> tuple[Reg, Reg]:
        """`two_sum` where a is the larger (Dekker)."""
        total = self.add(a, b)
        return total, self.sub(b, self.sub(total, a))

    def two_product(self, a: Reg, b: Reg | float) -> tuple[Reg, Reg]:
        """a * b exactly, as a rounded product and its error."""
        product = self.mul(a, b)
        return product, self.fma(a, b, self.negative(product))

    @contextmanager
    def rarely(self, condition: Reg, carry: Sequence[Reg]) -> Iterator[Loop]:
        """Code for the lanes where `condition` holds, skipped where there are none: assign `next` of what is yielded,
        for all lanes; afterwards its `results` hold that, or `carry` where the code was skipped."""
        some = condition
        if lanes(condition.type) > 1:
            some = self.f.call("i1", f"llvm.vector.reduce.or.v{lanes(condition.type)}i1", (condition.type, condition))
        with self.f.loop(0, self.f.convert("zext", some, "i64"), carry=carry) as once:
            yield once

    def _reg(self, value: Reg | float) -> Reg:
        return value if isinstance(value, Reg) else self.c(value)
