"""One element-wise step on registers of any lane count: what `map` and every fused epilogue are made of.

Registers hold an element type as LLVM has it (`i32`, `<16 x float>`), with two conventions:

- a bool is an `i1` (`<16 x i1>`) in registers and a byte 0 or 1 in memory: `load` and `store` convert;
- f16 and bf16 are their 16 bits (`i16`) in registers: they are moved as they are, and a step computes in f32 and
  rounds once, which for + - * / and the square root gives the correctly rounded result (24 >= 2 * 11 + 2 bits).

The meaning of each op is its reference in `relume.ops`. Integers wrap; division never traps; max and min propagate NaN.
Nothing here is reassociated or contracted, so a lane's bits do not depend on how many lanes there are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.base.errors import CompileError
from relume.kernels import polynomials, power, remainder, trigonometry
from relume.kernels.ir import Function, Reg, element, lanes, llvm_type, vector

Step = tuple[str, tuple[int, ...], tuple[tuple[str, object], ...], str]
"""(op, the numbers of its arguments, attributes, name of the result's dtype)."""

_NARROW = (dtypes.f16, dtypes.bf16)


def register_type(dtype: DType, count: int = 1) -> str:
    """The type of `count` lanes of `dtype` in a register."""
    kind = "i1" if dtype.kind == "bool" else "i16" if dtype in _NARROW else llvm_type(dtype)
    return vector(kind, count)


def load(f: Function, dtype: DType, address: Reg, count: int = 1) -> Reg:
    """`count` consecutive elements from memory."""
    if dtype.kind != "bool":
        return f.load(register_type(dtype, count), address, dtype.bytes)
    raw = f.load(vector("i8", count), address, 1)
    return f.icompare("ne", raw, f.int_constant(0, raw.type))


def store(f: Function, dtype: DType, value: Reg, address: Reg) -> None:
    """Writes all lanes of `value` to consecutive elements."""
    if dtype.kind == "bool":
        value = f.convert("zext", value, vector("i8", lanes(value.type)))
    f.store(value, address, dtype.bytes)


def constant(f: Function, value: object, dtype: DType, count: int = 1) -> Reg:
    """`value` (int, float or bool) in all of `count` lanes. Integers wrap to the type."""
    type_ = register_type(dtype, count)
    if dtype.is_float and dtype not in _NARROW:
        return f.constant(float(value), type_)  # type: ignore[arg-type]
    return constant_of_bytes(f, dtype.numpy.type(value).tobytes(), dtype, count)


def constant_of_bytes(f: Function, raw: bytes, dtype: DType, count: int = 1) -> Reg:
    """The one element whose little-endian bytes are `raw`, in all of `count` lanes, a NaN with its payload."""
    type_ = register_type(dtype, count)
    if dtype.kind == "bool":
        return f.int_constant(int(raw != b"\0"), type_)
    bits = int.from_bytes(raw, "little")
    if not dtype.is_float or dtype in _NARROW:
        return f.int_constant(bits, type_)
    if dtype is dtypes.f32:
        value = struct.unpack("<f", raw)[0]
        if value == value:
            return f.constant(value, type_)
        # LLVM writes a float in the bits of a double; widening a NaN by arithmetic would make it quiet.
        bits = (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
    text = f"0x{bits:016X}"
    return Reg(text if count == 1 else f"<{', '.join([f'{element(type_)} {text}'] * count)}>", type_)


def emit_body(
    f: Function, inputs: Sequence[Reg], sources: Sequence[DType], body: Sequence[Step], count: int
) -> list[Reg]:
    """Runs a whole body: value n is input n, then come the steps; all values have `count` lanes (constants too)."""
    values, kinds = [f.splat(value, count) if lanes(value.type) == 1 else value for value in inputs], list(sources)
    for op, args, attrs, name in body:
        dtype = dtypes.BY_NAME[name]
        value = emit_step(f, op, [values[n] for n in args], dict(attrs), dtype, [kinds[n] for n in args])
        if op == "constant":
            value = constant(f, dict(attrs)["value"], dtype, count)
        values.append(value)
        kinds.append(dtype)
    return values


def emit_step(
    f: Function,
    op: str,
    args: Sequence[Reg],
    attrs: Mapping[str, object],
    dtype: DType,
    sources: Sequence[DType] | None = None,
) -> Reg:
    """One op of `relume.ops` on registers of one lane count; the result has element type `dtype`.

    `sources` are the dtypes of `args`. Without them integer arguments of a comparison or cast count as signed. Scalar
    arguments beside vectors are spread. `constant` (no arguments; attribute `value`) gives a scalar.
    Raises `CompileError` for an op or element type without code.
    """
    if op == "constant":
        return constant(f, attrs["value"], dtype)
    kinds = list(sources) if sources is not None else [_guess(arg, dtype, op) for arg in args]
    count = max(lanes(arg.type) for arg in args)
    regs = [f.splat(arg, count) if lanes(arg.type) < count else arg for arg in args]
    if op == "cast":
        return _cast(f, regs[0], kinds[0], dtype)
    if op == "bitcast":
        return _bitcast(f, regs[0], kinds[0], dtype)
    if op == "select":
        return f.select(regs[0], regs[1], regs[2])
    if op not in _OPS:
        raise CompileError(f"no element-wise step {op!r}", expected=", ".join(sorted(_OPS)), got=op)
    kind = kinds[0]
    if kind in _NARROW:
        out = _OPS[op](f, dtypes.f32, *(_widen(f, reg, kind) for reg in regs))
        return out if dtype.kind == "bool" else _round(f, out, dtype)
    return _OPS[op](f, kind, *regs)


def _guess(arg: Reg, dtype: DType, op: str) -> DType:
    """The dtype of an argument whose caller does not say: the result's where the register fits it, else signed."""
    kind = element(arg.type)
    if op not in ("cast", "equal", "less", "greater") and kind == register_type(dtype):
        return dtype
    by_type = {"float": dtypes.f32, "double": dtypes.f64, "i1": dtypes.bool_}
    return by_type[kind] if kind in by_type else dtypes.BY_NAME[kind]


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _need(kind: DType, *allowed: str) -> None:
    if kind.kind not in allowed:
        raise CompileError("a step has no code for this element type", expected=" or ".join(allowed), got=kind)


def _arithmetic(on_floats: str, on_integers: str) -> Callable[..., Reg]:
    def emit(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
        _need(kind, "float", "int", "uint")
        return f.binary(on_floats if kind.is_float else on_integers, a, b)

    return emit


def _div(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    if kind.is_float:
        return f.binary("fdiv", a, b)
    return _divide_integers(f, kind, a, b)


def _rem(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    if kind.is_float:
        return remainder.rem(f, a, b)
    return f.binary("sub", a, f.binary("mul", _divide_integers(f, kind, a, b), b))


def _divide_integers(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
    """Truncated; 0 where b is 0."""
    zero, one = f.int_constant(0, b.type), f.int_constant(1, b.type)
    by_zero = f.icompare("eq", b, zero)
    unsafe = by_zero
    if kind.is_signed:
        # Minimum / -1 would trap: divided by 1 it is itself, which is how it wraps.
        lowest = f.icompare("eq", a, f.int_constant(-(1 << (kind.bytes * 8 - 1)), a.type))
        minus_one = f.icompare("eq", b, f.int_constant(-1, b.type))
        unsafe = f.binary("or", unsafe, f.binary("and", lowest, minus_one))
    quotient = f.binary("sdiv" if kind.is_signed else "udiv", a, f.select(unsafe, one, b))
    return f.select(by_zero, zero, quotient)


def _extreme(larger: bool) -> Callable[..., Reg]:
    def emit(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
        if not kind.is_float:
            return f.select(_less(f, kind, b, a) if larger else _less(f, kind, a, b), a, b)
        # The inner select is one instruction that gives b if either is NaN; the outer one looks after a.
        inner = f.select(f.fcompare("ogt" if larger else "olt", a, b), a, b)
        return f.select(f.fcompare("uno", a, a), a, inner)

    return emit


maximum = _extreme(True)
"""(f, dtype, a, b) -> the larger; NaN if either is one."""
minimum = _extreme(False)
"""(f, dtype, a, b) -> the smaller; NaN if either is one."""


def _pow(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    if kind.is_float:
        return power.pow(f, a, b)
    zero, one = f.int_constant(0, a.type), f.int_constant(1, a.type)
    # Repeated squaring over the bits of the exponent.
    with f.loop(0, kind.bytes * 8, carry=[f.binary("or", one, zero), a, b]) as bits:
        product, square, rest = bits.carried
        odd = f.icompare("ne", f.binary("and", rest, one), zero)
        bits.next = [f.select(odd, f.binary("mul", product, square), product), f.binary("mul", square, square),
                     f.binary("lshr", rest, one)]  # fmt: skip
    product = bits.results[0]
    if not kind.is_signed:
        return product
    minus_one = f.int_constant(-1, a.type)
    odd = f.icompare("ne", f.binary("and", b, one), zero)
    of_minus_one = f.select(f.icompare("eq", a, minus_one), f.select(odd, minus_one, one), zero)
    inverse = f.select(f.icompare("eq", a, one), one, of_minus_one)
    return f.select(f.icompare("slt", b, zero), inverse, product)


def _neg(f: Function, kind: DType, a: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    if kind.is_float:
        return f.assign(a.type, f"fneg {a.type} {a}")
    return f.binary("sub", f.int_constant(0, a.type), a)


def _abs(f: Function, kind: DType, a: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    if kind.is_float:
        return f.intrinsic("fabs", a)
    return f.select(f.icompare("slt", a, f.int_constant(0, a.type)), _neg(f, kind, a), a) if kind.is_signed else a


def _relu(f: Function, kind: DType, a: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    zero = constant(f, 0, kind, lanes(a.type))
    # `x < 0 ? 0 : x` is one instruction, and false for NaN, which therefore stays.
    return f.select(_less(f, kind, a, zero), zero, a)


def _sign(f: Function, kind: DType, a: Reg) -> Reg:
    _need(kind, "float", "int", "uint")
    count = lanes(a.type)
    zero, one = constant(f, 0, kind, count), constant(f, 1, kind, count)
    if not kind.is_float:
        positive = f.select(_less(f, kind, zero, a), one, zero)
        return f.select(_less(f, kind, a, zero), f.int_constant(-1, a.type), positive) if kind.is_signed else positive
    positive = f.select(f.fcompare("ogt", a, zero), one, zero)
    signed = f.select(f.fcompare("olt", a, zero), constant(f, -1, kind, count), positive)
    return f.select(f.fcompare("uno", a, a), a, signed)


def _intrinsic(name: str) -> Callable[..., Reg]:
    """A float intrinsic that is one instruction from SSE4.1 on."""

    def emit(f: Function, kind: DType, a: Reg) -> Reg:
        _need(kind, "float")
        return f.intrinsic(name, a)

    return emit


def _polynomial(function: Callable[[Function, Reg], Reg]) -> Callable[..., Reg]:
    def emit(f: Function, kind: DType, a: Reg) -> Reg:
        _need(kind, "float")
        return function(f, a)

    return emit


def _reciprocal(f: Function, kind: DType, a: Reg) -> Reg:
    return _div(f, kind, constant(f, 1, kind, lanes(a.type)), a)


# --- comparisons and logic ------------------------------------------------------------------------------------------


def _equal(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
    return f.fcompare("oeq", a, b) if kind.is_float else f.icompare("eq", a, b)


def _less(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
    if kind.is_float:
        return f.fcompare("olt", a, b)
    return f.icompare("slt" if kind.is_signed else "ult", a, b)


def _logic(instruction: str) -> Callable[..., Reg]:
    def emit(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
        _need(kind, "bool")
        return f.binary(instruction, a, b)

    return emit


def _not(f: Function, kind: DType, a: Reg) -> Reg:
    _need(kind, "bool")
    return f.binary("xor", a, f.int_constant(1, a.type))


# --- bits -----------------------------------------------------------------------------------------------------------


def _bits(instruction: str) -> Callable[..., Reg]:
    def emit(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
        _need(kind, "int", "uint")
        return f.binary(instruction, a, b)

    return emit


def _bit_not(f: Function, kind: DType, a: Reg) -> Reg:
    _need(kind, "int", "uint")
    return f.binary("xor", a, f.int_constant(-1, a.type))


def _bitcast(f: Function, a: Reg, kind: DType, to: DType) -> Reg:
    count = lanes(a.type)
    if kind.kind == "bool" and to.kind != "bool":
        a = f.convert("zext", a, vector("i8", count))
    if to.kind == "bool" and kind.kind != "bool":
        return f.icompare("ne", a, f.int_constant(0, a.type))
    target = register_type(to, count)
    return a if a.type == target else f.convert("bitcast", a, target)


def _shift(left: bool) -> Callable[..., Reg]:
    def emit(f: Function, kind: DType, a: Reg, b: Reg) -> Reg:
        _need(kind, "int", "uint")
        bits = kind.bytes * 8
        # An instruction's result is poison from the width on. Read as unsigned, a negative count is beyond it too.
        inside = f.icompare("ult", b, f.int_constant(bits, b.type))
        if not left and kind.kind == "int":
            return f.binary("ashr", a, f.select(inside, b, f.int_constant(bits - 1, b.type)))
        zero = f.int_constant(0, a.type)
        return f.select(inside, f.binary("shl" if left else "lshr", a, f.select(inside, b, zero)), zero)

    return emit


_OPS: dict[str, Callable[..., Reg]] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _div,
    "rem": _rem,
    "max": maximum,
    "min": minimum,
    "pow": _pow,
    "neg": _neg,
    "abs": _abs,
    "exp": _polynomial(polynomials.exp),
    "expm1": _polynomial(polynomials.expm1),
    "log": _polynomial(polynomials.log),
    "log1p": _polynomial(polynomials.log1p),
    "sqrt": _intrinsic("sqrt"),
    "sin": _polynomial(trigonometry.sin),
    "cos": _polynomial(trigonometry.cos),
    "atan": _polynomial(trigonometry.atan),
    "tanh": _polynomial(polynomials.tanh),
    "erf": _polynomial(polynomials.erf),
    "sigmoid": _polynomial(polynomials.sigmoid),
    "relu": _relu,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("roundeven"),
    "sign": _sign,
    "reciprocal": _reciprocal,
    "equal": _equal,
    "less": _less,
    "greater": lambda f, kind, a, b: _less(f, kind, b, a),
    "and": _logic("and"),
    "or": _logic("or"),
    "not": _not,
    "bit_and": _bits("and"),
    "bit_or": _bits("or"),
    "bit_xor": _bits("xor"),
    "bit_not": _bit_not,
    "shift_left": _shift(left=True),
    "shift_right": _shift(left=False),
}

STEPS = frozenset({*_OPS, "bitcast", "cast", "select"})
"""The ops that kernels know as steps of a body."""


# --- casts ----------------------------------------------------------------------------------------------------------


def _widen(f: Function, a: Reg, kind: DType) -> Reg:
    """f16 or bf16 bits as f32, exactly."""
    count = lanes(a.type)
    if kind is dtypes.f16:
        return f.convert("fpext", f.convert("bitcast", a, vector("half", count)), vector("float", count))
    wide = f.convert("zext", a, vector("i32", count))
    return f.convert("bitcast", f.binary("shl", wide, f.int_constant(16, wide.type)), vector("float", count))


def _round(f: Function, a: Reg, kind: DType) -> Reg:
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


def _cast(f: Function, a: Reg, kind: DType, to: DType) -> Reg:
    count = lanes(a.type)
    if kind is to:
        return a
    if kind in _NARROW:
        return _cast(f, _widen(f, a, kind), dtypes.f32, to)
    if to in _NARROW:
        # An integer within the range of f16 is exact in f32; for bf16 a wide one goes by way of f64.
        if kind is dtypes.f64:
            return _round(f, _to_odd(f, a), to)
        if kind.is_integer and kind.bytes >= 4:
            exact = _fifty_three_bits(f, a, kind) if kind.bytes == 8 else a
            return _round(f, _to_odd(f, _cast(f, exact, kind, dtypes.f64)), to)
        return _round(f, _cast(f, a, kind, dtypes.f32), to)
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
