"""Attributes of nodes: their values, and whether the schema knows them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import AttributeProto

from relume.base.errors import ModelError
from relume.frontends.onnx import schemas


def decode(attr: onnx.AttributeProto, where: str) -> object:
    """The value of an attribute that holds no graph."""
    kind = kind_of(attr)
    if kind == AttributeProto.INT:
        return int(attr.i)
    if kind == AttributeProto.FLOAT:
        return float(attr.f)
    if kind == AttributeProto.STRING:
        return _string(attr.s)
    if kind == AttributeProto.TENSOR:
        return attr.t
    if kind == AttributeProto.INTS:
        return tuple(int(item) for item in attr.ints)
    if kind == AttributeProto.FLOATS:
        return tuple(float(item) for item in attr.floats)
    if kind == AttributeProto.STRINGS:
        return tuple(_string(item) for item in attr.strings)
    if kind in schemas.KIND_NAMES and kind != AttributeProto.UNDEFINED:
        return attr  # Types, sparse tensors, lists of messages: no translator reads them.
    raise ModelError(f"the attribute {attr.name!r} has no value", where=where, got=f"type {kind}")


def _string(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def kind_of(attr: onnx.AttributeProto) -> int:
    """The kind; files of IR version 1 leave it out, then the field that is set decides."""
    if attr.type != AttributeProto.UNDEFINED:
        return int(attr.type)
    for field, kind in (
        ("f", AttributeProto.FLOAT),
        ("i", AttributeProto.INT),
        ("s", AttributeProto.STRING),
        ("t", AttributeProto.TENSOR),
        ("g", AttributeProto.GRAPH),
    ):
        if attr.HasField(field):
            return int(kind)
    for field, kind in (
        ("floats", AttributeProto.FLOATS),
        ("ints", AttributeProto.INTS),
        ("strings", AttributeProto.STRINGS),
    ):
        if len(getattr(attr, field)):
            return int(kind)
    return int(AttributeProto.UNDEFINED)


def check(op: str, attr: onnx.AttributeProto, kinds: Mapping[str, int], where: str) -> None:
    """Refuses an attribute that the schema (name -> kind) does not have, or has with another type."""
    expected, kind = kinds.get(attr.name), kind_of(attr)
    if attr.ref_attr_name and kind == AttributeProto.UNDEFINED:
        kind = expected or kind
    if expected is None:
        raise ModelError(
            f"{op} has no attribute {attr.name!r}",
            where=where,
            expected=f"one of: {', '.join(sorted(kinds)) or 'none'}",
            got=attr.name,
            hint="remove the attribute, or correct the opset version",
        )
    if expected != kind:
        names = schemas.KIND_NAMES
        raise ModelError(
            f"{op}.{attr.name} must be {names[expected]}",
            where=where,
            expected=names[expected],
            got=names.get(kind, kind),
            hint="export the model again, or write the attribute with its proper type",
        )
