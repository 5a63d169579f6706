"""Canonical forms: rows of algebra, each checked by the reference on both sides.

Where a rule computes with constants it calls the op's own reference, as folding does.
"""

from __future__ import annotations

import numpy as np

from relume import ops
from relume.graph.builder import Builder
from relume.graph.opdef import OpDef
from relume.graph.passes import graph_pass
from relume.graph.rules import EXACT, REASSOCIATES, apply_rules, rule
from relume.graph.types import Constant, Graph, Node, Value


def _computed(build: Builder, op: OpDef, *constants: Constant) -> Constant:
    """`op` of constants, now."""
    with np.errstate(all="ignore"):
        (array,) = op.reference(*(constant.data for constant in constants), attrs={}, regions=())
    return build.constant(array)


def _per_channel(build: Builder, constant: Constant, like: Value) -> Constant | None:
    """A broadcast constant as a vector over axis 1 of `like`; None where it varies along another axis."""
    channels = like.dims[1]
    shape = (1,) * (like.tensor.rank - constant.data.ndim) + constant.data.shape
    if len(shape) != like.tensor.rank or not isinstance(channels, int):
        return None
    if any(extent != 1 for axis, extent in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return build.constant(np.broadcast_to(constant.data.reshape(shape[1]), (channels,)).copy())


def _scaled_weights(build: Builder, w: Constant, scale: Constant) -> Constant:
    """w [O,...] times scale [O]."""
    return _computed(build, ops.mul, w, build.constant(scale.data.reshape(-1, *(1,) * (w.data.ndim - 1))))


def _same_type(x: Value, node: Node) -> Value | None:
    """`x` where the node changes nothing about it."""
    return x if x.type == node.result.type else None


# relu(relu(x)) -> relu(x)
@rule("relu(relu(x))", EXACT, example="func @f(%x : f32[3]) { %a = relu(%x) %y = relu(%a) return %y }")
def relu_of_relu(build: Builder, x: Value) -> Value:
    return build.apply(ops.relu, x)


# neg(neg(x)) -> x
@rule("neg(neg(x))", EXACT, example="func @f(%x : f32[3]) { %a = neg(%x) %y = neg(%a) return %y }")
def neg_of_neg(build: Builder, x: Value) -> Value:
    return x


# not(not(x)) -> x
@rule("not(not(x))", EXACT, example="func @f(%x : bool[3]) { %a = not(%x) %y = not(%a) return %y }")
def not_of_not(build: Builder, x: Value) -> Value:
    return x


# cast(x, its own type) -> x
@rule("node=cast(x)", EXACT, example="func @f(%x : f32[3]) { %y = cast(%x, to=f32) return %y }")
def cast_to_itself(build: Builder, x: Value, node: Node) -> Value | None:
    return _same_type(x, node)


# reshape(x, its own extents) -> x
@rule("node=reshape(x)", EXACT, example="func @f(%x : f32[3]) { %y = reshape(%x, dims=[3]) return %y }")
def reshape_to_itself(build: Builder, x: Value, node: Node) -> Value | None:
    return _same_type(x, node)


# reshape(reshape(x, a), b) -> reshape(x, b)
@rule(
    "outer=reshape(reshape(x))",
    EXACT,
    example="func @f(%x : f32[6]) { %a = reshape(%x, dims=[2,3]) %y = reshape(%a, dims=[3,2]) return %y }",
)
def reshape_of_reshape(build: Builder, x: Value, outer: Node) -> Value:
    return build.apply(ops.reshape, x, dims=outer.attrs["dims"])


# broadcast(x, its own extents) -> x
@rule("node=broadcast(x)", EXACT, example="func @f(%x : f32[3]) { %y = broadcast(%x, dims=[3]) return %y }")
def broadcast_to_itself(build: Builder, x: Value, node: Node) -> Value | None:
    return _same_type(x, node)


# transpose(transpose(x, p), q) -> transpose(x, p after q)
@rule(
    "outer=transpose(inner=transpose(x))",
    EXACT,
    example="func @f(%x : f32[2,3,4]) { %a = transpose(%x, perm=[1,2,0]) %y = transpose(%a, perm=[1,0,2]) return %y }",
)
def transpose_of_transpose(build: Builder, x: Value, outer: Node, inner: Node) -> Value:
    perm = tuple(inner.attrs["perm"][axis] for axis in outer.attrs["perm"])  # type: ignore[index, union-attr]
    return build.apply(ops.transpose, x, perm=perm)


# transpose(x, the identity) -> x
@rule("node=transpose(x)", EXACT, example="func @f(%x : f32[2,3]) { %y = transpose(%x, perm=[0,1]) return %y }")
def transpose_to_itself(build: Builder, x: Value, node: Node) -> Value | None:
    perm = node.attrs["perm"]
    return x if perm == tuple(range(x.tensor.rank)) else None


# concat(x) -> x
@rule("concat(x)", EXACT, example="func @f(%x : f32[2,3]) { %y = concat(%x, axis=0) return %y }")
def concat_of_one(build: Builder, x: Value) -> Value:
    return x


# add(conv(x, w), @c) -> conv(x, w, @c), where c varies along channels only
@rule(
    "add(inner=conv(x, w), @c)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,2,4,4]) {
        %a = conv(%x, @w, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1) %y = add(%a, @c) return %y
    }
    const @w : f32[3,2,3,3] = random(1)
    const @c : f32[3,1,1] = random(2)""",
)
def bias_of_conv(build: Builder, x: Value, w: Value, c: Constant, inner: Node) -> Value | None:
    bias = _per_channel(build, c, inner.result)
    return None if bias is None else build.apply(ops.conv, x, w, bias, **inner.attrs)


# add(conv(x, w, @b), @c) -> conv(x, w, @(b + c))
@rule(
    "add(inner=conv(x, w, @b), @c)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,2,4,4]) {
        %a = conv(%x, @w, @b, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1) %y = add(%a, @c) return %y
    }
    const @w : f32[3,2,3,3] = random(1)
    const @b : f32[3] = random(2)
    const @c : f32[3,1,1] = random(3)""",
)
def bias_of_biased_conv(build: Builder, x: Value, w: Value, b: Constant, c: Constant, inner: Node) -> Value | None:
    bias = _per_channel(build, c, inner.result)
    return None if bias is None else build.apply(ops.conv, x, w, _computed(build, ops.add, b, bias), **inner.attrs)


