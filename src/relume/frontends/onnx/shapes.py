"""The contents of shape values: which dims the elements of a small integer tensor are.

ONNX computes shapes with tensors; Relume wants extents as attributes. So every node that the importer emits is
followed here: where the elements of its operands are known - as numbers, or as symbolic dims that started at an
`extents` op - those of its result are known too. `Reshape`, `Expand`, `Slice` and the like then read their extents
from the contents of their operands, and the nodes that only served for that are dropped as unused.

A content is an object array with the value's shape; its elements are Python numbers or `Dim`s. Purely numeric ones are
computed by the op's own `reference`; the rules below are for symbolic ones, exact over the integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relume.base import dims
from relume.base.dims import Dim, Expr, not_negative
from relume.frontends.onnx.limits import MAX_KNOWN
from relume.graph.types import Constant, Node, Tensor, Value, is_symbolic

Content = np.ndarray
"""Object array of Python ints, bools, floats and dims."""

Attrs = Mapping[str, Any]
"""A node's attributes: `infer` has checked their kinds, and a type checker would try every member of `Attr`."""


class Contents:
    """What is known of the elements of values, while one model is imported."""

    def __init__(self) -> None:
        self._known: dict[Value, Content] = {}
        self.missed: list[Value] = []
        """Values that were asked for in vain, since the importer last cleared the list."""

    def of(self, value: Value) -> Content | None:
        """The elements of `value`; None where they depend on data, or are too many to follow."""
        if isinstance(value, Constant) and value not in self._known and value.data.size <= MAX_KNOWN:
            self._known[value] = value.data.astype(object)
        return self._known.get(value)

    def note(self, value: Value, content: Content | None) -> None:
        """States the elements of a value that no rule derives."""
        if content is not None:
            self._known[value] = np.asarray(content, object)  # NumPy gives bare elements where the rank is 0.

    def follow(self, node: Node) -> None:
        """Derives the elements of a node's result, where it can."""
        if len(node.results) != 1 or not isinstance(node.result.type, Tensor):
            return
        if not node.result.tensor.is_static or node.result.tensor.elements > MAX_KNOWN:  # type: ignore[operator]
            return
        if node.op.name == "extents":
            self.note(node.result, _objects(node.attrs["dims"]))
            return
        if node.op.name not in _RULES:
            return
        operands: list[Content] = []
        for value in node.operands:
            content = self.of(value)
            if content is None:
                return
            operands.append(content)
        try:
            if all(map(is_numeric, operands)) and not any(map(is_symbolic, node.attrs.values())):
                arrays = [content.astype(value.dtype.numpy) for content, value in zip(operands, node.operands)]
                self.note(node.result, node.op.reference(*arrays, attrs=node.attrs, regions=())[0].astype(object))
            else:
                self.note(node.result, _RULES[node.op.name](operands, node.attrs))
        except (_Unknown, IndexError):  # An index out of range is an error of the run, if it comes to that.
            return


def is_numeric(content: Content) -> bool:
    """Whether no element is symbolic."""
    return not any(isinstance(item, Expr) for item in content.flat)


def _objects(items: Sequence[Any]) -> Content:
    out = np.empty(len(items), object)
    out[:] = items
    return out


# --- rules for symbolic contents ------------------------------------------------------------------------------------


class _Unknown(Exception):
    """The elements cannot be told."""


def truncated_quotient(a: Dim, b: Dim) -> Dim:
    """`a / b` rounded toward 0, as ONNX divides integers. Raises `_Unknown` where signs cannot be told."""
    if b == 0:
        return 0
    quotient = dims.floordiv(a, b)
    if quotient * b == a or (not_negative(a) and not_negative(b)):
        return quotient
    if isinstance(b, int) and b > 0:
        # The quotients of the positive part and of the negative part; one of the two parts is 0.
        return dims.floordiv(dims.maximum(a, 0), b) - dims.floordiv(dims.maximum(-a, 0), b)
    raise _Unknown


def is_less(a: Dim, b: Dim) -> bool:
    """`a < b`. Raises `_Unknown` where it depends on the extents."""
    if not_negative(b - a - 1):
        return True
    if not_negative(a - b):
        return False
    raise _Unknown


