"""Operator schemas: which version of an operator a model means, and what its attributes and types may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import onnx
from onnx import AttributeProto, defs
from onnx.defs import OpSchema

from relume.base.dtypes import DType
from relume.frontends.onnx import tensors

NEWEST = defs.onnx_opset_version()
"""The newest opset of ai.onnx that the installed `onnx` knows."""

KIND_NAMES = {number: name for name, number in AttributeProto.AttributeType.items()}


@cache
def find(domain: str, op: str, opset: int) -> OpSchema | None:
    """The schema that opset `opset` of `domain` means by `op`; None where `onnx` has none or it is deprecated.

    An operator is taken out by a schema of its own (Scatter 11). Where its *first* schema has the mark
    (GroupNormalization 18), it was a later one that replaced it: until then it is an operator.
    """
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    return None if schema.deprecated and _existed_before(schema) else schema


def _existed_before(schema: OpSchema) -> bool:
    try:
        defs.get_schema(schema.name, schema.since_version - 1, schema.domain)
    except defs.SchemaError:
        return False
    return True


@cache
def known_domains() -> frozenset[str]:
    """Domains that the installed `onnx` has schemas for."""
    return frozenset(schema.domain for schema in defs.get_all_schemas())


@cache
def attribute_kinds(domain: str, op: str, opset: int) -> Mapping[str, int]:
    """Name -> `AttributeType` of each attribute."""
    schema = find(domain, op, opset)
    return {} if schema is None else {name: int(attr.type.value) for name, attr in schema.attributes.items()}


@cache
def required_attributes(domain: str, op: str, opset: int) -> tuple[str, ...]:
    """The attributes that a node must give."""
    schema = find(domain, op, opset)
    return () if schema is None else tuple(sorted(name for name, attr in schema.attributes.items() if attr.required))


@cache
def defaults(domain: str, op: str, opset: int) -> tuple[onnx.AttributeProto, ...]:
    """The attributes that have a default, with it."""
    schema = find(domain, op, opset)
    if schema is None:
        return ()
    values = (attr.default_value for _, attr in sorted(schema.attributes.items()))
    return tuple(value for value in values if value.type != AttributeProto.UNDEFINED)


@cache
def _formals(domain: str, op: str, opset: int) -> tuple[tuple[str, str, frozenset[str], bool, bool], ...]:
    """(name, type variable, allowed types, variadic, homogeneous) per formal input."""
    schema = find(domain, op, opset)
    if schema is None:
        return ()
    variadic = OpSchema.FormalParameterOption.Variadic
    return tuple(
        (formal.name, formal.type_str, frozenset(formal.types), formal.option is variadic, formal.is_homogeneous)
        for formal in schema.inputs
    )


def type_problem(domain: str, op: str, opset: int, dtypes: Sequence[DType | None]) -> tuple[str, str, str] | None:
    """The first operand whose dtype the schema does not allow: (what, expected, got). None: all fit."""
    formals = _formals(domain, op, opset)
    bound: dict[str, tuple[str, DType]] = {}
    for index, dtype in enumerate(dtypes):
        if dtype is None or not formals:
            continue
        name, variable, allowed, variadic, homogeneous = formals[min(index, len(formals) - 1)]
        label = f"{name} (input {index})"
        if tensors.schema_name(dtype) not in allowed:
            return f"{op} takes no {dtype} as {label}", " or ".join(sorted(allowed)), tensors.schema_name(dtype)
        if variadic and not homogeneous:
            continue
        first, expected = bound.setdefault(variable, (label, dtype))
        if expected is not dtype:
            return f"{op} needs one type for {first} and {label}", str(expected), str(dtype)
    return None