# mul(conv(x, @w), @c) -> conv(x, @(w * c)), where c varies along channels only
@rule(
    "mul(inner=conv(x, @w), @c)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,2,4,4]) {
        %a = conv(%x, @w, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1) %y = mul(%a, @c) return %y
    }
    const @w : f32[3,2,3,3] = random(1)
    const @c : f32[1,3,1,1] = random(2)""",
)
def scale_of_conv(build: Builder, x: Value, w: Constant, c: Constant, inner: Node) -> Value | None:
    scale = _per_channel(build, c, inner.result)
    return None if scale is None else build.apply(ops.conv, x, _scaled_weights(build, w, scale), **inner.attrs)


# mul(conv(x, @w, @b), @c) -> conv(x, @(w * c), @(b * c))
@rule(
    "mul(inner=conv(x, @w, @b), @c)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,2,4,4]) {
        %a = conv(%x, @w, @b, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1) %y = mul(%a, @c) return %y
    }
    const @w : f32[3,2,3,3] = random(1)
    const @b : f32[3] = random(2)
    const @c : f32[3,1,1] = random(3)""",
)
def scale_of_biased_conv(build: Builder, x: Value, w: Constant, b: Constant, c: Constant, inner: Node) -> Value | None:
    scale = _per_channel(build, c, inner.result)
    if scale is None:
        return None
    weights, bias = _scaled_weights(build, w, scale), _computed(build, ops.mul, b, scale)
    return build.apply(ops.conv, x, weights, bias, **inner.attrs)


# mul(div(x, c), d) -> mul(x, d / c): what a hard swish and a scale behind it come to; a division costs ten products
@rule(
    "mul(inner=div(x, @c), @d)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,3,2,2]) { %a = div(%x, @c) %y = mul(%a, @d) return %y }
    const @c : f32[] = 6.0
    const @d : f32[1,3,1,1] = random(2)""",
)
def scale_of_quotient(build: Builder, x: Value, c: Constant, d: Constant) -> Value | None:
    if not x.dtype.is_float or c.tensor.elements != 1:
        return None
    scale = _computed(build, ops.div, d, c)
    return build.apply(ops.mul, x, scale) if np.isfinite(scale.data.astype(np.float64)).all() else None


RULES = (
    relu_of_relu,
    neg_of_neg,
    not_of_not,
    cast_to_itself,
    reshape_to_itself,
    reshape_of_reshape,
    broadcast_to_itself,
    transpose_to_itself,
    transpose_of_transpose,
    concat_of_one,
    bias_of_conv,
    bias_of_biased_conv,
    scale_of_conv,
    scale_of_biased_conv,
    scale_of_quotient,
)


@graph_pass()
def canonicalize(graph: Graph) -> Graph:
    """Applies `RULES` until none fires.

    before:  %a = conv(%x, @w); %b = mul(%a, @s); %c = add(%b, @t); %y = relu(relu(%c))
    after:   %a = conv(%x, @ws, @t); %y = relu(%a)
    """
    return apply_rules(graph, RULES, "canonicalize")
