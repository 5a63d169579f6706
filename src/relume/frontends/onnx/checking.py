"""From a protobuf message to a checked `Document`, or an error that names the place.

What is checked, in this order:

* versions: the IR and every opset are known; every domain that a node uses is imported;
* text: every name is valid UTF-8;
* attributes: known to the schema, of its type, given once; required ones present; input and output counts fit;
* tensors: a stored tensor is as large as its header claims (nothing is allocated for that);
* values: each is defined once in its graph (static single assignment), each that is used is defined in it or outside;
* order: nodes are sorted by dependence (files that are not sorted are accepted), cycles are refused by name;
* functions: no recursion; depth and node count after expansion stay within `limits`.

Duplicate *node* names are legal; they only serve messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx
from onnx import AttributeProto

from relume.base.errors import LimitError, ModelError, UnsupportedError
from relume.frontends.onnx import attributes, schemas, tensors
from relume.frontends.onnx.expansion import Expansion
from relume.frontends.onnx.limits import MAX_DEPTH
from relume.frontends.onnx.pieces import Pieces
from relume.frontends.onnx.reading import Raw
from relume.frontends.onnx.structure import (
    Declared,
    Document,
    FunctionDef,
    FunctionKey,
    GraphDef,
    NodeDef,
    Ref,
    function_title,
)

_AI_ONNX = ("", "ai.onnx")


def check(raw: Raw) -> Document:
    """The document, or `ModelError`, `UnsupportedError`, `LimitError`."""
    model = raw.model
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedError(
            "the model's IR version is newer than the installed onnx package knows",
            where=raw.file,
            expected=f"at most {onnx.IR_VERSION}",
            got=model.ir_version,
            hint="install a newer onnx package, or export for an older IR version",
        )
    opsets = read_opsets(model.opset_import, raw.file)
    if not opsets and model.ir_version < 3:
        opsets = {"": 1}  # Files older than opset_import.
    checker = Checker(raw.file, raw.pieces, {_function_key(function, raw.file) for function in model.functions})
    functions: dict[FunctionKey, FunctionDef] = {}
    for proto in model.functions:
        key = _function_key(proto, raw.file)
        if key in functions:
            raise ModelError(f"the function {function_title(key)} is defined twice", where=raw.file)
        functions[key] = checker.function(proto, function_title(key), {**opsets, **_own_opsets(proto, raw.file)})
    graph = checker.graph(model.graph, opsets, outer=frozenset(), path="", depth=0)
    document = Document(raw, graph, functions, opsets)
    Expansion(document).check()
    return document


# --- versions and names ---------------------------------------------------------------------------------------------


def text(value: str | bytes, where: str) -> str:
    """A name of the file. protobuf hands out bytes where it is no valid UTF-8."""
    if isinstance(value, bytes):
        raise ModelError(
            "a name is not valid UTF-8",
            where=where,
            got=repr(value),
            hint="export the model again with plain names",
        )
    return value


def domain(name: str) -> str:
    """`ai.onnx` may be spelled out or left empty."""
    return "" if name in _AI_ONNX else name


def read_opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    """Domain -> version. Raises on a version of ai.onnx that does not exist, or not yet."""
    opsets: dict[str, int] = {}
    for entry in imports:
        name = domain(text(entry.domain, where))
        opsets[name] = max(entry.version, opsets.get(name, entry.version))
        if name == "" and entry.version > schemas.NEWEST:
            raise UnsupportedError(
                f"opset {entry.version} is newer than the installed onnx package knows",
                where=f"{where}, opset_import of ai.onnx",
                expected=f"1 to {schemas.NEWEST}",
                got=entry.version,
                hint="install a newer onnx package, or export for an older opset",
            )
        if entry.version < 1:
            raise ModelError(f"opset {entry.version} does not exist", where=f"{where}, opset_import of {name!r}")
    return opsets


def _own_opsets(proto: onnx.FunctionProto, file: str) -> dict[str, int]:
    return read_opsets(proto.opset_import, file)


def _function_key(proto: onnx.FunctionProto, file: str) -> FunctionKey:
    return domain(text(proto.domain, file)), text(proto.name, file), text(proto.overload, file)


# --- graphs ---------------------------------------------------------------------------------------------------------


class Checker:
    """Checks graphs of one file, whose large tensors are `pieces`. `functions` are the model-local ones that nodes may
    call."""

    def __init__(self, file: str, pieces: Pieces, functions: Collection[FunctionKey] = ()) -> None:
        self._file, self._pieces = file, pieces
        self._functions = functions

    def _at(self, *parts: str) -> str:
        return f"{self._file}:" + "/".join(part for part in parts if part)

    def function(self, proto: onnx.FunctionProto, title: str, opsets: Mapping[str, int]) -> FunctionDef:
        """Checks one function; its body sees nothing but its inputs."""
        inputs = tuple(text(name, self._at(title)) for name in proto.input)
        outputs = tuple(text(name, self._at(title)) for name in proto.output)
        defaults = {
            text(attr.name, self._at(title)): self._attribute(attr, self._at(title), opsets, frozenset(), title, 0)
            for attr in proto.attribute_proto
        }
        body = self._body(proto.node, inputs, {}, outputs, opsets, frozenset(), title, 0)
        return FunctionDef(title, inputs, outputs, body, defaults, opsets)

    def graph(
        self, proto: onnx.GraphProto, opsets: Mapping[str, int], outer: frozenset[str], path: str, depth: int
    ) -> GraphDef:
        """Checks a graph that sees `outer`. `path` leads messages to it."""
        if depth > MAX_DEPTH:
            raise LimitError(
                "graphs are nested too deep", where=self._at(path), expected=f"at most {MAX_DEPTH}", got=depth
            )
        if proto.sparse_initializer:
            where = self._at(path)
            raise UnsupportedError(
                "sparse initializers are not supported", ((where, "SparseTensor", "store it dense"),)
            )
        constants: dict[str, onnx.TensorProto] = {}
        for tensor in proto.initializer:
            where = self._at(path, f"initializer {tensor.name!r}")
            name = text(tensor.name, where)
            if name in constants:
                raise ModelError(
                    f"the initializer {name!r} is defined twice",
                    where=where,
                    expected="one definition of each value",
                    hint="remove or rename one of them",
                )
            _check_tensor(tensor, self._pieces, where)
            constants[name] = tensor
        inputs: list[str] = []
        for value in proto.input:
            name = text(value.name, self._at(path, "input"))
            if name in inputs or not name:
                raise ModelError(f"the graph input {name!r} is defined twice or has no name", where=self._at(path))
            inputs.append(name)
        outputs = tuple(text(value.name, self._at(path, "output")) for value in proto.output)
        if "" in outputs:
            raise ModelError("an output of the graph has no name", where=self._at(path))
        declared = {
            value.name: self._declared(value, path) for value in (*proto.input, *proto.value_info, *proto.output)
        }
        nodes = self._body(proto.node, inputs, constants, outputs, opsets, outer, path, depth)
        defined = {*inputs, *constants, *(name for node in nodes for name in node.outputs)}
        used = [*(name for node in nodes for name in node.reads), *outputs]
        free = tuple(name for name in dict.fromkeys(used) if name not in defined)
        return GraphDef(tuple(inputs), nodes, outputs, constants, declared, free)

    def _declared(self, value: onnx.ValueInfoProto, path: str) -> Declared:
        where = self._at(path, f"value {value.name!r}")
        name = text(value.name, where)
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return Declared(name, None, None, kind or "value without a type")
        tensor = value.type.tensor_type
        if not tensors.is_supported(tensor.elem_type, where):
            return Declared(name, None, None, f"tensor of {onnx.TensorProto.DataType.Name(tensor.elem_type)}")
        dtype = tensors.dtype_of(tensor.elem_type)
        if not tensor.HasField("shape"):
            return Declared(name, dtype, None, "tensor without a shape")
        dims = tuple(
            int(dim.dim_value) if dim.HasField("dim_value") else text(dim.dim_param, where) for dim in tensor.shape.dim
        )
        return Declared(name, dtype, dims, str(dtype))

    def _body(
        self,
        protos: Sequence[onnx.NodeProto],
        inputs: Sequence[str],
        constants: Collection[str],
        outputs: Sequence[str],
        opsets: Mapping[str, int],
        outer: frozenset[str],
        path: str,
        depth: int,
    ) -> tuple[NodeDef, ...]:
        """Checks the nodes of a graph or function and returns them in an order that respects dependence."""
        places = [self._place(proto, index, path) for index, proto in enumerate(protos)]
        producer: dict[str, int] = {}
        given = {*inputs, *constants}
        for index, proto in enumerate(protos):
            for raw_name in proto.output:
                name = text(raw_name, self._at(path, places[index]))
                if not name:
                    continue
                if name in producer or name in given:
                    other = f"node {places[producer[name]]}" if name in producer else "an input or initializer"
                    raise ModelError(
                        f"the value {name!r} is defined twice",
                        where=self._at(path, places[index]),
                        expected="one definition of each value",
                        got=f"also defined by {other}",
                        hint="rename one of them",
                    )
                producer[name] = index
        visible = outer | given | producer.keys()
        nodes = [self._node(proto, place, opsets, visible, path, depth) for proto, place in zip(protos, places)]
        for node in nodes:
            for name in node.inputs:
                if name and name not in visible:
                    raise ModelError(
                        f"the value {name!r} is used by node {node.name} ({node.op}) but nothing defines it",
                        where=self._at(path, node.name),
                        expected="an input, an initializer or the output of a node",
                        hint=f"add an initializer {name!r}, or correct the name (exporters lose very large weights)",
                    )
        for name in outputs:
            if name and name not in visible:
                raise ModelError(f"the output {name!r} is defined by nothing", where=self._at(path))
        return self._sorted(nodes, producer, path)

    def _place(self, proto: onnx.NodeProto, index: int, path: str) -> str:
        op = text(proto.op_type, self._at(path, f"node {index}"))
        return text(proto.name, self._at(path, f"node {index} ({op})")) or f"{op}_{index}"

    def _sorted(self, nodes: Sequence[NodeDef], producer: Mapping[str, int], path: str) -> tuple[NodeDef, ...]:
        """Kahn's algorithm; among nodes that are ready the first in the file goes first."""
        waiting = [{producer[name] for name in node.reads if name in producer} for node in nodes]
        users: list[list[int]] = [[] for _ in nodes]
        for index, needed in enumerate(waiting):
            for other in needed:
                users[other].append(index)
        missing = [len(needed) for needed in waiting]
        ready = [index for index, count in enumerate(missing) if not count]
        order: list[int] = []
        while ready:
            index = heapq.heappop(ready)
            order.append(index)
            for user in users[index]:
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, user)
        if len(order) == len(nodes):
            return tuple(nodes[index] for index in order)
        stuck = set(range(len(nodes))) - set(order)
        trail = [min(stuck)]
        while trail[-1] not in trail[:-1]:  # Every stuck node waits for a stuck node: walking back must repeat one.
            trail.append(min(waiting[trail[-1]] & stuck))
        circle = trail[trail.index(trail[-1]) :][::-1]
        names = [nodes[index].name for index in circle]
        raise ModelError(
            f"the graph has a cycle: {' -> '.join(names[:20])}",
            where=self._at(path, names[0]),
            expected="no node that depends on itself",
            hint="a feedback must be a Loop, or a state outside the model",
        )

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _node(
        self,
        proto: onnx.NodeProto,
        place: str,
        opsets: Mapping[str, int],
        visible: frozenset[str],
        path: str,
        depth: int,
    ) -> NodeDef:
        where = self._at(path, place)
        domain_ = domain(text(proto.domain, where))
        op, overload = text(proto.op_type, where), text(proto.overload, where)
        local = (domain_, op, overload) in self._functions
        if domain_ not in opsets and not local:
            raise ModelError(
                f"the node {place} uses {op} of the domain {domain_ or 'ai.onnx'}, which the model does not import",
                where=where,
                expected="an entry in opset_import",
                got=", ".join(f"{name or 'ai.onnx'} {version}" for name, version in sorted(opsets.items())) or "none",
                hint="add the domain and its version to opset_import",
            )
        opset = opsets.get(domain_, 1)
        schema = None if local else schemas.find(domain_, op, opset)
        if schema is None and not local and domain_ == "":
            raise ModelError(
                f"opset {opset} of ai.onnx has no operator {op}",
                where=where,
                got=f"{op} in node {place}",
                hint="correct the operator or the opset version",
            )
        inputs = tuple(text(name, where) for name in proto.input)
        outputs = tuple(text(name, where) for name in proto.output)
        if schema is not None:
            _check_count("inputs", len(inputs), schema.min_input, schema.max_input, op, where)
            _check_count("outputs", len(outputs), schema.min_output, schema.max_output, op, where)
        kinds = schemas.attribute_kinds(domain_, op, opset) if schema is not None else None
        attrs: dict[str, object] = {}
        for attr in proto.attribute:
            name = text(attr.name, where)
            if name in attrs:
                raise ModelError(f"{op}.{name} is given twice", where=where, hint="remove one of them")
            if kinds is not None:
                attributes.check(op, attr, kinds, where)
            attrs[name] = self._attribute(attr, where, opsets, visible, f"{path}/{place}" if path else place, depth)
        if schema is not None:
            for name in schemas.required_attributes(domain_, op, opset):
                if name not in attrs:
                    raise ModelError(f"{op} needs the attribute {name!r}", where=where, got="no such attribute")
        return NodeDef(op, domain_, overload, place, inputs, outputs, attrs, schema, proto)

    def _attribute(
        self,
        attr: onnx.AttributeProto,
        where: str,
        opsets: Mapping[str, int],
        visible: frozenset[str],
        path: str,
        depth: int,
    ) -> object:
        kind = attributes.kind_of(attr)
        if attr.ref_attr_name:
            return Ref(text(attr.ref_attr_name, where), kind)
        if kind == AttributeProto.GRAPH:
            return self.graph(attr.g, opsets, visible, f"{path}.{attr.name}", depth + 1)
        if kind == AttributeProto.TENSOR:
            _check_tensor(attr.t, self._pieces, f"{where}.{attr.name}")
        return attributes.decode(attr, where)


def _check_tensor(proto: onnx.TensorProto, pieces: Pieces, where: str) -> None:
    """Checks a stored tensor. One of a type that Relume does not have only matters where a live node uses it."""
    if tensors.is_supported(proto.data_type, where):
        tensors.check(proto, pieces, where)


def _check_count(what: str, count: int, least: int, most: int, op: str, where: str) -> None:
    if not least <= count <= most:
        wanted = str(least) if least == most else f"{least} to {most if most < 2**31 - 1 else 'any number'}"
        raise ModelError(f"{op} has {count} {what}", where=where, expected=f"{wanted} {what}", got=count)
