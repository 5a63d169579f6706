"""States: linear values. A write consumes one version and yields the next; there is no other effect.

As an array, a version of a state is the tensor that it holds. `scatter_add` and `scatter_update` write rows, in place
by contract: where that would need a copy of the state, a function that uses them does not compile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dtypes
from relume.graph.opdef import InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Graph, State, Tensor, Type
from relume.ops import inference


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


def _infer_scatter(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    state, (indices, updates) = _want_state(types[0]), types[1:]
    table = state.tensor
    if not isinstance(indices, Tensor) or not isinstance(updates, Tensor):
        raise InferError("indices and updates are tensors, not states", "two tensors", f"{indices}, {updates}")
    if not table.rank:
        raise InferError("the state has no axis of rows", "a state of rank 1 or more", table)
    inference.want_dtype("indices", indices, dtypes.i64, dtypes.i32)
    wanted = Tensor(table.dtype, (*indices.dims, *table.dims[1:]))
    if updates != wanted:
        raise InferError("the updates do not fit the state: one row for each index", wanted, updates)
    return (state,)


def _infer_scatter_add(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    if _want_state(types[0]).tensor.dtype.kind == "bool":
        raise InferError("truth values cannot be added", "a state of numbers", types[0])
    return _infer_scatter(types, attrs, regions)


def _rows(state: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The indices in order, counted from the front. Raises `IndexError` where one is out of range."""
    flat, extent = indices.reshape(-1).astype(np.int64), state.shape[0]
    outside = flat[(flat < -extent) | (flat >= extent)]
    if outside.size:
        raise IndexError(f"index {outside[0]} is out of range for axis 0 of extent {extent}")
    return np.where(flat < 0, flat + extent, flat)


def _scatter_add(
    state: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, attrs: object, regions: object
) -> tuple[np.ndarray, ...]:
    rows, following = _rows(state, indices), state.copy()
    # One update after the other, in the order of the indices; integers wrap.
    np.add.at(following, rows, updates.reshape(len(rows), *state.shape[1:]))
    return (following,)


def _scatter_update(
    state: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, attrs: object, regions: object
) -> tuple[np.ndarray, ...]:
    following = state.copy()
    for row, update in zip(_rows(state, indices), updates.reshape(indices.size, *state.shape[1:])):
        following[row] = update
    return (following,)


_SCATTER_SAMPLES = (
    Sample((("f32", (5, 3)), np.array([0, 4, -1, -5, 4]), ("f32", (5, 3)))),
    Sample((("f32", (4, 2, 17)), np.array([[1, 3], [-1, 3]], np.int32), ("f32", (2, 2, 2, 17)))),
    Sample((("i64", (6,)), np.array([2, 2, -6]), ("i64", (3,)))),
    Sample((("f64", (3, 2)), np.array(1), ("f64", (2,)))),
    Sample((("i8", (3, 2)), np.zeros((0,), np.int64), ("i8", (0, 2)))),
    Sample((("f32", (3, 0)), np.array([2, 0]), ("f32", (2, 0)))),
    Sample((("f32", (3, 2)), ("f32", (2,)), ("f32", (2, 2))), error="indices cannot be f32"),
    Sample((("f32", ()), np.array(0), ("f32", ())), error="no axis of rows"),
    Sample((("f32", (3, 2)), np.array([0]), ("f32", (2, 2))), error="do not fit the state"),
    Sample((("f32", (3, 2)), np.array([0]), ("f64", (1, 2))), error="do not fit the state"),
)

scatter_add = OpDef(
    name="scatter_add",
    doc="The next version of a state: s'[indices[i]] = s[indices[i]] + updates[i], i in ascending order, so that an "
    "index that stands there twice adds twice. In place: only the rows named are touched. Negative indices count from "
    "the end; out of range is an error of the run, before anything is written.",
    operands=("state", "indices", "updates"),
    results=("next",),
    infer=_infer_scatter_add,
    reference=_scatter_add,
    samples=lambda: [
        *_SCATTER_SAMPLES,
        Sample((("bool", (3,)), np.array([0]), ("bool", (1,))), error="cannot be added"),
    ],
    traits=frozenset({Trait.EFFECT}),
)

scatter_update = OpDef(
    name="scatter_update",
    doc="The next version of a state: s'[indices[i]] = updates[i], i in ascending order, so that the last of equal "
    "indices wins. In place: only the rows named are touched. Negative indices count from the end; out of range is an "
    "error of the run, before anything is written.",
    operands=("state", "indices", "updates"),
    results=("next",),
    infer=_infer_scatter,
    reference=_scatter_update,
    samples=lambda: [*_SCATTER_SAMPLES, Sample((("bool", (3,)), np.array([2, 2]), ("bool", (2,))))],
    traits=frozenset({Trait.EFFECT}),
)

OPS = (state_read, state_write, scatter_add, scatter_update)
