"""How large a model becomes once local functions are expanded: counted before anything is expanded."""

from __future__ import annotations

from collections.abc import Sequence

from relume.base.errors import LimitError, ModelError
from relume.frontends.onnx.limits import MAX_DEPTH, MAX_NODES
from relume.frontends.onnx.structure import Document, FunctionKey, NodeDef, function_title


class Expansion:
    """Counts what expanding local functions would give, without expanding: nodes, depth, recursion."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._done: dict[FunctionKey, tuple[int, int]] = {}
        self._open: list[FunctionKey] = []

    def check(self) -> None:
        """Refuses recursion (`ModelError`), too many nodes and too many levels (`LimitError`)."""
        for key in self._document.functions:  # Also those that are never called: recursion is refused everywhere.
            self._function(key)
        file = self._document.raw.file
        nodes, depth = self._nodes(self._document.graph.nodes, 0)
        if nodes > MAX_NODES:
            raise LimitError(
                f"the model expands to {nodes} nodes",
                where=file,
                expected=f"at most {MAX_NODES}",
                hint="call fewer local functions, or export the repetition as a Loop",
            )
        if depth > MAX_DEPTH:
            self._too_deep(file, depth)

    def _too_deep(self, where: str, depth: int) -> None:
        raise LimitError(
            "graphs and function calls are nested too deep",
            where=where,
            expected=f"at most {MAX_DEPTH} levels",
            got=depth,
            hint="flatten nested If and Loop nodes and chains of local functions",
        )

    def _function(self, key: FunctionKey) -> tuple[int, int]:
        if key in self._done:
            return self._done[key]
        where = f"{self._document.raw.file}:{function_title(key)}"
        if key in self._open:
            names = [function_title(entry) for entry in [*self._open[self._open.index(key) :], key]]
            raise ModelError(
                f"the function {names[0]} calls itself: {' -> '.join(names)}",
                where=where,
                expected="functions without recursion",
                hint="write the repetition as a Loop",
            )
        if len(self._open) > MAX_DEPTH:
            self._too_deep(where, len(self._open))
        self._open.append(key)
        self._done[key] = self._nodes(self._document.functions[key].nodes, 0)
        self._open.pop()
        return self._done[key]

    def _nodes(self, nodes: Sequence[NodeDef], depth: int) -> tuple[int, int]:
        total, deepest = 0, depth
        for node in nodes:
            total += 1
            key = (node.domain, node.op, node.overload)
            if key in self._document.functions:
                count, below = self._function(key)
                total, deepest = total + count, max(deepest, depth + 1 + below)
            for graph in node.graphs():
                count, below = self._nodes(graph.nodes, depth + 1)
                total, deepest = total + count, max(deepest, below)
        return total, deepest
