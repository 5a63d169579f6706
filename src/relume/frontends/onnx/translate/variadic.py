"""Operators of any number of operands that broadcast."""

from __future__ import annotations

from functools import reduce

from relume.frontends.onnx.calls import Call, Translator, translates
from relume.graph.types import Value


def _all(call: Call) -> list[Value]:
    return [call.input(index) for index in range(len(call.inputs))]


def _fold(op: str) -> Translator:
    return lambda call: reduce(lambda a, b: call.apply(op, a, b), _all(call))


translates("Sum", versions=(1, 6, 8, 13))(_fold("add"))
translates("Max", versions=(1, 6, 8, 12, 13))(_fold("max"))
translates("Min", versions=(1, 6, 8, 12, 13))(_fold("min"))


@translates("Mean", versions=(1, 6, 8, 13))
def mean(call: Call) -> Value:
    total = reduce(lambda a, b: call.apply("add", a, b), _all(call))
    return call.apply("div", total, len(call.inputs))
