"""Elementwise ops: each element of the result depends on the elements of the operands at its index alone.

Operands broadcast by NumPy's rules and share one element type; nothing is promoted. Integers wrap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dtypes
from relume.base.dtypes import DType, from_numpy
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, InferError, Never, NotYet, OpDef, Reference, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow, quietly, rounded_once
from relume.ops.inference import ANY, BOOL, FLOAT, NUMBER, infer_tensors

ELEMENTWISE = frozenset({Trait.ELEMENTWISE})
COMMUTATIVE = ELEMENTWISE | {Trait.COMMUTATIVE}
_LIBM = ELEMENTWISE | {Trait.INEXACT}
STEPS = NO_GRADIENT("piecewise constant: the derivative is 0 wherever it exists")
_BOOLEAN = NO_GRADIENT("boolean valued")

_F32, _I32 = np.float32, np.int32
_NAN, _INF = math.nan, math.inf


def _array(dtype: DType, *values: float) -> np.ndarray:
    return np.array(values, dtype=dtype.numpy)


_SPECIALS = _array(
    dtypes.f32, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-40, 3e38, -3e38, _INF, -_INF, _NAN, 88.0, -104.0
)


# --- one operand ----------------------------------------------------------------------------------------------------


def unary(
    name: str,
    doc: str,
    reference: Reference,
    onnx: str | NotYet,
    kinds: tuple[str, ...] = FLOAT,
    gradient: Never | NotYet = NOT_YET,
    traits: frozenset[Trait] = ELEMENTWISE,
) -> OpDef:
    """An op of one operand whose element types are of `kinds`; the result has its type."""

    @infer_tensors
    def infer(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
        inference.want_kind("x", x, kinds)
        return x

    def samples() -> Sequence[Sample]:
        name_ = "bool" if kinds == BOOL else "f32" if "float" in kinds else "i32"
        out = [Sample(((name_, shape),)) for shape in ((), (1,), (7,), (3, 0, 2), (2, 3, 5), (1, 33))]
        if kinds != BOOL:
            out.append(Sample((("bool", (2,)),), error="cannot be bool"))
        if "float" in kinds:
            out += [Sample((_SPECIALS,)), Sample((("f64", (4,)),)), Sample((("f16", (9,)),), tolerance=1e-3)]
        else:
            out.append(Sample((("f32", (2,)),), error="cannot be f32"))
        if "int" in kinds:
            extremes = np.iinfo(np.int32)
            out += [Sample((_array(dtypes.i32, 0, 1, -1, 7, extremes.min, extremes.max),)), Sample((("i64", (2, 3)),))]
            out.append(Sample((_array(dtypes.u8, 0, 1, 200, 255),)))
        else:
            out.append(Sample((("i32", (2,)),), error="cannot be i32"))
        return out

    return OpDef(
        name=name,
        doc=doc,
        operands=("x",),
        infer=infer,
        reference=reference,
        samples=samples,
        gradient=gradient,
        to_onnx=onnx,
        traits=traits,
    )


neg = unary(
    "neg", "-x. The minimum of a signed integer type stays itself; unsigned wraps.", quietly(np.negative), "Neg", NUMBER
)
abs_ = unary("abs", "|x|. The minimum of a signed integer type stays itself.", quietly(np.abs), "Abs", NUMBER)
exp = unary("exp", "e ** x.", rounded_once(np.exp), "Exp", traits=_LIBM)
expm1 = unary("expm1", "e ** x - 1, accurate near 0.", rounded_once(np.expm1), NOT_YET, traits=_LIBM)
log = unary("log", "The natural logarithm; -inf at 0, NaN below.", rounded_once(np.log), "Log", traits=_LIBM)
log1p = unary(
    "log1p", "log(1 + x), accurate near 0; -inf at -1, NaN below.", rounded_once(np.log1p), NOT_YET, traits=_LIBM
)
sqrt = unary("sqrt", "The square root, correctly rounded; NaN below 0.", quietly(np.sqrt), "Sqrt")
sin = unary("sin", "The sine, of however large an angle; NaN at infinity.", rounded_once(np.sin), "Sin", traits=_LIBM)
cos = unary("cos", "The cosine, of however large an angle; NaN at infinity.", rounded_once(np.cos), "Cos", traits=_LIBM)
atan = unary("atan", "The arctangent, from -pi/2 to pi/2.", rounded_once(np.arctan), "Atan", traits=_LIBM)
tanh = unary("tanh", "The hyperbolic tangent.", rounded_once(np.tanh), "Tanh", traits=_LIBM)

real_erf = np.vectorize(math.erf, otypes=[np.float64])
"""The error function of float64 arrays, which NumPy does not have."""
erf = unary(
    "erf", "2/sqrt(pi) times the integral of exp(-t*t) from 0 to x.", rounded_once(real_erf), "Erf", traits=_LIBM
)
sigmoid = unary("sigmoid", "1 / (1 + e ** -x).", rounded_once(lambda x: 1 / (1 + np.exp(-x))), "Sigmoid", traits=_LIBM)
relu = unary("relu", "max(x, 0); NaN stays NaN.", quietly(lambda x: np.maximum(x, x.dtype.type(0))), "Relu", NUMBER)
floor = unary("floor", "The largest integer that is at most x.", quietly(np.floor), "Floor", gradient=STEPS)
ceil = unary("ceil", "The smallest integer that is at least x.", quietly(np.ceil), "Ceil", gradient=STEPS)
round_ = unary("round", "The nearest integer; halves go to the even one.", quietly(np.rint), "Round", gradient=STEPS)
sign = unary("sign", "-1, 0 or 1; NaN for NaN.", quietly(np.sign), "Sign", NUMBER, gradient=STEPS)
reciprocal = unary("reciprocal", "1 / x.", quietly(lambda x: x.dtype.type(1) / x), "Reciprocal")
not_ = unary("not", "Logical negation.", quietly(np.logical_not), "Not", BOOL, gradient=_BOOLEAN)


# --- two operands ---------------------------------------------------------------------------------------------------


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if from_numpy(a.dtype).is_float:
        return a / b
    zero = b == 0
    one = b.dtype.type(1)
    divisor = np.where(zero, one, b)
    if from_numpy(a.dtype).is_signed:
        # x / -1 is -x, which wraps where a division instruction would trap.
        minus = divisor == -1
        down = np.floor_divide(np.where(minus, -a, a), np.where(minus, one, divisor))
        inexact = np.where(minus, False, down * divisor != a)
        quotient = down + (inexact & ((a < 0) != (divisor < 0))).astype(a.dtype)
    else:
        quotient = np.floor_divide(a, divisor)
    return np.where(zero, a.dtype.type(0), quotient)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if from_numpy(a.dtype).is_float:
        return narrow(np.fmod(a.astype(np.float64), b.astype(np.float64)), a.dtype)  # Exact in every type.
    return a - divide(a, b) * b


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dtype = from_numpy(a.dtype)
    if dtype.is_float:
        # Where one exponent serves many, NumPy takes the square root for 0.5, which differs at -0 and at -inf.
        root = (b == 0.5) & ((a == 0) | np.isneginf(a.astype(np.float64)))
        powers = np.power(a.astype(np.float64), b.astype(np.float64))
        return narrow(np.where(root, np.abs(a.astype(np.float64)), powers), a.dtype)
    negative = b < 0
    powers = np.power(a, np.where(negative, b.dtype.type(0), b))
    if not dtype.is_signed:
        return powers
    # 1 / a**n truncated toward 0: nothing is left unless a is 1 or -1.
    odd = (b & b.dtype.type(1)) == 1
    minus_one = np.where(odd, a.dtype.type(-1), a.dtype.type(1))
    inverse = np.where(a == 1, a.dtype.type(1), np.where(a == -1, minus_one, a.dtype.type(0)))
    return np.where(negative, inverse, powers)


def binary(
    name: str,
    doc: str,
    reference: Reference,
    onnx: str | NotYet,
    kinds: tuple[str, ...] = NUMBER,
    compares: bool = False,
    gradient: Never | NotYet = NOT_YET,
    traits: frozenset[Trait] = ELEMENTWISE,
) -> OpDef:
    """An op of two operands of one element type of `kinds`; the result has it too, or is a bool if it `compares`."""

    @infer_tensors
    def infer(a: Tensor, b: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
        dtype = inference.want_same_dtype(a, b)
        inference.want_kind("a", a, kinds)
        return Tensor(dtypes.bool_ if compares else dtype, inference.broadcast(a.dims, b.dims))

    def samples() -> Sequence[Sample]:
        shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
            ((), ()),
            ((5,), ()),
            ((2, 3), (3,)),
            ((4, 1, 3), (2, 1)),
            ((1, 0), (3, 1)),
            ((2, 17), (2, 17)),
        )
        name_ = "bool" if kinds == BOOL else "f32" if "float" in kinds else "i32"
        out = [Sample(((name_, a), (name_, b))) for a, b in shapes]
        out.append(Sample(((name_, (2, 3)), (name_, (4,))), error="do not broadcast"))
        out.append(Sample(((name_, (2,)), ("i16", (2,))), error="element types differ"))
        if kinds != BOOL:
            edge = np.iinfo(np.int32)
            a = _array(dtypes.i32, 7, -7, 7, -7, 5, 0, edge.min, edge.min, edge.max, -1, 1, -2)
            b = _array(dtypes.i32, 2, 2, -2, -2, 0, 0, -1, 2, edge.max, -3, -4, 3)
            out += [Sample((a, b)), Sample((("i64", (2, 3)), ("i64", (3,))))]
            out += [Sample((_array(dtypes.u8, 255, 200, 3, 0), _array(dtypes.u8, 2, 100, 0, 1)))]
        if "float" in kinds:
            values = _array(dtypes.f32, 0.0, -0.5, 2.0, _INF, -_INF, _NAN, 3e38)
            out.append(Sample((values[:, None], values[None, :])))
            out.append(Sample((("f64", (3,)), ("f64", (3,)))))
            out.append(Sample((("f16", (3,)), ("f16", (3,))), tolerance=1e-3))
        elif kinds != BOOL:
            out.append(Sample((("f32", (2,)), ("f32", (2,))), error="cannot be f32"))
        if "bool" not in kinds:
            out.append(Sample((("bool", (2,)), ("bool", (2,))), error="cannot be bool"))
        return out

    return OpDef(
        name=name,
        doc=doc,
        operands=("a", "b"),
        infer=infer,
        reference=reference,
        samples=samples,
        gradient=gradient,
        to_onnx=onnx,
        traits=traits,
    )


add = binary("add", "a + b.", quietly(np.add), "Add", traits=COMMUTATIVE)
sub = binary("sub", "a - b.", quietly(np.subtract), "Sub")
mul = binary("mul", "a * b.", quietly(np.multiply), "Mul", traits=COMMUTATIVE)
div = binary(
    "div",
    "a / b. Integers truncate toward 0; x / 0 is 0, and the minimum divided by -1 wraps to itself.",
    quietly(divide),
    "Div",
)
rem = binary(
    "rem",
    "a - trunc(a / b) * b, exactly, with the sign of a. Floats as C's fmod: NaN where b is 0 or a infinite, a where "
    "only b is infinite. Integers: x rem 0 is x, and the minimum rem -1 is 0, so that always a = div(a, b) * b + "
    "rem(a, b).",
    quietly(_remainder),
    NOT_YET,
)
max_ = binary(
    "max", "The larger; NaN if either is. Of -0 and +0, either.", quietly(np.maximum), "Max", traits=COMMUTATIVE
)
min_ = binary(
    "min", "The smaller; NaN if either is. Of -0 and +0, either.", quietly(np.minimum), "Min", traits=COMMUTATIVE
)
pow_ = binary(
    "pow",
    "a ** b. Floats as IEEE pow (NaN for a negative base with a fractional exponent). Integers wrap; a negative "
    "exponent gives 1 / a ** -b truncated toward 0, and 0 for a = 0.",
    quietly(_power),
    "Pow",
    traits=_LIBM,
)
equal = binary(
    "equal",
    "a = b; NaN equals nothing.",
    quietly(np.equal),
    "Equal",
    ANY,
    compares=True,
    gradient=_BOOLEAN,
    traits=COMMUTATIVE,
)
less = binary("less", "a < b; false for NaN.", quietly(np.less), "Less", compares=True, gradient=_BOOLEAN)
greater = binary("greater", "a > b; false for NaN.", quietly(np.greater), "Greater", compares=True, gradient=_BOOLEAN)
and_ = binary(
    "and", "Logical conjunction.", quietly(np.logical_and), "And", BOOL, gradient=_BOOLEAN, traits=COMMUTATIVE
)
or_ = binary("or", "Logical disjunction.", quietly(np.logical_or), "Or", BOOL, gradient=_BOOLEAN, traits=COMMUTATIVE)


# --- select and cast ------------------------------------------------------------------------------------------------


@infer_tensors
def _infer_select(c: Tensor, a: Tensor, b: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_dtype("the condition", c, dtypes.bool_)
    return Tensor(inference.want_same_dtype(a, b), inference.broadcast(c.dims, a.dims, b.dims))


select = OpDef(
    name="select",
    doc="a where c is true, else b; all three broadcast.",
    operands=("c", "a", "b"),
    infer=_infer_select,
    reference=quietly(np.where),
    samples=lambda: [
        Sample((("bool", ()), ("f32", ()), ("f32", ()))),
        Sample((("bool", (5,)), ("f32", (5,)), ("f32", ()))),
        Sample((("bool", (2, 1)), ("f32", (3,)), ("f32", (4, 1, 1)))),
        Sample((("bool", (0,)), ("f32", (1,)), ("f32", ()))),
        Sample((("bool", (6,)), ("i64", (6,)), ("i64", (1,)))),
        Sample((("bool", (3,)), ("bool", (3,)), ("bool", (3,)))),
        Sample((("f32", (3,)), ("f32", (3,)), ("f32", (3,))), error="condition cannot be f32"),
        Sample((("bool", (3,)), ("f32", (3,)), ("f64", (3,))), error="element types differ"),
    ],
    to_onnx="Where",
    traits=ELEMENTWISE,
)


@infer_tensors
def _infer_cast(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    to = attrs["to"]
    if not isinstance(to, DType):
        raise InferError("to must be an element type", ", ".join(map(str, dtypes.ALL)), to)
    return Tensor(to, x.dims)


def _cast(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    to = attrs["to"]
    assert isinstance(to, DType)
    source = from_numpy(x.dtype)
    if not (source.is_float and to.is_integer):
        return (x != 0 if to is dtypes.bool_ else narrow(x, to.numpy),)
    bounds = np.iinfo(to.numpy)
    wide = np.trunc(x.astype(np.float64))
    # Both bounds are exact in float64: the minimum, and one more than the maximum. NaN fails both comparisons.
    inside = (wide >= float(bounds.min)) & (wide < float(bounds.max + 1))
    return (np.where(inside, np.where(inside, wide, 0.0).astype(to.numpy), to.numpy.type(bounds.min)),)


_CAST_SOURCE = _array(
    dtypes.f32, 0.0, -0.0, 0.9, -0.9, 1.5, -2.5, 127.0, 128.0, -129.0, 255.9, 256.0, 65536.0, 2147483520.0,
    2147483648.0, -2147483648.0, 3e9, 9.3e18, -9.3e18, _INF, -_INF, _NAN,
)  # fmt: skip

cast = OpDef(
    name="cast",
    doc="x in another element type. To a float: rounded to nearest, ties to even. Float to integer: truncated toward "
    "0; what is then out of range, and NaN, becomes the minimum of the type. Integer to integer wraps. To bool: x != "
    "0; from bool: 0 or 1.",
    operands=("x",),
    infer=_infer_cast,
    reference=_cast,
    samples=lambda: [
        *(Sample((_CAST_SOURCE,), {"to": dtype}) for dtype in dtypes.ALL),
        *(Sample((_CAST_SOURCE.astype(np.float64),), {"to": dtype}) for dtype in (dtypes.i64, dtypes.f32)),
        *(
            Sample((_array(dtypes.i64, 0, 1, -1, 300, 2**31, -(2**40), 2**63 - 1),), {"to": dtype})
            for dtype in dtypes.ALL
        ),
        Sample((("bool", (2, 3)),), {"to": dtypes.f32}),
        Sample((("bool", ()),), {"to": dtypes.i64}),
        Sample((("u8", (0, 3)),), {"to": dtypes.f32}),
        Sample((("f32", (3,)),), {"to": "f32"}, error="element type"),
    ],
    attrs=(AttrDef("to", "dtype"),),
    to_onnx=NOT_YET,
    traits=ELEMENTWISE,
)

OPS = (
    add, sub, mul, div, rem, max_, min_, pow_,
    neg, abs_, exp, expm1, log, log1p, sqrt, sin, cos, atan, tanh, erf, sigmoid,
    relu, floor, ceil, round_, sign, reciprocal,
    equal, less, greater, and_, or_, not_, select, cast,
)  # fmt: skip
