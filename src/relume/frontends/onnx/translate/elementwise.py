"""Elementwise operators of one, two and three operands."""

from __future__ import annotations

from relume.base import dtypes
from relume.frontends.onnx.calls import Call, Translator, translates
from relume.frontends.onnx.tensors import dtype_of, is_supported
from relume.graph.types import Value

_UNARY: dict[str, tuple[str, tuple[int, ...]]] = {
    "Abs": ("abs", (1, 6, 13)),
    "Atan": ("atan", (7, 22)),
    "BitwiseNot": ("bit_not", (18,)),
    "Ceil": ("ceil", (1, 6, 13)),
    "Cos": ("cos", (7, 22)),
    "Exp": ("exp", (1, 6, 13)),
    "Floor": ("floor", (1, 6, 13)),
    "Log": ("log", (1, 6, 13)),
    "Neg": ("neg", (1, 6, 13)),
    "Not": ("not", (1,)),
    "Reciprocal": ("reciprocal", (1, 6, 13)),
    "Relu": ("relu", (1, 6, 13, 14)),
    "Round": ("round", (11, 22)),
    "Sigmoid": ("sigmoid", (1, 6, 13)),
    "Sign": ("sign", (9, 13)),
    "Sin": ("sin", (7, 22)),
    "Sqrt": ("sqrt", (1, 6, 13)),
    "Tanh": ("tanh", (1, 6, 13)),
}


def _unary(op: str) -> Translator:
    return lambda call: call.apply(op, call.input(0))


for _name, (_op, _versions) in _UNARY.items():
    translates(_name, versions=_versions)(_unary(_op))


@translates("Erf", versions=(9, 13))
def erf(call: Call) -> Value:
    """Of an integer too: truncated, it is 0 but where it rounds to 1 or -1."""
    x = call.input(0)
    if x.dtype.is_float:
        return call.apply("erf", x)
    return call.cast(call.apply("erf", call.cast(x, dtypes.f32)), x.dtype)


# --- two operands ---------------------------------------------------------------------------------------------------


def operands(call: Call) -> tuple[Value, Value]:
    """Both operands. Before opset 7 they broadcast only where the attribute `broadcast` said so: b's axes are those of
    a from `axis` on (default: the last ones)."""
    a, b = call.input(0), call.input(1)
    if not call.has("broadcast"):
        return a, b
    if not call.integer("broadcast"):
        if a.tensor.rank != b.tensor.rank:
            call.wrong("operands of different rank need broadcast=1", a.type, b.type)
        return a, b
    start = call.axis(a.tensor.rank) if call.has("axis") else a.tensor.rank - b.tensor.rank
    behind = a.tensor.rank - start - b.tensor.rank
    if behind < 0:
        call.wrong("the second operand has too many axes for its place", f"at most {a.tensor.rank - start}", b.type)
    return a, call.reshape(b, (*b.dims, *(1,) * behind))


_BINARY: dict[str, tuple[str, tuple[int, ...]]] = {
    "BitwiseAnd": ("bit_and", (18,)),
    "BitwiseOr": ("bit_or", (18,)),
    "BitwiseXor": ("bit_xor", (18,)),
    "Add": ("add", (1, 6, 7, 13, 14)),
    "Sub": ("sub", (1, 6, 7, 13, 14)),
    "Mul": ("mul", (1, 6, 7, 13, 14)),
    "Div": ("div", (1, 6, 7, 13, 14)),
    "And": ("and", (1, 7)),
    "Or": ("or", (1, 7)),
    "Equal": ("equal", (1, 7, 11, 13, 19)),
    "Less": ("less", (1, 7, 9, 13)),
    "Greater": ("greater", (1, 7, 9, 13)),
}


def _binary(op: str) -> Translator:
    return lambda call: call.apply(op, *operands(call))


for _name, (_op, _versions) in _BINARY.items():
    translates(_name, versions=_versions)(_binary(_op))


@translates("LessOrEqual", versions=(12, 16))
def less_or_equal(call: Call) -> Value:
    a, b = call.input(0), call.input(1)
    return call.apply("or", call.apply("less", a, b), call.apply("equal", a, b))  # Both false for NaN.


@translates("GreaterOrEqual", versions=(12, 16))
def greater_or_equal(call: Call) -> Value:
    a, b = call.input(0), call.input(1)
    return call.apply("or", call.apply("greater", a, b), call.apply("equal", a, b))


@translates("Xor", versions=(1, 7))
def xor(call: Call) -> Value:
    return call.apply("not", call.apply("equal", *operands(call)))


@translates("Pow", versions=(1, 7, 12, 13, 15))
def power(call: Call) -> Value:
    """The result has the type of the base. From opset 12 on the exponent may have another: the power is then computed
    in the type that holds both."""
    base, exponent = operands(call)
    if base.dtype is exponent.dtype:
        return call.apply("pow", base, exponent)
    if base.dtype.is_float:
        return call.apply("pow", base, call.cast(exponent, base.dtype))
    # An integer base: in the exponent's float type, truncated at the end; between integers in the wider one.
    common = exponent.dtype if exponent.dtype.is_float else max(base.dtype, exponent.dtype, key=lambda d: d.bytes)
    return call.cast(call.apply("pow", call.cast(base, common), call.cast(exponent, common)), base.dtype)


