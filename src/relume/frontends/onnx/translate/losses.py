"""Losses. SoftmaxCrossEntropyLoss comes here too, through the function of its schema."""

from __future__ import annotations

from relume.frontends.onnx.calls import Call, translates
from relume.frontends.onnx.translate.index import from_front
from relume.graph.types import Value


@translates("NegativeLogLikelihoodLoss", versions=(12, 13, 22))
def negative_log_likelihood(call: Call) -> Value:
    """-weight[target] * x at the class target, of x [N, C, *S] and target [N, *S]; 0 where that is `ignore_index`.

    The function of the schema counts a negative class from the end, and repeats a target of one row.
    """
    x, target, weight = call.input(0), call.input(1), call.optional(2)
    rank = x.tensor.rank
    if rank < 2 or target.tensor.rank != rank - 1:
        call.wrong("the ranks of the loss do not fit", "scores [N,C,*S] and classes [N,*S]", f"{x.type}, {target.type}")
    classes, shape = x.dims[1], (x.dims[0], *x.dims[2:])
    target = call.shaped(target, shape)
    ignored = None
    place = from_front(call, target, classes)
    if call.has("ignore_index"):
        ignored = call.apply("equal", target, call.integer("ignore_index"))
        place = call.apply("select", ignored, 0, place)
    order = (0, *range(2, rank), 1)
    loss = call.apply("neg", call.apply("gather_nd", call.transpose(x, order), place, batch=rank - 1))
    share = None
    if weight is not None:
        share = call.apply("gather", call.reshape(weight, (classes,)), place, axis=0)
        loss = call.apply("mul", loss, share)
    if ignored is not None:
        loss = call.apply("select", ignored, 0.0, loss)
        ones = call.apply("broadcast", call.constant(1, x.dtype), dims=shape) if share is None else share
        share = call.apply("select", ignored, 0.0, ones)
    reduction, axes = call.attr("reduction", str), tuple(range(rank - 1))
    if reduction == "none":
        return loss
    if reduction not in ("sum", "mean"):
        call.wrong("the loss has no such reduction", "none, sum or mean", reduction)
    if reduction == "mean" and share is None:
        return call.apply("reduce_mean", loss, axes=axes, keep=False)
    total = call.apply("reduce_sum", loss, axes=axes, keep=False)
    if reduction == "sum" or share is None:
        return total
    return call.apply("div", total, call.apply("reduce_sum", share, axes=axes, keep=False))
