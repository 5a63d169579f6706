"""The walk: every live node of a checked document, in order, becomes nodes of a Relume graph.

A *frame* is what names mean at one place: the graph of the model, the body of a function that is expanded, a region.
Frames that share a builder append to the same graph; a region has a builder of its own and sees of the outside only
the captures that are passed to it.

Problems with single nodes are collected: what a missing node defines is `Missing`, nodes that use it are passed over,
and one `UnsupportedError` lists every node that has no translation. What cannot mean anything is a `ModelError` at
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto

from relume.base.errors import InputError, LimitError, ModelError, UnsupportedError
from relume.base.locations import Location
from relume.frontends.onnx import attributes, functions, schemas, tensors
from relume.frontends.onnx.calls import TRANSLATORS, Call, NotTranslated, Results
from relume.frontends.onnx.external import Folder
from relume.frontends.onnx.frames import Frame, Missing, Problem
from relume.frontends.onnx.limits import MAX_GENERATED
from relume.frontends.onnx.shapes import Contents, is_numeric
from relume.frontends.onnx.structure import Declared, Document, FunctionDef, GraphDef, NodeDef, Ref, live
from relume.frontends.onnx.symbols import Symbols
from relume.graph import sites
from relume.graph.builder import Builder
from relume.graph.opdef import InferError, OpDef
from relume.graph.types import Constant, Function, Graph, Module, Tensor, Type, Value
from relume.runtime.arguments import as_array


class _Reported(Exception):
    """The node cannot be imported because of parts of its graphs, which are reported already."""


class Importer:
    """Imports one document. It is the `Emitter` of the calls that translators see."""

    def __init__(
        self, document: Document, ops: Mapping[str, OpDef], values: Mapping[str, np.ndarray] | None = None
    ) -> None:
        self.contents = Contents()
        self._values = dict(values or {})
        self._needed: dict[str, None] = {}  # Inputs whose values would make more extents known.
        self._document = document
        self._ops = ops
        self._file = document.raw.file
        self._folder, self._pieces = Folder(document.raw.folder), document.raw.pieces
        self._problems: dict[Problem, None] = {}  # In order, each once.
        self._names: dict[Value, str] = {}
        self._generated = 0
        self._builder = Builder()
        self._frame = Frame(self._builder, document.opsets, "")

    def module(self) -> Module:
        """The module with its one function `main`. Raises `ModelError`, `UnsupportedError`, `LimitError`."""
        graph = self._document.graph
        frame = Frame(self._builder, self._document.opsets, "", constants=graph.constants, declared=graph.declared)
        self._frame = frame
        self._inputs(graph, frame)
        if len(set(graph.outputs)) != len(graph.outputs):
            raise ModelError("an output is listed twice", where=self._file, got=list(graph.outputs))
        results = self._body(graph.nodes, graph.outputs, frame)
        if self._problems:
            raise UnsupportedError(
                f"{self._file}: {len(self._problems)} part(s) of the model are not supported",
                tuple(self._problems),
                values=tuple(self._needed),
                hint=f"fix the values of {', '.join(self._needed)}: relume.load(..., values={{name: array}})"
                if self._needed
                else "export the model without these operators; docs/limits.md says what is missing",
            )
        used = self._finish(frame.builder, tuple(value for value in results if isinstance(value, Value)))
        function = Function("main", used, 0, graph.outputs)
        return Module({"main": sites.assign(function)}, self._file)

    def _inputs(self, graph: GraphDef, frame: Frame) -> None:
        """Declares the parameters. An initializer that is also listed as an input is a constant (IR version 3)."""
        free = [name for name in graph.inputs if name not in graph.constants]
        declared = [graph.declared[name] for name in free]
        symbols = Symbols(dim for entry in declared for dim in entry.dims or () if isinstance(dim, str))
        for name in self._values:
            if name not in free:
                raise InputError(
                    f"there is no input {name!r} to fix", where=self._file, expected=", ".join(free), got=name
                )
        for entry in declared:
            if entry.dtype is None or entry.dims is None:
                problem = (f"input {entry.name!r}", entry.kind, "an input is a tensor with a known type and rank")
                self._problems[problem] = None
                frame.values[entry.name] = Missing()
                continue
            if entry.name in self._values:
                frame.values[entry.name] = _fixed(entry, self._values[entry.name])
                continue
            dims = symbols.dims(entry.name, entry.dims)
            frame.values[entry.name] = frame.builder.param(Tensor(entry.dtype, dims), entry.name)

    # --- walking ----------------------------------------------------------------------------------------------------

    def _body(self, nodes: Sequence[NodeDef], results: Sequence[str], frame: Frame) -> list[Value | Missing | None]:
        """Imports what `results` need and returns their values."""
        frame.nodes = live(tuple(nodes), tuple(results))
        with self._entered(frame):
            for index, node in enumerate(frame.nodes):
                frame.current = index
                self._node(node, frame)
            return [self._lookup(name, frame) if name else None for name in results]

    @contextmanager
    def _entered(self, frame: Frame) -> Iterator[None]:
        before, self._frame = self._frame, frame
        try:
            yield
        finally:
            self._frame = before

    def _lookup(self, name: str, frame: Frame) -> Value | Missing | None:
        """The value of a name. Stored tensors become constants when first used."""
        if name in frame.values:
            value = frame.values[name]
            if isinstance(value, Missing) and value.problem:
                self._problems[value.problem] = None
            return value
        if name in frame.constants:
            frame.values[name] = self._stored(frame.constants[name], name, frame)
            return frame.values[name]
        if frame.outer is None:
            raise ModelError(f"the value {name!r} is not defined here", where=f"{self._file}:{frame.path}")
        return self._lookup(name, frame.outer)

    def _stored(self, proto: TensorProto, name: str, frame: Frame) -> Value | Missing:
        place = f"{frame.path}{'/' if frame.path else ''}initializer {name!r}"
        where = f"{self._file}:{place}"
        if not tensors.is_supported(proto.data_type, where):
            kind = f"tensor of {TensorProto.DataType.Name(proto.data_type)}"
            self._problems[place, kind, "the element type is not supported"] = None
            return Missing()
        return Constant.of(tensors.array(proto, self._pieces, self._folder, where), name)

    def _node(self, node: NodeDef, frame: Frame) -> None:
        place = frame.place(node.name)
        values = [self._lookup(name, frame) if name else None for name in node.inputs]
        captured = [self._lookup(name, frame) for graph in node.graphs() for name in graph.free]
        if any(isinstance(value, Missing) for value in (*values, *captured)):
            self._report_unknown(node, frame)
            self._define(node, (), frame, Missing())
            return
        inputs = tuple(value for value in values if not isinstance(value, Missing))
        builder = frame.builder
        self.contents.missed.clear()
        try:
            with builder.at(Location(self._file.replace(":", "_"), place)):
                results = self._translate(node, inputs, frame)
        except _Reported:
            self._define(node, (), frame, Missing())
        except NotTranslated as problem:
            if builder is self._builder:  # Inside a region parameters are not inputs.
                for value in self.contents.missed:
                    self._needed.update(dict.fromkeys(_fixable(value, builder)))
            self._problems[place, node.title, problem.reason] = None
            self._define(node, (), frame, Missing())
        except InferError as error:
            raise self._wrong(node, error, frame) from error
        else:
            self._define(node, results if isinstance(results, tuple) else (results,), frame)

    def _define(
        self,
        node: NodeDef,
        results: Sequence[Value | Missing | NotTranslated | None],
        frame: Frame,
        absent: Missing | None = None,
    ) -> None:
        """Binds the outputs. One without a result is `Missing`, which is reported only where it is used."""
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            value = results[index] if index < len(results) else None
            if value is None or isinstance(value, NotTranslated):
                reason = f"its output {index} ({name!r}) is used" + (f": {value.reason}" if value else "")
                value = absent or Missing((frame.place(node.name), node.title, reason))
            elif isinstance(value, Value):
                self._check_declared(name, value, node, frame)
                if isinstance(value, Constant):
                    value = value if value.name else replace(value, name=name)
                else:  # One that exists already (Identity) keeps its name.
                    self._names.setdefault(value, value.name or name)
            frame.values[name] = value

    def _translate(
        self, node: NodeDef, inputs: tuple[Value | None, ...], frame: Frame
    ) -> tuple[Value | Missing | None, ...] | Results:
        attrs = self._attrs(node, frame)
        local = self._document.functions.get((node.domain, node.op, node.overload))
        if local is not None:
            return self._expand(local, inputs, attrs, frame, node)
        if node.schema is None:
            raise NotTranslated("the operator is not known")
        version, opset = node.schema.since_version, frame.opsets.get(node.domain, 1)
        problem = schemas.type_problem(
            node.domain, node.op, opset, [value.dtype if value else None for value in inputs]
        )
        if problem:
            raise InferError(*problem)
        spoken = TRANSLATORS.get((node.domain, node.op), {})
        if version in spoken:
            return spoken[version](Call(node, version, inputs, self._with_defaults(node, attrs), self))
        where = f"{self._file}:{frame.place(node.name)}"
        body = functions.schema_body(node, attrs, opset, inputs, self._pieces, where)
        if body is None and functions.is_convertible(node, spoken):
            body = functions.converted(node, attrs, opset, inputs, self._pieces)
        if body is None:
            others = f"version {version} is not supported (supported: {', '.join(map(str, sorted(spoken)))})"
            raise NotTranslated(others if spoken else "there is no translation")
        return self._expand(body, inputs, attrs, frame, node)

    def _report_unknown(self, node: NodeDef, frame: Frame) -> None:
        """Reports a node that cannot be imported anyway because an operand is missing."""
        known = (
            (node.domain, node.op, node.overload) in self._document.functions
            or (node.domain, node.op) in TRANSLATORS
            or (node.schema and (node.schema.has_function or node.schema.has_context_dependent_function))
        )
        if not known:
            self._problems[frame.place(node.name), node.title, "there is no translation"] = None
        for graph in node.graphs():
            inner = replace(frame, path=frame.place(node.name))
            for other in live(graph.nodes, graph.outputs):
                self._report_unknown(other, inner)

    def _attrs(self, node: NodeDef, frame: Frame) -> dict[str, object]:
        """The attributes that are given; references are replaced, or dropped where the call left them out."""
        attrs: dict[str, object] = {}
        for name, value in node.attrs.items():
            if not isinstance(value, Ref):
                attrs[name] = value
            elif value.kind == AttributeProto.GRAPH:
                raise NotTranslated("a graph is passed as an attribute of a function")
            elif value.name in frame.attrs:
                attrs[name] = frame.attrs[value.name]
        return attrs

    def _with_defaults(self, node: NodeDef, attrs: Mapping[str, object]) -> dict[str, object]:
        assert node.schema is not None
        known = schemas.defaults(node.domain, node.op, node.schema.since_version)
        return {**{attr.name: attributes.decode(attr, node.name) for attr in known}, **attrs}

    def _expand(
        self,
        function: FunctionDef,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, object],
        frame: Frame,
        node: NodeDef,
    ) -> tuple[Value | Missing | None, ...]:
        """Imports a function's body in place of a call."""
        if len(inputs) > len(function.inputs):
            raise InferError(f"{function.title} takes fewer inputs", len(function.inputs), len(inputs))
        padded = [*inputs, *[None] * (len(function.inputs) - len(inputs))]
        inner = Frame(
            frame.builder,
            function.opsets,
            frame.place(node.name),
            dict(zip(function.inputs, padded)),
            constants=function.constants,
            attrs={**function.defaults, **attrs},
        )
        wanted = [inside if outside else "" for inside, outside in zip(function.outputs, node.outputs)]
        return tuple(self._body(function.nodes, wanted, inner))

    # --- what translators may do (`Emitter`) ------------------------------------------------------------------------

    def emit(
        self, op: str, operands: Sequence[Value], regions: Sequence[Graph], attrs: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        """Appends a node. An integer result whose elements are all known becomes a constant."""
        if op not in self._ops:
            raise NotTranslated(f"it needs the op {op}, which does not exist")
        builder = self._frame.builder
        results = builder.emit(self._ops[op], *operands, regions=regions, **attrs)
        for value in results:
            if isinstance(value.type, Tensor) and value.type.is_static:
                where = f"{self._file}:{builder.location.name if builder.location else ''}"
                tensors.check_size(value.dtype, value.dims, where)  # type: ignore[arg-type]
        self.contents.follow(builder.nodes[-1])
        content = self.contents.of(results[0]) if len(results) == 1 else None
        if content is not None and not results[0].dtype.is_float and is_numeric(content):
            return (self.constant(content.astype(results[0].dtype.numpy)),)
        return results

    def reserve(self, count: int) -> None:
        """Counts elements of constants that translators make up from a few numbers."""
        self._generated += count
        if self._generated > MAX_GENERATED:
            node = self._frame.nodes[self._frame.current]
            raise LimitError(
                "the model makes up too many constants from a few numbers",
                where=f"{self._file}:{self._frame.place(node.name)}",
                expected=f"at most {MAX_GENERATED} elements in ranges and index tables",
                got=self._generated,
                hint="store them as initializers",
            )

    def constant(self, data: np.ndarray) -> Value:
        """A constant."""
        return Constant.of(data)

    def array(self, proto: TensorProto) -> np.ndarray:
        """A stored tensor of the node that is being imported."""
        node = self._frame.nodes[self._frame.current]
        where = f"{self._file}:{self._frame.place(node.name)}"
        if not tensors.is_supported(proto.data_type, where):
            raise NotTranslated(f"tensors of {TensorProto.DataType.Name(proto.data_type)} are not supported")
        return tensors.array(proto, self._pieces, self._folder, where)

    def inline(self, graph: GraphDef, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """Imports a graph as if its nodes stood here."""
        outer = self._frame
        inner = self._inner(graph, outer, outer.builder)
        inner.outer = outer
        inner.values.update(zip(graph.inputs, arguments))
        return self._results(self._body(graph.nodes, graph.outputs, inner))

    def regions(self, graphs: Sequence[GraphDef], params: Sequence[Sequence[Type]]) -> tuple[list[Value], list[Graph]]:
        """Imports graphs as closed regions.

        Region i gets parameters of the types `params[i]` (for the inputs of its graph), then the captures: one for
        each value from outside that any of the regions uses. Returns the captures and the regions.
        """
        outer = self._frame
        names = dict.fromkeys(name for graph in graphs for name in graph.free)
        outside = {name: self._lookup(name, outer) for name in names}
        captures = list(
            dict.fromkeys(v for v in outside.values() if isinstance(v, Value) and not isinstance(v, Constant))
        )
        bodies: list[tuple[Builder, list[Value | Missing | None]]] = []
        for graph, types in zip(graphs, params):
            builder = Builder(outer.builder.location)
            inner = self._inner(graph, outer, builder)
            for name, type_ in zip(graph.inputs, types):
                inner.values[name] = builder.param(type_, name)
            passed: dict[Value, Value] = {}
            for value in captures:
                passed[value] = builder.param(value.type, self._names.get(value, value.name))
                self.contents.note(passed[value], self.contents.of(value))
            for name, found in outside.items():
                inner.values.setdefault(name, passed.get(found, found) if isinstance(found, Value) else found)
            bodies.append((builder, self._body(graph.nodes, graph.outputs, inner)))
        built = [self._finish(builder, self._results(results)) for builder, results in bodies]
        return _without_idle_captures(captures, built)

    def _inner(self, graph: GraphDef, outer: Frame, builder: Builder) -> Frame:
        node = outer.nodes[outer.current]
        return Frame(
            builder,
            outer.opsets,
            outer.place(node.name),
            constants=graph.constants,
            declared=graph.declared,
            attrs=outer.attrs,
        )

    def _results(self, values: Sequence[Value | Missing | None]) -> tuple[Value, ...]:
        if any(isinstance(value, Missing) for value in values):
            raise _Reported
        return tuple(value for value in values if isinstance(value, Value))

    def _finish(self, builder: Builder, results: Sequence[Value]) -> Graph:
        """What was built, without nodes that nothing uses (no ONNX node has an effect), its values named."""
        needed, kept = set(results), []
        for node in reversed(builder.nodes):
            if any(value in needed for value in node.results):
                kept.append(node)
                needed.update(node.operands)
        renamed: dict[Value, Value] = {}
        nodes = []
        for node in reversed(kept):
            operands = tuple(renamed.get(value, value) for value in node.operands)
            defined = tuple(Value(value.type, self._names.get(value, "")) for value in node.results)
            renamed.update(zip(node.results, defined))
            nodes.append(replace(node, operands=operands, results=defined))
        return Graph(tuple(builder.params), tuple(nodes), tuple(renamed.get(value, value) for value in results))

    # --- messages ---------------------------------------------------------------------------------------------------

    def _check_declared(self, name: str, value: Value, node: NodeDef, frame: Frame) -> None:
        """Refuses a declaration that contradicts what the value is. Names of extents are not compared."""
        declared = frame.declared.get(name)
        if declared is None or declared.dtype is None:
            return
        where = f"{self._file}:{frame.place(node.name)}"
        if declared.dtype is not value.dtype:
            raise ModelError(
                f"the value {name!r} is declared {declared.dtype} but node {node.name} ({node.op}) gives {value.dtype}",
                where=where,
                expected=declared.dtype,
                got=value.type,
                context=frame.around(),
                hint="correct the declared type, or cast",
            )
        if declared.dims is None or name not in self._document.graph.outputs or frame.path:
            return
        fits = len(declared.dims) == len(value.dims) and all(
            not isinstance(said, int) or not isinstance(dim, int) or said < 0 or said == dim
            for said, dim in zip(declared.dims, value.dims)
        )
        if not fits:
            raise ModelError(
                f"the output {name!r} is declared with another shape than node {node.name} ({node.op}) gives it",
                where=where,
                expected=f"[{','.join(str(dim or '?') for dim in declared.dims)}]",
                got=value.type,
                context=frame.around(),
                hint="correct the declared shape, or leave it out",
            )

    def _wrong(self, node: NodeDef, error: InferError, frame: Frame) -> ModelError:
        kinds = []
        for name in node.inputs:
            value = self._lookup(name, frame) if name else None
            kinds.append(f"{name} : {value.type}" if isinstance(value, Value) else "absent")
        return ModelError(
            f"node {node.name} ({node.op}): {error.what}",
            where=f"{self._file}:{frame.place(node.name)}",
            expected=error.expected,
            got=error.got,
            context=f"{frame.around()}\ninputs of {node.name}: {', '.join(kinds) or 'none'}",
            hint="the model is inconsistent here: correct the node, or export the model again",
        )


def _fixed(entry: Declared, array: np.ndarray) -> Constant:
    """The constant that stands for an input. Raises `InputError` where the array does not fit the declaration."""
    data, dims = as_array(f"the value for the input {entry.name!r}", array), entry.dims or ()
    fits = data.ndim == len(dims) and all(
        not isinstance(dim, int) or dim == extent for dim, extent in zip(dims, data.shape)
    )
    if entry.dtype is None or data.dtype != entry.dtype.numpy or not fits:
        raise InputError(
            f"this value does not fit the input {entry.name!r}",
            expected=f"{entry.dtype}[{','.join(str(dim or '?') for dim in dims)}]",
            got=f"{data.dtype}{list(data.shape)}",
        )
    return Constant.of(np.array(data), entry.name)  # A copy: the constant must not change with the caller's array.


def _fixable(value: Value, builder: Builder) -> tuple[str, ...]:
    """The inputs that a value is computed from, if all of them are scalars or vectors: data like extents and axes."""
    wanted, used = {value}, []
    for node in reversed(builder.nodes):
        if any(result in wanted for result in node.results):
            wanted.update(node.operands)
    for param in builder.params:
        if param in wanted:
            used.append(param)
    return tuple(param.name for param in used) if all(len(param.dims) <= 1 for param in used) else ()


def _without_idle_captures(captures: list[Value], regions: list[Graph]) -> tuple[list[Value], list[Graph]]:
    """Drops captures that no region uses: those that only served to compute shapes."""
    used = [{*graph.results, *(value for node in graph.nodes for value in node.operands)} for graph in regions]
    count = len(captures)
    kept = [i for i in range(count) if any(g.params[len(g.params) - count + i] in u for g, u in zip(regions, used))]
    pruned = []
    for graph in regions:
        own = len(graph.params) - count
        params = (*graph.params[:own], *(graph.params[own + i] for i in kept))
        pruned.append(Graph(params, graph.nodes, graph.results))
    return [captures[i] for i in kept], pruned
