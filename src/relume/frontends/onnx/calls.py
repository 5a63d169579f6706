"""What a translator sees of one ONNX node, and the table that says which translator speaks which operator.

A translator is a small function from a `Call` to the value (or the tuple of values) that the node defines::

    @translates("LeakyRelu", versions=(1, 6, 16))
    def leaky_relu(call: Call) -> Value:
        x = call.input(0)
        return call.apply("select", call.apply("less", x, 0), call.apply("mul", x, call.number("alpha")), x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar, cast

import numpy as np
from onnx import TensorProto

from relume.base.dims import Dim
from relume.base.dtypes import DType, bf16, f16, f32, i64
from relume.frontends.onnx.shapes import Content, Contents, is_numeric
from relume.frontends.onnx.structure import GraphDef, NodeDef
from relume.graph.opdef import InferError
from relume.graph.types import Attr, Graph, Type, Value
from relume.ops.inference import want_broadcast_to


class NotTranslated(Exception):
    """The node, or one output of it, is legal, but there is no translation for it: `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Results = Value | tuple[Value | NotTranslated | None, ...]
"""None, or `NotTranslated` to say why: an output without a translation. The node is reported where it is used."""
Translator = Callable[["Call"], Results]
Operand = Value | int | float
"""A Python number becomes a constant of the element type of the last operand that is a value."""

TRANSLATORS: dict[tuple[str, str], dict[int, Translator]] = {}
"""(domain, operator) -> the version of the operator (not of the opset) -> who translates it."""


def translates(*operators: str, versions: Sequence[int], domain: str = "") -> Callable[[Translator], Translator]:
    """Registers a translator for some operators, for exactly these versions of them (a schema's `since_version`)."""

    def register(translator: Translator) -> Translator:
        for operator in operators:
            spoken = TRANSLATORS.setdefault((domain, operator), {})
            for version in versions:
                if version in spoken:
                    raise ValueError(f"{operator} {version} has two translators")
                spoken[version] = translator
        return translator

    return register


class Emitter(Protocol):
    """What a call needs of the importer."""

    contents: Contents

    def emit(
        self, op: str, operands: Sequence[Value], regions: Sequence[Graph], attrs: Mapping[str, Attr]
    ) -> tuple[Value, ...]:
        """Appends a node at the place that is being imported; see `Builder.emit`."""

    def constant(self, data: np.ndarray) -> Value:
        """A constant."""

    def array(self, proto: TensorProto) -> np.ndarray:
        """A stored tensor of the node that is being imported."""

    def regions(self, graphs: Sequence[GraphDef], params: Sequence[Sequence[Type]]) -> tuple[list[Value], list[Graph]]:
        """Imports graphs as closed regions: region i gets values of the types `params[i]` for the inputs of its
        graph, then the captures that all of them share. Returns the captures and the regions."""

    def reserve(self, count: int) -> None:
        """Counts elements of constants that are made up. Raises `LimitError` where a model asks for too many."""

    def inline(self, graph: GraphDef, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """Imports a graph in place, as if its nodes stood here."""


_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Call:
    """One application of an operator: operands, attributes (defaults filled in) and the means to emit nodes."""

    node: NodeDef
    version: int
    """The version of the operator: the opset in which its schema last changed."""
    inputs: tuple[Value | None, ...]
    """None: an optional input that is absent. Trailing ones may be missing altogether."""
    attrs: Mapping[str, object]
    emitter: Emitter

    # --- operands ---------------------------------------------------------------------------------------------------

    def input(self, index: int) -> Value:
        """An input that must be there."""
        value = self.optional(index)
        if value is None:
            self.wrong(f"{self.node.op} needs its input {index}", "a value", "nothing")
        return value

    def optional(self, index: int) -> Value | None:
        """An input, or None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def content(self, value: Value) -> Content | None:
        """The elements of `value` where they are known: numbers and dims."""
        content = self.emitter.contents.of(value)
        if content is None:
            self.emitter.contents.missed.append(value)
        return content

    def dims(self, value: Value, role: str) -> tuple[Dim, ...]:
        """The elements of a vector that says where or how large: `role` names it in messages."""
        content = self.content(value)
        if content is None:
            raise NotTranslated(f"{role}: only known when the model runs")
        return tuple(content.reshape(-1))

    def ints(self, value: Value, role: str) -> tuple[int, ...]:
        """`dims` where only numbers will do."""
        items = self.dims(value, role)
        if not all(isinstance(item, int) for item in items):
            raise NotTranslated(f"{role}: depends on symbolic extents, [{', '.join(map(str, items))}]")
        return cast(tuple[int, ...], items)

    def numbers(self, value: Value) -> np.ndarray | None:
        """The elements as an array, where all are known numbers."""
        content = self.content(value)
        return content.astype(value.dtype.numpy) if content is not None and is_numeric(content) else None

    # --- attributes -------------------------------------------------------------------------------------------------

    def attr(self, name: str, kind: type[_Kind]) -> _Kind:
        """An attribute that is given or has a default."""
        value = self.attrs.get(name)
        if not isinstance(value, kind):
            self.wrong(f"{self.node.op} needs the attribute {name!r}", kind.__name__, value)
        return value

    def has(self, name: str) -> bool:
        """Whether an attribute is given, or has a default."""
        return name in self.attrs

    def integer(self, name: str) -> int:
        return self.attr(name, int)

    def number(self, name: str) -> float:
        return self.attr(name, float)

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """A list of ints; `default` where it is neither given nor has a default in the schema."""
        return cast(tuple[int, ...], self.attrs[name]) if name in self.attrs else tuple(default)

    def axis(self, rank: int, name: str = "axis") -> int:
        """An attribute that counts axes, from the end where it is negative."""
        return self.normal_axis(self.attr(name, int), rank)

    def normal_axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front. Refused where there is no such axis."""
        if not -rank <= axis < rank:
            self.wrong("there is no such axis", f"-{rank} <= axis < {rank}", axis)
        return axis % rank

    def normal_axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes, counted from the front, ascending."""
        normal = sorted(self.normal_axis(axis, rank) for axis in axes)
        if len(set(normal)) != len(normal):
            self.wrong("an axis is named twice", "distinct axes", list(axes))
        return tuple(normal)

    # --- results ----------------------------------------------------------------------------------------------------

    def apply(self, op: str, *operands: Operand, regions: Sequence[Graph] = (), **attrs: Attr) -> Value:
        """Emits an op with one result."""
        (result,) = self.emit(op, *operands, regions=regions, **attrs)
        return result

    def emit(self, op: str, *operands: Operand, regions: Sequence[Graph] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Emits an op. Raises `InferError` where it does not fit; the importer turns that into a `ModelError`."""
        like = next((operand for operand in reversed(operands) if isinstance(operand, Value)), None)
        values = [
            operand if isinstance(operand, Value) else self.constant(operand, cast(Value, like).dtype)
            for operand in operands
        ]
        return self.emitter.emit(op, values, regions, attrs)

    def constant(self, data: object, dtype: DType) -> Value:
        """A constant of `dtype`."""
        with np.errstate(over="ignore"):  # Bounds of float32 may be infinite in a narrower type.
            return self.emitter.constant(np.asarray(data).astype(dtype.numpy))

    def extents(self, dims: Sequence[Dim]) -> Value:
        """Dims as data: an i64 vector."""
        if all(isinstance(dim, int) for dim in dims):
            return self.constant(np.array(dims, np.int64), i64)
        return self.apply("extents", dims=tuple(dims))

    def iota(self, rank: int, axis: int, extent: Dim) -> Value:
        """0, 1, 2 ... before `extent` along one of `rank` axes, the others 1: i64, to be broadcast."""
        shape: list[Dim] = [1] * rank
        shape[axis] = extent
        return self.apply("iota", dims=tuple(shape), axis=axis, dtype=i64)

    def shaped(self, x: Value, dims: Sequence[Dim]) -> Value:
        """x, whose axes must have these extents. One axis at a time: one `reshape` would accept [3,2] for [2,3]."""
        if len(x.dims) != len(dims):
            self.wrong("the rank does not fit", f"rank {len(dims)}", x.type)
        for axis in range(len(dims)):
            x = self.reshape(x, (*dims[: axis + 1], *x.dims[axis + 1 :]))
        return x

    def fitted(self, name: str, x: Value, dims: Sequence[Dim]) -> Value:
        """x, which must be repeatable to `dims` (unidirectional broadcasting). Where the extents do not decide that, x
        is repeated by an op of its own, so that the requirement is checked once they do."""
        want_broadcast_to(name, x.dims, dims)
        decided = all(dim in (1, wanted) for dim, wanted in zip(reversed(x.dims), reversed(dims)))
        return x if decided else self.apply("broadcast", x, dims=tuple(dims))

    def value_of(self, content: Content, dtype: DType) -> Value:
        """A value with these elements: a constant where all are numbers, else made of `extents`."""
        if is_numeric(content):
            return self.constant(content, dtype)
        vector = self.extents(tuple(content.reshape(-1)))
        value = self.reshape(vector, content.shape)
        return self.cast(value, dtype)

    def reshape(self, x: Value, dims: Sequence[Dim]) -> Value:
        """`reshape`, or x itself where it has that shape."""
        return x if x.dims == tuple(dims) else self.apply("reshape", x, dims=tuple(dims))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """`transpose`, or x itself where nothing moves."""
        return x if list(perm) == sorted(perm) else self.apply("transpose", x, perm=tuple(perm))

    def cast(self, x: Value, dtype: DType) -> Value:
        """`cast`, or x itself where it has that element type."""
        return x if x.dtype is dtype else self.apply("cast", x, to=dtype)

    # --- refusals ---------------------------------------------------------------------------------------------------

    def unsupported(self, reason: str) -> NoReturn:
        """Reports the node as unsupported, together with all others of the model."""
        raise NotTranslated(reason)

    def wrong(self, what: str, expected: object, got: object) -> NoReturn:
        """Refuses the model: this node cannot mean anything."""
        raise InferError(what, expected, got)


def of_one_operand(formula: Callable[[Call, Value], Value]) -> Translator:
    """A translator for a formula of several ops: of a short float it is computed in f32, and rounded once."""

    def translate(call: Call) -> Value:
        x = call.input(0)
        wide = call.cast(x, f32) if x.dtype in (f16, bf16) else x
        return call.cast(formula(call, wide), x.dtype)

    return translate
