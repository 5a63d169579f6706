"""States: linear values. A write consumes one version and yields the next; there is no other effect.

As an array, a version of a state is the tensor that it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.graph.opdef import InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Graph, State, Type


def _want_state(type_: Type) -> State:
    if not isinstance(type_, State):
        raise InferError("the first operand is not a state", "a version of a state", type_)
    return type_


def _infer_read(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    return (_want_state(types[0]).tensor,)


def _read(state: np.ndarray, *, attrs: object, regions: object) -> tuple[np.ndarray, ...]:
    return (state,)


state_read = OpDef(
    name="state_read",
    doc="The tensor that a version of a state holds.",
    operands=("state",),
    infer=_infer_read,
    reference=_read,
    samples=lambda: [
        Sample((("f32", (2, 3)),)),
        Sample((("i64", ()),)),
        Sample((("f32", (0, 2)),)),
    ],
)


def _infer_write(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    state = _want_state(types[0])
    if types[1] != state.tensor:
        raise InferError("the new value does not fit the state", state.tensor, types[1])
    return (state,)


def _write(state: np.ndarray, x: np.ndarray, *, attrs: object, regions: object) -> tuple[np.ndarray, ...]:
    return (x,)


state_write = OpDef(
    name="state_write",
    doc="The next version of a state, which holds x. It consumes the version before.",
    operands=("state", "x"),
    results=("next",),
    infer=_infer_write,
    reference=_write,
    samples=lambda: [
        Sample((("f32", (2, 3)), ("f32", (2, 3)))),
        Sample((("i64", ()), ("i64", ()))),
        Sample((("f32", (2, 3)), ("f32", (3, 2))), error="does not fit the state"),
        Sample((("f32", (2,)), ("f64", (2,))), error="does not fit the state"),
    ],
    traits=frozenset({Trait.EFFECT}),
)

OPS = (state_read, state_write)
