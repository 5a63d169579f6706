"""Running totals and ranks along one axis."""

from __future__ import annotations

from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value


@translates("CumSum", versions=(11, 14))
@translates("CumProd", versions=(26,))
def cumulative(call: Call) -> Value:
    x = call.input(0)
    axis = call.normal_axis(call.ints(call.input(1), "the axis")[0], x.tensor.rank)
    exclusive, reverse = bool(call.integer("exclusive")), bool(call.integer("reverse"))
    kind = call.node.op.removeprefix("Cum").lower()
    return call.apply("cumulative", x, axis=axis, kind=kind, exclusive=exclusive, reverse=reverse)


@translates("TopK", versions=(1, 10, 11, 24))
def top_k(call: Call) -> tuple[Value, ...]:
    """Always in order, which is as good as any where the node does not ask for one."""
    x = call.input(0)
    k = call.integer("k") if call.version == 1 else call.dims(call.input(1), "the number of results")[0]
    largest = bool(call.integer("largest")) if call.has("largest") else True
    return call.emit("top_k", x, axis=call.axis(x.tensor.rank), k=k, largest=largest)
