"""Conversions between element types, in registers of any lane count. Their meaning: `cast` and `bitcast` in
`relume.ops`."""

from __future__ import annotations

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.kernels.ir import Function, Reg, lanes, vector
from relume.kernels.registers import NARROW, constant, register_type


def widen(f: Function, a: Reg, kind: DType) -> Reg:
    """f16 or bf16 bits as f32, exactly."""
    count = lanes(a.type)
    if kind is dtypes.f16:
        return f.convert("fpext", f.convert("bitcast", a, vector("half", count)), vector("float", count))
    wide = f.convert("zext", a, vector("i32", count))
    return f.convert("bitcast", f.binary("shl", wide, f.int_constant(16, wide.type)), vector("float", count))


def narrow(f: Function, a: Reg, kind: DType) -> Reg:
    """An f32 rounded to the bits of f16 or bf16, ties to even."""
    count = lanes(a.type)
    if kind is dtypes.f16:
        return f.convert("bitcast", f.convert("fptrunc", a, vector("half", count)), vector("i16", count))
    bits = f.convert("bitcast", a, vector("i32", count))

    def k(value: int) -> Reg:
        return f.int_constant(value, bits.type)

    last = f.binary("and", f.binary("lshr", bits, k(16)), k(1))
    rounded = f.binary("add", bits, f.binary("add", last, k(0x7FFF)))
    # Rounding could carry a NaN into infinity: it is made quiet instead.
    kept = f.select(f.fcompare("uno", a, a), f.binary("or", bits, k(0x400000)), rounded)
    return f.convert("trunc", f.binary("lshr", kept, k(16)), vector("i16", count))


def _to_odd(f: Function, a: Reg) -> Reg:
    """An f64 as f32, rounded to odd where inexact: rounding that again to fewer bits rounds the f64 only once."""
    count = lanes(a.type)
    near = f.convert("fptrunc", a, vector("float", count))
    back = f.convert("fpext", near, a.type)
    bits = f.convert("bitcast", near, vector("i32", count))
    one, zero = f.int_constant(1, bits.type), f.int_constant(0, bits.type)
    size_near, size = f.intrinsic("fabs", back), f.intrinsic("fabs", a)
    # Toward zero first: one step back where rounding went away from zero (the bits order magnitudes).
    toward = f.binary("sub", bits, f.select(f.fcompare("ogt", size_near, size), one, zero))
    odd = f.binary("or", toward, f.select(f.fcompare("one", back, a), one, zero))
    return f.convert("bitcast", odd, near.type)


def _fifty_three_bits(f: Function, a: Reg, kind: DType) -> Reg:
    """A 64-bit integer that f64 holds exactly, and that rounds to at most 52 bits as `a` does: beyond 2^53 the last
    eleven bits become one that says whether any was set."""

    def k(value: int) -> Reg:
        return f.int_constant(value, a.type)

    lost = f.binary("and", a, k(0x7FF))
    sticky = f.select(f.icompare("eq", lost, k(0)), k(0), k(0x800))
    rounded = f.binary("or", f.binary("and", a, k(-0x800)), sticky)
    # Magnitudes below 2^53, by one unsigned comparison.
    shifted = f.binary("add", a, k(1 << 53)) if kind.is_signed else a
    small = f.icompare("ult", shifted, k(1 << (54 if kind.is_signed else 53)))
    return f.select(small, a, rounded)


def cast(f: Function, a: Reg, kind: DType, to: DType) -> Reg:
    """The op `cast`: from `kind` to `to`."""
    count = lanes(a.type)
    if kind is to:
        return a
    if kind in NARROW:
        return cast(f, widen(f, a, kind), dtypes.f32, to)
    if to in NARROW:
        # An integer within the range of f16 is exact in f32; for bf16 a wide one goes by way of f64.
        if kind is dtypes.f64:
            return narrow(f, _to_odd(f, a), to)
        if kind.is_integer and kind.bytes >= 4:
            exact = _fifty_three_bits(f, a, kind) if kind.bytes == 8 else a
            return narrow(f, _to_odd(f, cast(f, exact, kind, dtypes.f64)), to)
        return narrow(f, cast(f, a, kind, dtypes.f32), to)
    target = register_type(to, count)
    if to.kind == "bool":
        zero = constant(f, 0, kind, count)
        return f.fcompare("une", a, zero) if kind.is_float else f.icompare("ne", a, zero)
    if kind.is_float and to.is_float:
        return f.convert("fpext" if to.bytes > kind.bytes else "fptrunc", a, target)
    if kind.is_float:
        return _float_to_integer(f, a, to)
    if to.is_float:
        return f.convert("sitofp" if kind.kind == "int" else "uitofp", a, target)
    if kind.kind == "bool" or to.bytes > kind.bytes:
        return f.convert("sext" if kind.kind == "int" else "zext", a, target)
    return f.convert("trunc", a, target) if to.bytes < kind.bytes else a


def _float_to_integer(f: Function, a: Reg, to: DType) -> Reg:
    """Truncated toward zero; out of range and NaN become the minimum of the type."""
    bits = to.bytes * 8
    lowest = -(1 << (bits - 1)) if to.is_signed else 0
    # Both bounds are powers of two, hence exact. What truncates to the minimum from below it is the minimum anyway.
    above = f.constant(float(1 << (bits - 1 if to.is_signed else bits)), a.type)
    inside = f.binary("and", f.fcompare("oge", a, f.constant(float(lowest), a.type)), f.fcompare("olt", a, above))
    target = register_type(to, lanes(a.type))
    # The conversion is undefined outside: it sees 0 there.
    number = f.convert("fptosi" if to.is_signed else "fptoui", f.select(inside, a, f.zero(a.type)), target)
    return f.select(inside, number, f.int_constant(lowest, target))


def bitcast(f: Function, a: Reg, kind: DType, to: DType) -> Reg:
    """The op `bitcast`: from `kind` to `to`, of the same size."""
    count = lanes(a.type)
    if kind.kind == "bool" and to.kind != "bool":
        a = f.convert("zext", a, vector("i8", count))
    if to.kind == "bool" and kind.kind != "bool":
        return f.icompare("ne", a, f.int_constant(0, a.type))
    target = register_type(to, count)
    return a if a.type == target else f.convert("bitcast", a, target)
