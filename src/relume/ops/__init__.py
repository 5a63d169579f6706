"""The ops: what a graph can say. `OPS` is the registry; each op is also an attribute of this package.

An attribute has the op's name, with a trailing underscore where that is a keyword or builtin of Python: `ops.add`,
`ops.and_`, `ops.max_`. How to add one: `docs/adding-an-op.md`. All of them with their facets: `docs/ops.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from relume.graph.opdef import OpDef
from relume.ops import (
    along,
    bits,
    composite,
    control,
    convolution,
    elementwise,
    index,
    linalg,
    quant,
    random,
    reduce,
    shape,
    state,
    window,
    winograd,
)
from relume.ops.along import cumulative, top_k
from relume.ops.bits import bit_and, bit_not, bit_or, bit_xor, bitcast, shift_left, shift_right
from relume.ops.composite import batch_norm, gelu, layer_norm, softmax
from relume.ops.control import fused, if_, loop
from relume.ops.convolution import conv, conv_blocked, depthwise_blocked
from relume.ops.elementwise import (
    abs_,
    add,
    and_,
    atan,
    cast,
    ceil,
    cos,
    div,
    equal,
    erf,
    exp,
    expm1,
    floor,
    greater,
    less,
    log,
    log1p,
    max_,
    min_,
    mul,
    neg,
    not_,
    or_,
    pow_,
    reciprocal,
    relu,
    rem,
    round_,
    select,
    sigmoid,
    sign,
    sin,
    sqrt,
    sub,
    tanh,
)
from relume.ops.index import gather, gather_nd, iota, scatter_nd
from relume.ops.linalg import matmul, matmul_packed
from relume.ops.quant import dequantize, quantize
from relume.ops.random import random_uniform
from relume.ops.reduce import argmax, reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum
from relume.ops.shape import broadcast, concat, extents, pack, pad, reshape, slice_, transpose, unpack
from relume.ops.state import scatter_add, scatter_update, state_read, state_write
from relume.ops.window import argmax_pool, avg_pool, max_pool, sum_pool
from relume.ops.winograd import conv_winograd, winograd_weights

FAMILIES: tuple[ModuleType, ...] = (
    elementwise,
    bits,
    reduce,
    along,
    linalg,
    convolution,
    winograd,
    window,
    shape,
    index,
    control,
    state,
    quant,
    random,
    composite,
)

OPS: Mapping[str, OpDef] = MappingProxyType({op.name: op for family in FAMILIES for op in family.OPS})
"""Every op by its name, family by family."""

__all__ = [
    "FAMILIES", "OPS",
    "abs_", "add", "and_", "argmax", "argmax_pool", "atan", "avg_pool", "batch_norm", "bit_and", "bit_not", "bit_or",
    "bit_xor", "bitcast", "broadcast", "cast", "ceil", "concat", "conv", "conv_blocked", "conv_winograd", "cos",
    "cumulative", "depthwise_blocked", "dequantize", "div", "equal", "erf", "exp", "expm1", "extents", "floor", "fused",
    "gather", "gather_nd", "gelu", "greater", "if_", "iota", "layer_norm", "less", "log", "log1p", "loop", "matmul",
    "matmul_packed", "max_", "max_pool", "min_", "mul", "neg", "not_", "or_", "pack", "pad", "pow_", "quantize",
    "random_uniform", "reciprocal", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "relu",
    "rem", "reshape", "round_", "scatter_add", "scatter_nd", "scatter_update", "select", "shift_left", "shift_right",
    "sigmoid", "sign", "sin", "slice_", "softmax", "sqrt", "state_read", "state_write", "sub", "sum_pool", "tanh",
    "top_k", "transpose", "unpack", "winograd_weights",
]  # fmt: skip
