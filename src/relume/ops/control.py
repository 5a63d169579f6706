"""Control flow. Regions are closed: what they use from outside is passed to them as an operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from relume.base import dims, dtypes
from relume.base.dims import Dim
from relume.graph.opdef import AttrDef, InferError, OpDef, Sample, Trait
from relume.graph.types import Attr, Graph, State, Tensor, Type, Value
from relume.ops import inference
from relume.ops.arithmetic import Resolved


class Region(Protocol):
    """A region as a reference sees it: a function of arrays, and the types that its results have in this run."""

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]: ...

    @property
    def types(self) -> tuple[Tensor, ...]: ...


_REGION = frozenset({Trait.REGION})


def _want_scalar(name: str, type_: Type, dtype: dtypes.DType) -> None:
    wanted = Tensor(dtype, ())
    if type_ != wanted:
        raise InferError(f"{name} has the wrong type", wanted, type_)


def _want_types(what: str, got: Sequence[Value], expected: Sequence[Type]) -> None:
    if len(got) != len(expected):
        raise InferError(f"{what}: their number does not fit", len(expected), len(got))
    for index, (value, type_) in enumerate(zip(got, expected)):
        if value.type != type_:
            raise InferError(f"{what}: number {index} has the wrong type", type_, value.type)


def _tensor(what: str, value: Value) -> Tensor:
    if isinstance(value.type, State):
        raise InferError(f"{what} is a state; a region yields tensors", "a tensor", value.type)
    return value.type


# --- fused ----------------------------------------------------------------------------------------------------------


def _infer_fused(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    (body,) = regions
    _want_types("the parameters of the region", body.params, types)
    return tuple(_tensor("a result of the region", value) for value in body.results)


def _fused(*arrays: np.ndarray, attrs: Resolved, regions: Sequence[Region]) -> tuple[np.ndarray, ...]:
    return regions[0](*arrays)


fused = OpDef(
    name="fused",
    doc="Its region, applied to the operands: nodes that one kernel is to compute. `kind` says which sort of kernel; "
    "`derived`: none, but what is to be computed once for each version of the states that are the operands.",
    operands=("xs*",),
    results=("ys*",),
    regions=("body",),
    infer=_infer_fused,
    reference=_fused,
    samples=lambda: [
        Sample(
            (("f32", (2, 3)), ("f32", (3,))),
            {"kind": "map"},
            ("{ (%a : f32[2,3], %b : f32[3]) %s = add(%a, %b) %r = relu(%s) yield %r }",),
        ),
        Sample((("f32", (2, 3)),), {"kind": "map"}, ("{ (%a : f32[2,3]) %s = exp(%a) %r = neg(%s) yield %s, %r }",)),
        Sample((("f32", (2,)),), {"kind": "map"}, ("{ (%a : f32[3]) yield %a }",), error="wrong type"),
        Sample((("f32", (2,)),), {"kind": "map"}, ("{ () yield }",), error="number does not fit"),
    ],
    attrs=(AttrDef("kind", "str"),),
    traits=_REGION,
)

# --- if -------------------------------------------------------------------------------------------------------------


def _infer_if(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    _want_scalar("the condition", types[0], dtypes.bool_)
    then, otherwise = regions
    for name, region in (("then", then), ("else", otherwise)):
        _want_types(f"the parameters of the {name} region", region.params, types[1:])
    results = tuple(_tensor("a result of the then region", value) for value in then.results)
    _want_types("the results of the else region", otherwise.results, results)
    return results


def _if(cond: np.ndarray, *captures: np.ndarray, attrs: object, regions: Sequence[Region]) -> tuple[np.ndarray, ...]:
    return regions[0 if cond else 1](*captures)


if_ = OpDef(
    name="if",
    doc="The results of the first region if the condition holds, else those of the second; both are given the captures "
    "and yield the same types.",
    operands=("cond", "captures*"),
    results=("ys*",),
    regions=("then", "else"),
    infer=_infer_if,
    reference=_if,
    samples=lambda: [
        *(
            Sample(
                (np.array(cond), ("f32", (3,)), ("f32", (3,))),
                {},
                (
                    "{ (%a : f32[3], %b : f32[3]) %r = add(%a, %b) yield %r, %a }",
                    "{ (%a : f32[3], %b : f32[3]) %r = mul(%a, %b) yield %r, %b }",
                ),
            )
            for cond in (True, False)
        ),
        Sample(
            (np.array(True), ("f32", (3,))),
            {},
            ("{ (%a : f32[3]) yield %a }", "{ (%a : f32[3]) %b = cast(%a, to=f64) yield %b }"),
            error="results of the else region",
        ),
        Sample((("f32", ()),), {}, ("{ () yield }", "{ () yield }"), error="condition"),
    ],
    traits=_REGION,
)

# --- loop -----------------------------------------------------------------------------------------------------------


def _infer_loop(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
    (body,) = regions
    carried, scans = attrs["carried"], attrs["scans"]
    if type(carried) is not int or not 0 <= carried <= len(types) - 2:
        raise InferError(
            "carried is out of range", f"0 to {len(types) - 2}, the operands behind the condition", carried
        )
    if type(scans) is not int or scans < 0:
        raise InferError("scans is out of range", "at least 0", scans)
    _want_scalar("the trip count", types[0], dtypes.i64)
    _want_scalar("the condition", types[1], dtypes.bool_)
    if len(body.params) != len(types):
        raise InferError("the parameters of the region: their number does not fit", len(types), len(body.params))
    _want_types("the parameters of the region", body.params[:2], types[:2])
    _want_types("the captures of the region", body.params[2 + carried :], types[2 + carried :])
    if len(body.results) != 1 + carried + scans:
        raise InferError("the results of the region: their number does not fit", 1 + carried + scans, len(body.results))
    _want_scalar("the condition that the region yields", body.results[0].type, dtypes.bool_)
    outside = frozenset().union(*(dims.symbols(dim) for type_ in types for dim in _dims(type_)))
    state = []
    for index in range(carried):
        param = _tensor(f"carried value {index}", body.params[2 + index])
        for where, type_ in (("enters", types[2 + index]), ("leaves", body.results[1 + index].type)):
            if not isinstance(type_, Tensor) or not _carries(param, type_, outside):
                raise InferError(f"carried value {index} {where} the region with another type", param, type_)
        state.append(param)
    if not scans:
        return tuple(state)
    length = inference.dim_attr(attrs, "length")
    rows = (_tensor("a scan output", value) for value in body.results[1 + carried :])
    return (*state, *(Tensor(row.dtype, (length, *row.dims)) for row in rows))


def _dims(type_: Type) -> tuple[Dim, ...]:
    return type_.dims if isinstance(type_, Tensor) else type_.tensor.dims


def _carries(param: Tensor, value: Tensor, outside: frozenset[str]) -> bool:
    """Whether a carried value fits its parameter: an extent that changes is a symbol that the region has to itself."""
    if param.dtype is not value.dtype or param.rank != value.rank:
        return False
    own = (dims.symbol_name(dim) not in {None, *outside} for dim in param.dims)
    return all(free or dim == got for free, dim, got in zip(own, param.dims, value.dims))


def _loop(
    trips: np.ndarray, cond: np.ndarray, *rest: np.ndarray, attrs: Resolved, regions: Sequence[Region]
) -> tuple[np.ndarray, ...]:
    carried, scans = attrs["carried"], attrs["scans"]
    state, captures = list(rest[:carried]), rest[carried:]
    rows: list[list[np.ndarray]] = [[] for _ in range(scans)]
    iteration = 0
    while iteration < trips and cond:
        cond, *results = regions[0](np.array(iteration, np.int64), cond, *state, *captures)
        state = results[:carried]
        for column, row in zip(rows, results[carried:]):
            column.append(row)
        iteration += 1
    return (*state, *map(_stacked, rows, regions[0].types[1 + carried :]))


def _stacked(rows: Sequence[np.ndarray], type_: Tensor) -> np.ndarray:
    """The rows on a new first axis. Without an iteration only the region's types know the shape of a row."""
    if rows:
        return np.stack(rows)
    return np.zeros((0, *(dims.evaluate(dim, {}) for dim in type_.dims)), type_.dtype.numpy)


