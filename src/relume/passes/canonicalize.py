"""Canonical forms: rows of algebra, each checked by the reference on both sides.

Where a rule computes with constants it calls the op's own reference, as folding does.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from relume import ops
from relume.base import dtypes
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


def _scaled_weights(build: Builder, w: Constant, scale: Constant) -> Value:
    """w [O,...] times scale [O], to be folded where the weights are packed: no second copy of all of them meanwhile."""
    return build.apply(ops.mul, w, _along_first(build, scale, w))


def _scaled_again(build: Builder, w: Constant, s: Constant, scale: Constant) -> Value:
    """w * s, whose s broadcasts, times scale [O]."""
    return build.apply(ops.mul, w, _computed(build, ops.mul, s, _along_first(build, scale, w)))


def _along_first(build: Builder, vector: Constant, like: Constant) -> Constant:
    """[O] as [O,1,1...] of the rank of `like`."""
    return build.constant(vector.data.reshape(-1, *(1,) * (like.data.ndim - 1)))


def _joined_pads(pad: Node, conv: Node) -> tuple[int, ...] | None:
    """The pads of a convolution of something padded; None where it is padded with more than zeros around pictures."""
    added, rank = pad.attrs["pads"], pad.result.tensor.rank
    outside = (*added[:2], *added[rank : rank + 2])
    spatial = (*added[2:rank], *added[rank + 2 :])
    if pad.attrs["value"] != 0 or any(dim != 0 for dim in outside):
        return None
    if not all(isinstance(dim, int) and dim >= 0 for dim in spatial):  # Negative ones cut, and what they cut is gone.
        return None
    return tuple(own + more for own, more in zip(conv.attrs["pads"], spatial))


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


# pow(x, @2) -> mul(x, x), for floats of a shape that the exponent does not change
@rule(
    "node=pow(x, @two)",
    REASSOCIATES,
    example="""func @f(%x : f32[3,2]) { %y = pow(%x, @two) return %y }
    const @two : f32[1] = [2]""",
)
def square(build: Builder, x: Value, two: Constant, node: Node) -> Value | None:
    # A product is rounded once; a power is a logarithm and an exponential, some thirty steps, and no nearer.
    if not x.dtype.is_float or two.data.size != 1 or two.data.reshape(()) != 2 or x.type != node.result.type:
        return None
    return build.apply(ops.mul, x, x)


# select(c, @1, @0) -> cast(c), where the constants are one element
@rule(
    "node=select(c, @one, @zero)",
    EXACT,
    example="""func @f(%c : bool[3]) { %y = select(%c, @one, @zero) return %y }
    const @one : f32[] = 1
    const @zero : f32[] = 0""",
)
def truth_as_number(build: Builder, c: Value, one: Constant, zero: Constant, node: Node) -> Value | None:
    numbers = [constant.data.reshape(-1) for constant in (one, zero)]
    if any(number.size != 1 for number in numbers) or c.dims != node.result.dims or node.result.dtype.kind == "bool":
        return None
    if [number.tobytes() for number in numbers] != [np.asarray(n, one.dtype.numpy).tobytes() for n in (1, 0)]:
        return None
    return build.apply(ops.cast, c, to=one.dtype)


# matmul(cast(equal(x, @[0 .. K-1])), @w) -> gather(@[w; 0], x if 0 <= x < K else K): a product with a one-hot matrix
@rule(
    "matmul(hot=cast(equal(x, @numbers)), @w)",
    EXACT,
    single=("hot",),
    example="""func @f(%x : i32[3,2,1]) {
        %e = equal(%x, @numbers) %h = cast(%e, to=f32) %y = matmul(%h, @w) return %y
    }
    const @numbers : i32[1,4] = [[0, 1, 2, 3]]
    const @w : f32[4,5] = random(1)""",
)
def product_with_one_hot(build: Builder, x: Value, numbers: Constant, w: Constant, hot: Node) -> Value | None:
    # 1 * w is w, 0 * w is nothing for a finite w, and a sum from 0 on has no -0.0.
    depth = w.data.shape[0]
    if (
        x.dtype.is_float
        or not w.dtype.is_float
        or w.data.ndim != 2
        or hot.result.dtype is not w.dtype
        or numbers.data.size != depth
        or not np.array_equal(numbers.data.reshape(-1), np.arange(depth))
        or x.dims[-1:] != (1,)
        or hot.result.dims != (*x.dims[:-1], depth)
        or not np.isfinite(w.data).all()
    ):
        return None
    table = build.constant(np.concatenate([w.data, np.zeros_like(w.data[:1])]) + w.data.dtype.type(0))
    zero, beyond = (build.constant(np.asarray(n, np.int64)) for n in (0, depth))
    index = build.apply(ops.cast, build.apply(ops.reshape, x, dims=x.dims[:-1]), to=dtypes.i64)
    inside = build.apply(
        ops.and_, build.apply(ops.not_, build.apply(ops.less, index, zero)), build.apply(ops.less, index, beyond)
    )
    return build.apply(ops.gather, table, build.apply(ops.select, inside, index, beyond), axis=0)


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


# mul(conv(x, @w * @s), @c) -> conv(x, @w * @(s * c)): scaled before, and not folded yet
@rule(
    "mul(inner=conv(x, mul(@w, @s)), @c)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,2,4,4]) {
        %v = mul(@w, @s) %a = conv(%x, %v, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1)
        %y = mul(%a, @c) return %y
    }
    const @w : f32[3,2,3,3] = random(1)
    const @s : f32[3,1,1,1] = random(3)
    const @c : f32[1,3,1,1] = random(2)""",
)
def scale_of_scaled_conv(build: Builder, x: Value, w: Constant, s: Constant, c: Constant, inner: Node) -> Value | None:
    scale = _per_channel(build, c, inner.result)
    return None if scale is None else build.apply(ops.conv, x, _scaled_again(build, w, s, scale), **inner.attrs)


