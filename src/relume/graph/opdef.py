"""OpDef: everything mathematical about one op, in one place.

`graph` defines the class, `ops` fills it, and whoever parses text receives the registry as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union

import numpy as np

from relume.graph.types import Attr, Graph, Type, Value


class InferError(Exception):
    """Operands, attributes or regions do not fit an op. `expected` and `got` are for people."""

    def __init__(self, what: str, expected: object = None, got: object = None) -> None:
        super().__init__(what)
        self.what, self.expected, self.got = what, expected, got


@dataclass(frozen=True)
class NotYet:
    """A facet that is planned but absent. Counted apart from facets that cannot exist."""

    def __str__(self) -> str:
        return "not yet"


@dataclass(frozen=True)
class Never:
    """A facet that cannot exist, and the mathematical reason."""

    reason: str

    def __str__(self) -> str:
        return self.reason


NOT_YET = NotYet()


def NO_GRADIENT(reason: str) -> Never:
    """The op has no gradient, for a mathematical reason (integer valued, piecewise constant ...)."""
    return Never(reason)


class Primitive:
    """`decompose` of an op that is not made of others: `lower/` holds its lowering."""

    def __str__(self) -> str:
        return "primitive"


PRIMITIVE = Primitive()


class Trait(Enum):
    """What passes and rewrites may rely on. `verify` and the op tests check what can be checked."""

    ELEMENTWISE = "each element of the result depends on the broadcast operands' elements at the same index only"
    COMMUTATIVE = "the first two operands can be exchanged"
    DATA_MOVEMENT = "result elements are copies of operand elements or of a fill value"
    REGION = "has regions; the reference receives them as callables"
    EFFECT = "consumes a version of a state and yields the next"
    COMPOSITE = "has a decomposition that any backend can use instead"
    INEXACT = "the reference's last bits depend on the machine (libm, BLAS, summation order): never folded by it"


@dataclass(frozen=True)
class AttrDef:
    """One attribute: `kind` is one of int, float, bool, str, dtype, dim, ints, dims, floats, strs."""

    name: str
    kind: str
    default: Attr | None = None
    """None: it must be given."""


@dataclass(frozen=True)
class Sample:
    """One example application. `operands` are arrays, or (dtype name, shape) to be filled from the seeded generator."""

    operands: tuple[Any, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    regions: tuple[str, ...] = ()
    """Regions as graph text, for ops that have them."""
    error: str | None = None
    """A part of the error text, where the sample must be refused by `infer`."""
    tolerance: float = 1e-5
    """Relative to the largest absolute result, for float results."""


Infer = Callable[[Sequence[Type], Mapping[str, Attr], Sequence[Graph]], tuple[Type, ...]]
"""(operand types, attributes, regions) -> result types. Raises `InferError`."""

Reference = Callable[..., tuple[np.ndarray, ...]]
"""(*arrays, attrs, regions) -> arrays: keyword arguments `attrs` (symbols already replaced by ints) and `regions`
(one callable per region, arrays in, tuple of arrays out). The meaning of the op."""

Decompose = Callable[..., tuple[Value, ...]]
"""(builder, *operand values, attrs) -> result values."""


@dataclass(frozen=True, eq=False)
class OpDef:
    """One op. Compare with `is`.

    `operands` names the operands; a trailing `?` marks an optional one (optional ones come last and are simply
    absent), a trailing `*` takes any number (last only).
    """

    name: str
    doc: str
    """The mathematics, in a sentence or a formula."""
    operands: tuple[str, ...]
    infer: Infer
    reference: Reference
    samples: Callable[[], Sequence[Sample]]
    attrs: tuple[AttrDef, ...] = ()
    results: tuple[str, ...] = ("y",)
    """A single name with a trailing `*` means that `infer` decides how many."""
    regions: tuple[str, ...] = ()
    gradient: Union[Callable[..., Any], Never, NotYet] = NOT_YET
    quantize: Union[Callable[..., Any], Never, NotYet] = NOT_YET
    decompose: Union[Decompose, Primitive, NotYet] = PRIMITIVE
    to_onnx: Union[str, Callable[..., Any], Never, NotYet] = NOT_YET
    traits: frozenset[Trait] = frozenset()

    def has(self, trait: Trait) -> bool:
        return trait in self.traits

    def complete(self, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        """`attrs` in declared order with defaults filled in. Raises `InferError` on an unknown or missing one."""
        unknown = sorted(set(attrs) - {attr.name for attr in self.attrs})
        if unknown:
            known = ", ".join(attr.name for attr in self.attrs) or "none"
            raise InferError(f"{self.name} has no attribute {unknown[0]!r}", f"one of: {known}", unknown[0])
        out: dict[str, Attr] = {}
        for attr in self.attrs:
            value = attrs.get(attr.name, attr.default)
            if value is None:
                raise InferError(f"{self.name} needs the attribute {attr.name!r}", attr.kind, "nothing")
            out[attr.name] = value
        return out

    def check_arity(self, count: int) -> None:
        """Raises `InferError` unless `count` operands fit."""
        least = sum(1 for name in self.operands if name[-1] not in "?*")
        most = None if self.operands and self.operands[-1].endswith("*") else len(self.operands)
        if count < least or (most is not None and count > most):
            wanted = str(least) if most == least else f"{least} to {'any number' if most is None else most}"
            raise InferError(f"{self.name} takes {wanted} operands", wanted, count)