_SUM = "{ (%i : i64[], %go : bool[], %acc : f32[3], %x : f32[3]) %next = add(%acc, %x) yield %go, %next, %acc }"
_GROW = "{ (%i : i64[], %go : bool[], %acc : f32[T], %x : f32[2]) %next = concat(%acc, %x, axis=0) yield %go, %next }"
_STOP = (
    "{ (%i : i64[], %go : bool[], %n : i64[]) %next = add(%n, %n) %more = less(%next, @limit) yield %more, %next }\n"
    "const @limit : i64[] = 100"
)


def _sample(
    trips: int, cond: bool, rest: tuple[object, ...], region: str, error: str | None = None, **attrs: Attr
) -> Sample:
    given: dict[str, Attr] = {"carried": 1, "scans": 0, "length": 0}
    return Sample((np.array(trips), np.array(cond), *rest), given | attrs, (region,), error)


loop = OpDef(
    name="loop",
    doc="Runs its region for iteration 0, 1 ... while iteration < trip_count and the condition holds. The region gets "
    "(iteration i64, condition, carried values, captures) and yields (condition, carried values, scan outputs). "
    "Results: the last carried values, then each scan output stacked over the iterations on a new first axis of "
    "extent `length`. `carried` and `scans` count them. An extent that changes from iteration to iteration is a "
    "symbol of the region's own.",
    operands=("trip_count", "cond", "carried_and_captures*"),
    results=("ys*",),
    regions=("body",),
    infer=_infer_loop,
    reference=_loop,
    samples=lambda: [
        _sample(4, True, (("f32", (3,)), ("f32", (3,))), _SUM, scans=1, length=4),
        _sample(0, True, (("f32", (3,)), ("f32", (3,))), _SUM, scans=1, length=0),
        _sample(5, False, (("f32", (3,)), ("f32", (3,))), _SUM, scans=1, length=0),
        _sample(-1, True, (("f32", (3,)), ("f32", (3,))), _SUM, scans=1, length=0),
        _sample(3, True, (("f32", (1,)), ("f32", (2,))), _GROW),
        _sample(2**62, True, (np.array(3),), _STOP),
        _sample(4, True, (("f32", (3,)),), _SUM, "number does not fit", scans=1),
        _sample(4, True, (("f32", (2,)), ("f32", (3,))), _SUM, "enters the region", scans=1),
        _sample(4, True, (("f32", (3,)), ("f32", (3,))), _SUM, "carried is out of range", carried=3),
        _sample(4, True, (("f32", (3,)), ("f32", (3,))), _SUM, "results of the region"),
    ],
    attrs=(AttrDef("carried", "int"), AttrDef("scans", "int"), AttrDef("length", "dim", 0)),
    traits=_REGION,
)

OPS = (fused, if_, loop)