def is_equal(a: Dim, b: Dim) -> bool:
    """`a == b`. Raises `_Unknown` where it depends on the extents."""
    if a == b:
        return True
    if not_negative(a - b - 1) or not_negative(b - a - 1):
        return False
    raise _Unknown


def _absolute(a: Dim) -> Dim:
    return a if not_negative(a) else dims.maximum(a, -a)


def _each(function: Callable[..., Any]) -> Callable[[Sequence[Content], Attrs], Content]:
    apply = np.frompyfunc(function, function.__code__.co_argcount, 1)

    def rule(operands: Sequence[Content], attrs: Attrs) -> Content:
        return np.asarray(apply(*operands), object)

    return rule


def _cast(operands: Sequence[Content], attrs: Attrs) -> Content:
    if not attrs["to"].is_integer:
        raise _Unknown  # An extent rounded to a float, or compared with 0.
    return operands[0]


def _numbers_only(operands: Sequence[Content], attrs: Attrs) -> Content:
    raise _Unknown


def _select(operands: Sequence[Content], attrs: Attrs) -> Content:
    return np.where(operands[0].astype(bool), operands[1], operands[2])


def _gather(operands: Sequence[Content], attrs: Attrs) -> Content:
    if not is_numeric(operands[1]):
        raise _Unknown
    return np.take(operands[0], operands[1].astype(np.int64), axis=attrs["axis"])


def _slice(operands: Sequence[Content], attrs: Attrs) -> Content:
    ranges = zip(attrs["starts"], attrs["stops"], attrs["steps"])
    return operands[0][tuple(slice(a, None if b < 0 else b, step) for a, b, step in ranges)]


def _reduce(function: Callable[..., Any]) -> Callable[[Sequence[Content], Attrs], Content]:
    def rule(operands: Sequence[Content], attrs: Attrs) -> Content:
        (x,) = operands
        for axis in sorted(attrs["axes"], reverse=True):
            moved = np.moveaxis(x, axis, 0)
            if not len(moved):
                raise _Unknown
            total = moved[0]
            for item in moved[1:]:
                total = function(total, item)
            x = np.asarray(total, object)
            x = np.expand_dims(x, axis) if attrs["keep"] else x
        return x

    return rule


_RULES: dict[str, Callable[[Sequence[Content], Attrs], Content]] = {
    "add": _each(lambda a, b: a + b),
    "sub": _each(lambda a, b: a - b),
    "mul": _each(lambda a, b: a * b),
    "div": _each(truncated_quotient),
    "rem": _each(lambda a, b: a - truncated_quotient(a, b) * b),
    "min": _each(dims.minimum),
    "max": _each(dims.maximum),
    "neg": _each(lambda a: a * -1),
    "abs": _each(_absolute),
    "relu": _each(lambda a: dims.maximum(a, 0)),
    "equal": _each(is_equal),
    "less": _each(is_less),
    "greater": _each(lambda a, b: is_less(b, a)),
    "select": _select,
    "cast": _cast,
    "gather": _gather,
    "slice": _slice,
    "concat": lambda xs, attrs: np.concatenate(xs, axis=attrs["axis"]),
    "reshape": lambda xs, attrs: xs[0].reshape(attrs["dims"]),
    "broadcast": lambda xs, attrs: np.broadcast_to(xs[0], attrs["dims"]),
    "transpose": lambda xs, attrs: np.transpose(xs[0], attrs["perm"]),
    "reduce_sum": _reduce(lambda a, b: a + b),
    "reduce_min": _reduce(np.frompyfunc(dims.minimum, 2, 1)),
    "reduce_max": _reduce(np.frompyfunc(dims.maximum, 2, 1)),
    "reduce_prod": _reduce(lambda a, b: a * b),
    # Numbers only, which the reference has done: these stand in the conditions of an If, in float sizes, in tables.
    **dict.fromkeys(("and", "or", "not", "floor", "ceil", "round", "sqrt", "sign", "pow", "reciprocal"), _numbers_only),
    **dict.fromkeys(("iota", "cumulative", "gather_nd"), _numbers_only),
}
