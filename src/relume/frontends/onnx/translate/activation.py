"""Activation functions. Those whose schema has a body of plain operators (ThresholdedRelu ...) go through it."""

from __future__ import annotations

import math

from relume.base import dims
from relume.frontends.onnx.calls import Call, of_one_operand, translates
from relume.graph.types import Value


def _where_negative(call: Call, x: Value, negative: Value, other: Value) -> Value:
    return call.apply("select", call.apply("less", x, 0), negative, other)


@translates("LeakyRelu", versions=(1, 6, 16))
def leaky_relu(call: Call) -> Value:
    x = call.input(0)
    return _where_negative(call, x, call.apply("mul", x, call.number("alpha")), x)


@translates("PRelu", versions=(1, 6, 7, 9, 16))
def prelu(call: Call) -> Value:
    """slope * x below 0. Before opset 7 a slope of more than one element belongs to the channels, axis 1."""
    x, slope = call.input(0), call.input(1)
    if call.version < 7:
        channels = x.tensor.rank > 1 and slope.tensor.elements != 1
        slope = call.reshape(slope, (slope.tensor.elements, *(1,) * (x.tensor.rank - 2)) if channels else ())
    slope = call.fitted("the slope", slope, x.dims)
    return _where_negative(call, x, call.apply("mul", x, slope), x)


def _scaled_exp(call: Call, x: Value, alpha: float) -> Value:
    """alpha * (e ** x - 1)."""
    return call.apply("mul", call.apply("expm1", x), alpha)


@translates("Elu", versions=(1, 6, 22))
def elu(call: Call) -> Value:
    x = call.input(0)
    return _where_negative(call, x, _scaled_exp(call, x, call.number("alpha")), x)


@translates("Selu", versions=(1, 6, 22))
def selu(call: Call) -> Value:
    x = call.input(0)
    y = _where_negative(call, x, _scaled_exp(call, x, call.number("alpha")), x)
    return call.apply("mul", y, call.number("gamma"))


def _softplus(call: Call, x: Value) -> Value:
    """log(1 + e ** x), in the form that does not overflow: max(x, 0) + log(1 + e ** -|x|)."""
    rest = call.apply("log1p", call.apply("exp", call.apply("neg", call.apply("abs", x))))
    return call.apply("add", call.apply("relu", x), rest)


def _softsign(call: Call, x: Value) -> Value:
    return call.apply("div", x, call.apply("add", call.apply("abs", x), 1))


def _before_underflow(call: Call, x: Value, exponent: Value, y: Value) -> Value:
    """y; where that is x * e ** exponent for a small factor e ** exponent, the product of x with its root twice: the
    factor itself would lose its bits below the smallest normal number, before x makes it larger."""
    root = call.apply("exp", call.apply("mul", exponent, 0.5))
    tail = call.apply("mul", call.apply("mul", x, root), root)
    return call.apply("select", call.apply("less", exponent, -80), tail, y)


def _celu(call: Call, x: Value) -> Value:
    """alpha * (e ** (x / alpha) - 1) below 0. The function of the schema makes a vector of a scalar."""
    alpha = call.number("alpha")
    return _where_negative(call, x, _scaled_exp(call, call.apply("div", x, alpha), alpha), x)


def _swish(call: Call, x: Value) -> Value:
    """x * sigmoid(alpha * x)."""
    exponent = call.apply("mul", x, call.number("alpha"))
    return _before_underflow(call, x, exponent, call.apply("mul", x, call.apply("sigmoid", exponent)))


def _mish(call: Call, x: Value) -> Value:
    """x * tanh(softplus(x))."""
    return _before_underflow(call, x, x, call.apply("mul", x, call.apply("tanh", _softplus(call, x))))


translates("Softplus", versions=(1, 22))(of_one_operand(_softplus))
translates("Softsign", versions=(1, 22))(of_one_operand(_softsign))
translates("Celu", versions=(12, 28))(of_one_operand(_celu))
translates("Swish", versions=(24,))(of_one_operand(_swish))
translates("Mish", versions=(18, 22))(of_one_operand(_mish))


def _hard_sigmoid(call: Call, x: Value, alpha: float, beta: float) -> Value:
    line = call.apply("add", call.apply("mul", x, alpha), beta)
    return call.apply("min", call.apply("max", line, 0), 1)


@translates("Shrink", versions=(9,))
def shrink(call: Call) -> Value:
    """x brought nearer to 0 by bias, and 0 within lambd of it. Attributes are converted to the type of x first."""
    x = call.input(0)
    limit, bias = call.number("lambd"), call.number("bias")
    y = call.apply("select", call.apply("greater", x, limit), call.apply("sub", x, bias), 0)
    if not x.dtype.is_signed:
        return y
    below = call.apply("less", x, call.apply("neg", call.constant(limit, x.dtype)))
    return call.apply("select", below, call.apply("add", x, bias), y)


@translates("HardSigmoid", versions=(1, 6, 22))
def hard_sigmoid(call: Call) -> Value:
    return _hard_sigmoid(call, call.input(0), call.number("alpha"), call.number("beta"))


@translates("HardSwish", versions=(14, 22))
def hard_swish(call: Call) -> Value:
    x = call.input(0)
    return call.apply("mul", x, _hard_sigmoid(call, x, 1 / 6, 0.5))


@translates("Gelu", versions=(20,))
def gelu(call: Call) -> Value:
    """Exact, or x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    x = call.input(0)
    if call.attr("approximate", str) == "none":
        return call.apply("gelu", x)
    cube = call.apply("mul", call.apply("mul", call.apply("mul", x, x), x), 0.044715)
    inner = call.apply("tanh", call.apply("mul", call.apply("add", x, cube), math.sqrt(2 / math.pi)))
    return call.apply("mul", call.apply("mul", x, 0.5), call.apply("add", inner, 1))


# --- over an axis ---------------------------------------------------------------------------------------------------


def _log_softmax(call: Call, x: Value, axis: int) -> Value:
    """x - m - log(sum of e ** (x - m)), with m the largest."""
    shifted = call.apply("sub", x, call.apply("reduce_max", x, axes=(axis,), keep=True))
    total = call.apply("reduce_sum", call.apply("exp", shifted), axes=(axis,), keep=True)
    return call.apply("sub", shifted, call.apply("log", total))


@translates("Softmax", "LogSoftmax", versions=(1, 11, 13))
def softmax(call: Call) -> Value:
    """Along one axis from opset 13 on. Before, `axis` cuts the shape in two and the softmax is over all of the second
    part at once."""
    x = call.input(0)
    rank = x.tensor.rank
    if call.version >= 13:
        axis, view = call.axis(rank), x
    else:
        cut = call.integer("axis")
        cut = cut if cut == rank else call.normal_axis(cut, rank)
        axis, view = 1, call.reshape(x, (dims.product(x.dims[:cut]), dims.product(x.dims[cut:])))
    if call.node.op == "Softmax":
        y = call.apply("softmax", view, axis=axis)
    else:
        y = _log_softmax(call, view, axis)
    return call.reshape(y, x.dims)


@translates("Hardmax", versions=(13,))
def hardmax(call: Call) -> Value:
    """1 at the first of the largest along an axis, else 0."""
    x = call.input(0)
    axis = call.axis(x.tensor.rank)
    largest = call.apply("argmax", x, axis=axis, keep=True)
    places = call.iota(x.tensor.rank, axis, x.dims[axis])
    return call.cast(call.apply("equal", largest, places), x.dtype)
