"""Operators that are written in terms of others: schema function bodies, and old versions brought up to date.

Both give a `FunctionDef` that the importer expands in place of the node.

`onnx.inliner` is not used: it throws on absent optional inputs and drops the defaults of attributes, which makes some
bodies silently wrong. Here defaults are written into the node before its body is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import defs, helper, shape_inference, version_converter

from relume.base.errors import RelumeError
from relume.frontends.onnx import attributes, schemas, tensors
from relume.frontends.onnx.calls import NotTranslated
from relume.frontends.onnx.checking import Checker, read_opsets
from relume.frontends.onnx.pieces import Pieces
from relume.frontends.onnx.structure import FunctionDef, NodeDef
from relume.graph.types import Tensor, Value

SPOKEN_OPSET = 18
"""Where the version converter brings nodes that are too old for their translator."""

_FAILURES = (
    RuntimeError,
    ValueError,
    defs.SchemaError,
    shape_inference.InferenceError,
    version_converter.ConvertError,
)
"""What the C++ side of `onnx` raises on a node that it cannot work with."""


def complete(node: NodeDef, attrs: Mapping[str, object]) -> onnx.NodeProto:
    """The node as a message with every attribute written out: references resolved, defaults materialised."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.attribute[:]
    given = {attr.name: attr for attr in node.proto.attribute}
    for name, value in attrs.items():
        if name in given and not given[name].ref_attr_name:
            proto.attribute.append(given[name])
        elif name in given:
            proto.attribute.append(helper.make_attribute(name, value))
    assert node.schema is not None
    for default in schemas.defaults(node.domain, node.op, node.schema.since_version):
        if default.name not in attrs:
            proto.attribute.append(default)
    return proto


def schema_body(
    node: NodeDef,
    attrs: Mapping[str, object],
    opset: int,
    inputs: Sequence[Value | None],
    pieces: Pieces,
    where: str,
) -> FunctionDef | None:
    """The body that the schema gives for this node; None where it gives none. `opset` is the importing model's, and
    `pieces` are its large tensors."""
    schema = node.schema
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    proto = complete(node, attrs)
    if schema.has_context_dependent_function:
        version = _nearest(schema.context_dependent_function_opset_versions, opset)
        types = [_type_proto(value).SerializeToString() for value in inputs]
        try:
            body = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
        except _FAILURES as error:
            raise NotTranslated(f"its function body cannot be built: {_first_line(error)}") from error
    else:
        body = schema.get_function_with_opset_version(_nearest(schema.function_opset_versions, opset))
    if not body:
        return None
    function = onnx.FunctionProto.FromString(body)
    # A body that depends on the context leaves out the outputs that this node does not ask for.
    made = {*function.input, *(name for inner in function.node for name in inner.output)}
    function.output[:] = [name if name in made else "" for name in function.output]
    opsets = {"": schemas.NEWEST, node.domain: opset, **read_opsets(function.opset_import, where)}
    try:
        checked = Checker(where, pieces).function(function, node.op, opsets)
    except RelumeError as error:  # The fault is in the schema, not in the user's model.
        raise NotTranslated(f"its function body is not valid: {error.what}") from error
    defaults = {attr.name: attr for attr in proto.attribute}
    missing = {name: attributes.decode(defaults[name], where) for name in defaults if name not in attrs}
    return FunctionDef(checked.title, checked.inputs, checked.outputs, checked.nodes, missing, opsets)


def _nearest(versions: Sequence[int], opset: int) -> int:
    """The body written for the newest opset that is not newer than the model's, else the oldest there is.

    A newer body is right as well: the version of the *operator* is the same, only its words are newer.
    """
    fitting = [version for version in versions if version <= opset]
    return max(fitting) if fitting else min(versions)


def is_convertible(node: NodeDef, spoken: Collection[int]) -> bool:
    """Whether the version converter may help: a translator speaks newer versions of the operator."""
    if node.domain or node.schema is None or node.schema.since_version >= SPOKEN_OPSET:
        return False
    return max(spoken, default=0) > node.schema.since_version


def converted(
    node: NodeDef, attrs: Mapping[str, object], opset: int, inputs: Sequence[Value | None], pieces: Pieces
) -> FunctionDef:
    """A node of an old operator version, brought to `SPOKEN_OPSET` by `onnx.version_converter`.

    The converter works on whole models; it is given one with this node alone. That is quicker than converting the
    user's model (which may be large, or hold one node that the converter throws on), and keeps it away from the
    nodes it gets wrong: Scan of opset 8 (whose batch axis it forgets) has no translator here, and PRelu of opset 6
    (whose slope it broadcasts from the wrong side) is spoken directly. It asserts that extents are numbers in
    several adapters, so a symbolic shape can make it fail; then the node is unsupported.
    """
    proto = complete(node, attrs)
    present = [(name, value) for name, value in zip(node.inputs, inputs) if name and value is not None]
    infos = {name: onnx.ValueInfoProto(name=name, type=_type_proto(value)) for name, value in present}
    outputs = [name for name in node.outputs if name]
    graph = helper.make_graph(
        [proto], "node", list(infos.values()), [onnx.ValueInfoProto(name=name) for name in outputs]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        new = version_converter.convert_version(model, SPOKEN_OPSET)
    except _FAILURES as error:
        raise NotTranslated(
            f"version {node.schema.since_version if node.schema else opset} of the operator is not supported, and "
            f"bringing it up to date failed: {_first_line(error)}"
        ) from error
    opsets = {"": SPOKEN_OPSET}
    checked = Checker(node.name, pieces).graph(new.graph, opsets, frozenset(), node.op, 0)
    return FunctionDef(node.op, tuple(infos), checked.outputs, checked.nodes, {}, opsets, checked.constants)


def _type_proto(value: Value | None) -> onnx.TypeProto:
    if value is None or not isinstance(value.type, Tensor):
        return onnx.TypeProto()
    shape = [dim if isinstance(dim, int) else str(dim) for dim in value.dims]
    return helper.make_tensor_type_proto(tensors.elem_type_of(value.dtype), shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
