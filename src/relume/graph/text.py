"""The text form of graphs: `parse_module(print_module(m), ops) == m`.

::

    module    = { function } { const }
    function  = "func" @name "(" params ")" [ "states" "(" params ")" ] "{"
                    { node } "return" [ result { "," result } ] [ "states" "(" values ")" ] [ origins ] "}"
    result    = value [ "as" "name" ]                      without: the value's own name
    params    = [ %name ":" type { "," %name ":" type } ]
    node      = [ %name { "," %name } "=" ] op "(" [ operands ] [ attrs ] ")" [ ":" type { "," type } ] [ origins ]
                    [ "{" region { "}" "{" region } "}" ]  [ "//" file ":" name ]
    region    = "(" params ")" { node } "yield" [ values ] [ origins ]
    value     = %name | @name                              a value of the same graph, or a constant
    attr      = name "=" ( 1 | 0.5 | true | "text" | f32 | (H+1)//2 | "[" list "]" )
    type      = f32[N,(H+1)//2] | state<f32[10,4]>
    origins   = "!(" slot { "," slot } ")"                 one per operand, or per result
    slot      = site { "/" iteration } { "+" site ... } | unknown("pass", "reason") | "_"
    const     = "const" @name ":" type "=" ( [[1,2],[3,4]] | splat 0.0 | dense "digest" | base64 "..." | random(seed) )

The types of results may be left out; where they stand, they must be what the op infers. `_` is the origin of a graph
that was not traced yet. A name is letters, digits, `_`, `.` and `/`; others are quoted: `%"input:0"`. A comment runs
from `//` to the end of the line; behind a node, `// file:name` without a blank is its place in the user's model (on
the line of its `{` where it has regions), with quotes where it holds odd characters.

Names are hints: the printer makes them unique, keeping those that already are. Regions are closed: inside one, only
its own names and constants are known. `random` is for tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.graph.cursor import TextError
from relume.graph.opdef import OpDef
from relume.graph.parser import Parser
from relume.graph.printer import print_function, print_module, print_region
from relume.graph.types import Graph, Module

__all__ = ["TextError", "parse_module", "parse_region", "print_function", "print_module", "print_region"]


def parse_module(text: str, ops: Mapping[str, OpDef], constants: Mapping[str, np.ndarray] | None = None) -> Module:
    """The module behind `text`. `constants` holds the arrays of `dense` constants by digest.

    Raises `TextError` (a `ModelError`) with the line where the text is malformed or does not fit the ops.
    """
    return Parser(text, ops, constants or {}).module()


def parse_region(text: str, ops: Mapping[str, OpDef], constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph behind `{ (params) nodes yield results }`, followed by its constants."""
    return Parser(text, ops, constants or {}).lone_region()
