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
)
from relume.ops.along import cumulative, top_k
from relume.ops.composite import batch_norm, gelu, layer_norm, softmax
from relume.ops.control import fused, if_, loop
from relume.ops.convolution import conv, conv_blocked, depthwise_blocked
from relume.ops.elementwise import (
    abs_,
    add,
    and_,
    cast,
    ceil,
    div,
    equal,
    erf,
    exp,
    floor,
    greater,
    less,
    log,
    max_,
    min_,
    mul,
    neg,
    not_,
    or_,
    pow_,
    reciprocal,
    relu,
    round_,
    select,
    sigmoid,
    sign,
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
from relume.ops.window import avg_pool, max_pool

FAMILIES: tuple[ModuleType, ...] = (
    elementwise,
    reduce,
    along,
    linalg,
    convolution,
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
    "abs_", "add", "and_", "argmax", "avg_pool", "batch_norm", "broadcast", "cast", "ceil", "concat", "conv",
    "conv_blocked", "cumulative", "depthwise_blocked", "dequantize", "div", "equal", "erf", "exp", "extents", "floor",
    "fused", "gather", "gather_nd", "gelu", "greater", "if_", "iota", "layer_norm", "less", "log", "loop", "matmul",
    "matmul_packed",
    "max_", "max_pool", "min_", "mul", "neg", "not_", "or_", "pack", "pad", "pow_", "quantize",
    "random_uniform", "reciprocal", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "relu",
    "reshape", "round_", "scatter_add", "scatter_nd", "scatter_update", "select", "sigmoid", "sign", "slice_",
    "softmax", "sqrt", "state_read", "state_write", "sub", "tanh", "top_k", "transpose", "unpack",
]  # fmt: skip
