"""Frames: what names mean at one place of the walk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import TensorProto

from relume.frontends.onnx.structure import Declared, NodeDef
from relume.graph.builder import Builder
from relume.graph.types import Value

Problem = tuple[str, str, str]
"""(place, operator, reason)."""


@dataclass(frozen=True)
class Missing:
    """What an unsupported node would have defined. `problem`: report this where the value is used."""

    problem: Problem | None = None


@dataclass
class Frame:
    """What names mean, while one body is walked."""

    builder: Builder
    opsets: Mapping[str, int]
    path: str
    """Leads messages here; empty for the graph of the model."""
    values: dict[str, Value | Missing | None] = field(default_factory=dict)
    """None: an absent optional input of a function."""
    constants: Mapping[str, TensorProto] = field(default_factory=dict)
    declared: Mapping[str, Declared] = field(default_factory=dict)
    attrs: Mapping[str, object] = field(default_factory=dict)
    """What references to attributes mean, inside a function."""
    outer: Frame | None = None
    """Where names come from that are not defined here, for graphs that are imported in place."""
    nodes: tuple[NodeDef, ...] = ()
    current: int = 0
    """Which of `nodes` is being imported."""

    def place(self, name: str) -> str:
        """The place of a node as messages and locations have it, on one line."""
        return re.sub(r"\s+", "_", f"{self.path}/{name}" if self.path else name)

    def around(self) -> str:
        """Up to ten nodes around the one that is being imported, which is marked."""
        first = max(0, min(self.current - 5, len(self.nodes) - 10))
        shown = enumerate(self.nodes[first : first + 10], start=first)
        return "\n".join(("> " if index == self.current else "  ") + str(node) for index, node in shown)
