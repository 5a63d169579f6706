"""Circular and hyperbolic functions and their inverses, made of the few that are ops.

The formulas are chosen for accuracy: no difference of nearly equal numbers is taken, so the relative error stays at a
few roundings for every argument, tiny, huge or next to a zero. Short floats compute in f32 and round once.
"""

from __future__ import annotations

import math

from relume.base import dtypes
from relume.frontends.onnx.calls import Call, of_one_operand, translates
from relume.graph.types import Value

# --- circular -------------------------------------------------------------------------------------------------------


def _tan(call: Call, x: Value) -> Value:
    return call.apply("div", call.apply("sin", x), call.apply("cos", x))  # No float is a zero of the cosine.


def _asin(call: Call, x: Value) -> Value:
    """The angle whose sides are x and sqrt((1 - x) (1 + x)); NaN beyond 1."""
    square = call.apply("mul", call.apply("sub", 1, x), call.apply("add", x, 1))
    return call.apply("atan", call.apply("div", x, call.apply("sqrt", square)))


def _acos(call: Call, x: Value) -> Value:
    """Twice the angle whose tangent is sqrt((1 - x) / (1 + x)); NaN beyond 1."""
    square = call.apply("div", call.apply("sub", 1, x), call.apply("add", x, 1))
    return call.apply("mul", call.apply("atan", call.apply("sqrt", square)), 2)


# --- hyperbolic -----------------------------------------------------------------------------------------------------


def _halved(call: Call, x: Value, op: str, first: Value, second: Value) -> Value:
    """(first op second) / 2; where e ** |x| may be too large, sign(x) or 1 times (e ** (|x| / 2)) ** 2 / 2."""
    size = call.apply("abs", x)
    root = call.apply("exp", call.apply("mul", size, 0.5))
    far = call.apply("mul", call.apply("mul", root, 0.5), root)
    if op == "sub":
        far = call.apply("mul", far, call.apply("sign", x))
    near = call.apply("mul", call.apply(op, first, second), 0.5)
    limit = 88.0 if x.dtype is dtypes.f32 else 709.0
    return call.apply("select", call.apply("greater", size, limit), far, near)


def _sinh(call: Call, x: Value) -> Value:
    """(e ** x - 1) - (e ** -x - 1), halved: both have the sign of x."""
    return _halved(call, x, "sub", call.apply("expm1", x), call.apply("expm1", call.apply("neg", x)))


def _cosh(call: Call, x: Value) -> Value:
    return _halved(call, x, "add", call.apply("exp", x), call.apply("exp", call.apply("neg", x)))


_LARGE = 2.0**30
"""From here on sqrt(x ** 2 + 1) and sqrt(x ** 2 - 1) are x, also in f64."""


def _log_of_twice(call: Call, x: Value) -> Value:
    return call.apply("add", call.apply("log", x), math.log(2))


def _asinh(call: Call, x: Value) -> Value:
    """log(a + sqrt(a ** 2 + 1)) = log1p(a + a ** 2 / (1 + sqrt(a ** 2 + 1))) of a = |x|, with the sign of x."""
    size = call.apply("abs", x)
    square = call.apply("mul", size, size)
    root = call.apply("sqrt", call.apply("add", square, 1))
    near = call.apply("log1p", call.apply("add", size, call.apply("div", square, call.apply("add", root, 1))))
    y = call.apply("select", call.apply("greater", size, _LARGE), _log_of_twice(call, size), near)
    y = call.apply("select", call.apply("less", x, 0), call.apply("neg", y), y)
    return call.apply("select", call.apply("equal", x, 0), x, y)  # -0 stays.


def _acosh(call: Call, x: Value) -> Value:
    """log(x + sqrt(x ** 2 - 1)) = log1p(t + sqrt(t (t + 2))) of t = x - 1; NaN below 1."""
    above = call.apply("sub", x, 1)
    root = call.apply("sqrt", call.apply("mul", above, call.apply("add", above, 2)))
    near = call.apply("log1p", call.apply("add", above, root))
    y = call.apply("select", call.apply("greater", x, _LARGE), _log_of_twice(call, x), near)
    return call.apply("select", call.apply("less", x, 1), call.constant(math.nan, x.dtype), y)


def _atanh(call: Call, x: Value) -> Value:
    """log((1 + x) / (1 - x)) / 2, as two logarithms of different sign."""
    difference = call.apply("sub", call.apply("log1p", x), call.apply("log1p", call.apply("neg", x)))
    return call.apply("mul", difference, 0.5)


_CIRCULAR = {"Tan": _tan, "Asin": _asin, "Acos": _acos}
_HYPERBOLIC = {"Sinh": _sinh, "Cosh": _cosh, "Asinh": _asinh, "Acosh": _acosh, "Atanh": _atanh}
for _name, _formula in _CIRCULAR.items():
    translates(_name, versions=(7, 22))(of_one_operand(_formula))
for _name, _formula in _HYPERBOLIC.items():
    translates(_name, versions=(9, 22))(of_one_operand(_formula))
