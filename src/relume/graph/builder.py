"""Builds graphs node by node: types are inferred, attributes completed, names made unique by the printer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from relume.base.locations import Location
from relume.graph.opdef import InferError, OpDef
from relume.graph.types import Constant, Graph, Node, Origins, Type, Value


class Builder:
    """An open graph.

    `emit` appends one node and returns its results; `apply` is `emit` for ops with one result. `nodes` holds what
    was built so far, in order.
    """

    def __init__(self, location: Location | None = None) -> None:
        self.params: list[Value] = []
        self.nodes: list[Node] = []
        self.location = location

    def param(self, type_: Type, name: str = "") -> Value:
        """Adds a parameter."""
        value = Value(type_, name)
        self.params.append(value)
        return value

    def constant(self, data: np.ndarray, name: str = "") -> Constant:
        """A constant holding `data`; give it the dtype that is meant (`np.float32(2)`)."""
        return Constant.of(np.asarray(data), name)

    def emit(
        self,
        op: OpDef,
        *operands: Value,
        regions: Sequence[Graph] = (),
        name: str = "",
        origins: Sequence[Origins] = (),
        **attrs: Any,
    ) -> tuple[Value, ...]:
        """Appends `op(*operands; attrs; regions)`. Raises `InferError` where they do not fit.

        `name` becomes the hint of the first result.
        """
        op.check_arity(len(operands))
        complete = op.complete(attrs)
        if len(regions) != len(op.regions):
            raise InferError(f"{op.name} takes {len(op.regions)} regions", len(op.regions), len(regions))
        types = op.infer([value.type for value in operands], complete, tuple(regions))
        results = tuple(Value(type_, name if index == 0 else "") for index, type_ in enumerate(types))
        self.nodes.append(Node(op, operands, complete, results, tuple(regions), tuple(origins), self.location))
        return results

    def apply(self, op: OpDef, *operands: Value, regions: Sequence[Graph] = (), name: str = "", **attrs: Any) -> Value:
        """`emit` for an op with exactly one result."""
        (result,) = self.emit(op, *operands, regions=regions, name=name, origins=(), **attrs)
        return result

    @contextmanager
    def at(self, location: Location | None) -> Iterator[None]:
        """Nodes built inside carry `location`."""
        before, self.location = self.location, location
        try:
            yield
        finally:
            self.location = before

    def graph(self, *results: Value) -> Graph:
        """The graph built so far, with these results."""
        return Graph(tuple(self.params), tuple(self.nodes), results)
