"""One element-wise step on registers of any lane count: what `map` and every fused epilogue are made of.

f16 and bf16 compute in f32 and round once, which for + - * / and the square root gives the correctly rounded result
(24 >= 2 * 11 + 2 bits).

The meaning of each op is its reference in `relume.ops`. Integers wrap; division never traps; max and min propagate NaN.
Nothing here is reassociated or contracted, so a lane's bits do not depend on how many lanes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.base.errors import CompileError
from relume.kernels import casts, polynomials, power, remainder, trigonometry
from relume.kernels.ir import Function, Reg, element, lanes
from relume.kernels.registers import NARROW, constant, constant_of_bytes, is_number, load, register_type, store

__all__ = [
    "STEPS", "Step", "emit_body", "emit_step", "maximum", "minimum",
    "constant", "constant_of_bytes", "load", "register_type", "store",
]  # fmt: skip

Step = tuple[str, tuple[int, ...], tuple[tuple[str, object], ...], str]
"""(op, the numbers of its arguments, attributes, name of the result's dtype)."""


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
        return casts.cast(f, regs[0], kinds[0], dtype)
    if op == "bitcast":
        return casts.bitcast(f, regs[0], kinds[0], dtype)
    if op == "select":
        return f.select(regs[0], regs[1], regs[2])
    if op not in _OPS:
        raise CompileError(f"no element-wise step {op!r}", expected=", ".join(sorted(_OPS)), got=op)
    kind = kinds[0]
    if kind in NARROW:
        out = _OPS[op](f, dtypes.f32, *(casts.widen(f, reg, kind) for reg in regs))
        return out if dtype.kind == "bool" else casts.narrow(f, out, dtype)
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
        # A compare and a select are one instruction, which gives the second if either is NaN.
        how = "ogt" if larger else "olt"
        if is_number(b):
            return f.select(f.fcompare(how, b, a), b, a)
        inner = f.select(f.fcompare(how, a, b), a, b)
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