# mul(conv(x, @w * @s, @b), @c) -> conv(x, @w * @(s * c), @(b * c))
@rule(
    "mul(inner=conv(x, mul(@w, @s), @b), @c)",
    REASSOCIATES,
    single=("inner",),
    example="""func @f(%x : f32[1,2,4,4]) {
        %v = mul(@w, @s) %a = conv(%x, %v, @b, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1)
        %y = mul(%a, @c) return %y
    }
    const @w : f32[3,2,3,3] = random(1)
    const @s : f32[3,1,1,1] = random(3)
    const @b : f32[3] = random(4)
    const @c : f32[3,1,1] = random(2)""",
)
def scale_of_scaled_biased_conv(
    build: Builder, x: Value, w: Constant, s: Constant, b: Constant, c: Constant, inner: Node
) -> Value | None:
    scale = _per_channel(build, c, inner.result)
    if scale is None:
        return None
    weights, bias = _scaled_again(build, w, s, scale), _computed(build, ops.mul, b, scale)
    return build.apply(ops.conv, x, weights, bias, **inner.attrs)


# conv(pad(x, 0), w) -> conv(x, w), where the pads are of spatial axes
@rule(
    "inner=conv(outer=pad(x), w)",
    EXACT,
    example="""func @f(%x : f32[1,2,4,4]) {
        %a = pad(%x, pads=[0,0,1,0,0,0,1,2], value=0.0)
        %y = conv(%a, @w, strides=[2,2], pads=[0,1,0,0], dilations=[1,1], groups=1) return %y
    }
    const @w : f32[3,2,3,3] = random(1)""",
)
def pad_of_conv(build: Builder, x: Value, w: Value, outer: Node, inner: Node) -> Value | None:
    pads = _joined_pads(outer, inner)
    return None if pads is None else build.apply(ops.conv, x, w, **{**inner.attrs, "pads": pads})


# conv(pad(x, 0), w, b) -> conv(x, w, b), where the pads are of spatial axes
@rule(
    "inner=conv(outer=pad(x), w, b)",
    EXACT,
    example="""func @f(%x : f32[1,2,5]) {
        %a = pad(%x, pads=[0,0,1,0,0,2], value=0.0)
        %y = conv(%a, @w, @b, strides=[1], pads=[0,1], dilations=[1], groups=1) return %y
    }
    const @w : f32[3,2,3] = random(1)
    const @b : f32[3] = random(2)""",
)
def pad_of_biased_conv(build: Builder, x: Value, w: Value, b: Value, outer: Node, inner: Node) -> Value | None:
    pads = _joined_pads(outer, inner)
    return None if pads is None else build.apply(ops.conv, x, w, b, **{**inner.attrs, "pads": pads})


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
    divisor, scale = abs(float(c.data.reshape(()))), _computed(build, ops.div, d, c)
    size, least = np.abs(scale.data.astype(np.float64)), float(ml_dtypes.finfo(scale.data.dtype).smallest_normal)
    # Neither x / c nor d / c may leave the range in which one rounding is as good as another.
    ordinary = np.isfinite(size) & ((size >= least) | (d.data == 0))
    return build.apply(ops.mul, x, scale) if ordinary.all() and 2**-10 <= divisor <= 2**10 else None


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
    square,
    truth_as_number,
    product_with_one_hot,
    bias_of_conv,
    bias_of_biased_conv,
    scale_of_conv,
    scale_of_biased_conv,
    scale_of_scaled_conv,
    scale_of_scaled_biased_conv,
    pad_of_conv,
    pad_of_biased_conv,
    scale_of_quotient,
)


@graph_pass()
def canonicalize(graph: Graph) -> Graph:
    """Applies `RULES` until none fires.

    before:  %a = conv(%x, @w); %b = mul(%a, @s); %c = add(%b, @t); %y = relu(relu(%c))
    after:   %a = conv(%x, @ws, @t); %y = relu(%a)
    """
    return apply_rules(graph, RULES, "canonicalize")