@translates("Mod", versions=(10, 13, 28))
def modulo(call: Call) -> Value:
    """The remainder of a quotient truncated (fmod=1: it has a's sign) or rounded down (it has b's)."""
    a, b = call.input(0), call.input(1)
    remainder = call.apply("rem", a, b)
    if call.integer("fmod") or not a.dtype.is_signed:
        return remainder
    # Where it is neither 0 nor of b's sign, it is one b short.
    zero = call.constant(0, a.dtype)
    negative = call.apply("less", b, zero)
    other_sign = call.apply("not", call.apply("equal", call.apply("less", remainder, zero), negative))
    none = call.apply("equal", remainder, zero)
    if a.dtype.is_float:
        # Of a NaN nothing is said, but a sum with b keeps it. A zero takes the sign of b.
        signed_zero = call.apply("select", negative, call.constant(-0.0, a.dtype), zero)
        remainder = call.apply("select", none, signed_zero, remainder)
    short = call.apply("and", call.apply("not", none), other_sign)
    return call.apply("select", short, call.apply("add", remainder, b), remainder)


@translates("BitShift", versions=(11, 28))
def bit_shift(call: Call) -> Value:
    direction = call.attr("direction", str)
    if direction not in ("LEFT", "RIGHT"):
        call.wrong("a shift has a direction", "LEFT or RIGHT", direction)
    return call.apply("shift_left" if direction == "LEFT" else "shift_right", call.input(0), call.input(1))


# --- choosing, casting, passing through -----------------------------------------------------------------------------


@translates("Where", versions=(9, 16))
def where(call: Call) -> Value:
    return call.apply("select", call.input(0), call.input(1), call.input(2))


@translates("Clip", versions=(1, 6, 11, 12, 13))
def clip(call: Call) -> Value:
    """min(max(x, low), high); where low > high the result is high. Bounds are attributes before opset 11."""
    x = call.input(0)
    if call.version < 11:
        # The defaults of version 6 are the largest finite floats.
        bounds = tuple(call.constant(call.number(name), x.dtype) if call.has(name) else None for name in ("min", "max"))
    else:
        bounds = (call.optional(1), call.optional(2))
    for op, bound in zip(("max", "min"), bounds):
        if bound is not None:
            if bound.tensor.elements != 1:
                call.wrong("a bound of Clip is a scalar", "one element", bound.type)
            x = call.apply(op, x, call.reshape(bound, ()))
    return x


@translates("Cast", versions=(6, 9, 13, 19, 21, 23, 24, 25, 28))
def cast(call: Call) -> Value:
    to = call.integer("to")
    if not is_supported(to, call.node.name):
        call.unsupported(f"casts to element type {to} are not supported")
    return call.cast(call.input(0), dtype_of(to))


@translates("BitCast", versions=(26,))
def bit_cast(call: Call) -> Value:
    to = call.integer("to")
    if not is_supported(to, call.node.name):
        call.unsupported(f"casts to element type {to} are not supported")
    return call.apply("bitcast", call.input(0), to=dtype_of(to))


@translates("CastLike", versions=(15, 19, 21, 23, 24, 25))
def cast_like(call: Call) -> Value:
    return call.cast(call.input(0), call.input(1).dtype)


@translates("Identity", versions=(1, 13, 14, 16, 19, 21, 23, 24, 25))
def identity(call: Call) -> Value:
    return call.input(0)


@translates("Dropout", versions=(1, 6, 7, 10, 12, 13, 22))
def dropout(call: Call) -> tuple[Value | None, ...]:
    """Inference: nothing is dropped, and the mask keeps everything."""
    x = call.input(0)
    training = call.optional(2)
    if training is not None:
        known = call.numbers(training)
        if known is None or known.any():
            call.unsupported("dropout in training mode")
    if len(call.node.outputs) < 2 or not call.node.outputs[1]:
        return (x,)
    mask_dtype = dtypes.bool_ if call.version >= 10 else x.dtype
    return x, call.apply("broadcast", call.constant(1, mask_dtype), dims=x.dims)


# --- tests on floats ------------------------------------------------------------------------------------------------


@translates("IsNaN", versions=(9, 13, 20))
def is_nan(call: Call) -> Value:
    x = call.input(0)
    return call.apply("not", call.apply("equal", x, x))


@translates("IsInf", versions=(10, 20))
def is_inf(call: Call) -> Value:
    x = call.input(0)
    positive = call.apply("equal", x, float("inf"))
    negative = call.apply("equal", x, float("-inf"))
    if not call.integer("detect_negative"):
        return positive if call.integer("detect_positive") else call.apply("and", positive, negative)
    return call.apply("or", positive, negative) if call.integer("detect_positive") else negative
