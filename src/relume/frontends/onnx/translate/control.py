"""If and Loop. What their graphs take from outside is passed to the regions as captures."""

from __future__ import annotations

from relume.base import dims, dtypes
from relume.base.dims import Dim, not_negative
from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.structure import GraphDef
from relume.graph.types import Graph, Tensor, Value

_VERSIONS = (1, 11, 13, 16, 19, 21, 23, 24, 25)
_FOREVER = 2**63 - 1


def _scalar(call: Call, value: Value) -> Value:
    """ONNX allows a vector of one element where it means a scalar."""
    if value.tensor.elements != 1:
        call.wrong("one element is wanted", "a scalar", value.type)
    return call.reshape(value, ())


@translates("If", versions=_VERSIONS)
def if_(call: Call) -> tuple[Value, ...]:
    """A known condition leaves one branch, which may then have types of its own."""
    condition = _scalar(call, call.input(0))
    branches = (call.attr("then_branch", GraphDef), call.attr("else_branch", GraphDef))
    counts = [len(branch.outputs) for branch in branches]
    if counts != [len(call.node.outputs)] * 2:
        call.wrong(
            "the branches of If yield another number of outputs", len(call.node.outputs), f"{counts[0]} and {counts[1]}"
        )
    for branch in branches:
        if branch.inputs:
            call.wrong("a branch of If has no inputs", "none", list(branch.inputs))
    known = call.numbers(condition)
    if known is not None:
        return call.emitter.inline(branches[0 if known else 1], ())
    captures, regions = call.emitter.regions(branches, ((), ()))
    for index, (a, b) in enumerate(zip(regions[0].results, regions[1].results)):
        if a.type != b.type:
            call.unsupported(f"its branches give output {index} different types: {a.type} and {b.type}")
    return call.emit("if", condition, *captures, regions=regions)


@translates("Loop", versions=_VERSIONS)
def loop(call: Call) -> tuple[Value, ...]:
    """Carried values keep their types. Scan outputs need a trip count that is known and a condition that stays true:
    else their length is data."""
    body = call.attr("body", GraphDef)
    trips, condition = call.optional(0), call.optional(1)
    trips = call.constant(_FOREVER, dtypes.i64) if trips is None else call.cast(_scalar(call, trips), dtypes.i64)
    condition = call.constant(True, dtypes.bool_) if condition is None else _scalar(call, condition)
    carried = [call.input(index) for index in range(2, len(call.inputs))]
    if len(body.inputs) != 2 + len(carried):
        call.wrong("the body of Loop takes another number of inputs", 2 + len(carried), len(body.inputs))
    scans = len(body.outputs) - 1 - len(carried)
    if scans < 0 or len(call.node.outputs) > len(carried) + scans:
        call.wrong("the body of Loop yields another number of outputs", 1 + len(call.node.outputs), len(body.outputs))
    params = (Tensor(dtypes.i64, ()), Tensor(dtypes.bool_, ()), *(value.type for value in carried))
    captures, (region,) = call.emitter.regions((body,), (params,))
    region = _scalar_condition(call, region)
    for index, (value, result) in enumerate(zip(carried, region.results[1:])):
        if value.type != result.type:
            call.unsupported(f"its carried value {index} changes its type from {value.type} to {result.type}")
    return call.emit(
        "loop",
        trips,
        condition,
        *carried,
        *captures,
        regions=(region,),
        carried=len(carried),
        scans=scans,
        length=_length(call, trips, condition, region) if scans else 0,
    )


def _scalar_condition(call: Call, region: Graph) -> Graph:
    if region.results[0].type != Tensor(dtypes.bool_, ()):
        call.unsupported(f"its body yields a condition of type {region.results[0].type}, not a scalar")
    return region


def _length(call: Call, trips: Value, condition: Value, region: Graph) -> Dim:
    """The number of iterations, where it is known before the loop runs."""
    starts, goes_on = call.numbers(condition), region.results[0]
    if starts is not None and not starts:
        return 0
    stays = goes_on is region.params[1]
    if not stays:
        known = call.numbers(goes_on)
        stays = known is not None and bool(known)
    (count,) = call.dims(trips, "the number of iterations, which its scan outputs have as an extent,")
    if starts is None or not stays:
        call.unsupported("its scan outputs have as many rows as there are iterations, which its condition decides")
    if count == _FOREVER:
        call.unsupported("its scan outputs have as many rows as there are iterations, and nothing ends them")
    return count if not_negative(count) else dims.maximum(count, 0)
