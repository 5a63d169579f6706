"""Layout: convolutions on channel blocks of 16, matmuls on packed panels.

`convert` rewrites an op to its blocked form between an explicit `pack` and `unpack`; `push` moves every `unpack`
outward through ops that work on blocks just as well; a `pack` of an `unpack` is nothing. What remains at the borders is
real work, visible in the graph.

The padding lanes of the last block hold anything. No op reads them: a blocked convolution knows its real channel count,
element-wise ops and windows keep lanes apart, and `unpack` drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from relume import ops
from relume.base.dims import Dim
from relume.base.dtypes import f32
from relume.base.targets import BLOCK
from relume.graph.builder import Builder
from relume.graph.opdef import OpDef, Trait
from relume.graph.passes import graph_pass
from relume.graph.rewriter import Rewriter
from relume.graph.types import Constant, Graph, Node, Value
from relume.passes import winograd
from relume.passes.derive import steady
from relume.passes.fold import constant_values

Sources = Sequence[Node | None]
"""For each operand, the unpack that made it, or None."""

Convert = Callable[..., Value | None]
"""(builder, node) -> the new value, or None where there is no blocked form. The weights (operand 1) are static."""

Push = Callable[..., Value | None]
"""(builder, node, sources) -> the new value, or None where the unpack stays in front."""

FEW = 8
"""Channels that are not worth a block: the input of a first layer, and a few maps that something else has made, are
read as they lie. In blocks they would take twice the memory at least."""

_AXIS = 1
"""The channel axis of every tensor that is blocked."""


@graph_pass()
def layout(graph: Graph) -> Graph:
    """Moves convolutions and matmuls of weights that need packing once only (constants, and what is `derive.steady`)
    to their blocked forms and cancels what meets.

    before:  %a = conv(%x, @w); %b = relu(%a); %c = conv(%b, @v)
    after:   %p = pack(%x, axis=1, block=16); %a = conv_blocked(%p, @w'); %b = relu(%a); %c = conv_blocked(%b, @v')
             %y = unpack(%c, axis=1, size=..)
    """
    return _read_few(_push_unpacks(_convert(graph)))


def _convert(graph: Graph) -> Graph:
    """Rewrites every convolution and matmul that has a blocked form, and weights worth packing."""
    rewriter = Rewriter(graph, "layout")
    kept = steady(graph) | constant_values(graph).keys()
    for node in graph.nodes:
        convert = _CONVERT.get(node.op)
        if convert and (isinstance(node.operands[1], Constant) or node.operands[1] in kept):
            rewriter.attempt(node, partial(convert, node=node))
    return rewriter.finish()


def _push_unpacks(graph: Graph) -> Graph:
    """Moves unpacks outward, until each has met a pack or a border.

    One sweep does it: what feeds a node comes before it, and has its unpack behind it by then.
    """
    rewriter = Rewriter(graph, "layout")
    for node in graph.nodes:
        push = _push_of(node)
        if push is None:
            continue
        sources = [_unpacked(rewriter.producer(value)) for value in node.operands]
        covers = list(dict.fromkeys(source for source in sources if source))
        if covers:
            rewriter.attempt(node, partial(push, node=node, sources=sources), covers)
    return rewriter.finish()


def _read_few(graph: Graph) -> Graph:
    """conv_blocked(pack(x)) -> conv_blocked(x) where x has a few channels only: packed they would be mostly padding."""
    rewriter = Rewriter(graph, "layout")
    packs = {node.result: node for node in graph.nodes if node.op is ops.pack}
    for node in graph.nodes:
        pack = packs.get(node.operands[0]) if node.op is ops.conv_blocked else None
        if pack is not None and node.attrs["channels"] <= FEW:
            with rewriter.replacing(node, pack) as build:
                build.give(build.apply(node.op, *pack.operands, *node.operands[1:], **node.attrs))
    return rewriter.finish()


# --- convert --------------------------------------------------------------------------------------------------------


def _conv(build: Builder, node: Node) -> Value | None:
    """conv(x, w, b) -> unpack(conv_blocked(pack(x), pack(w), pack(b))), or the depthwise or the Winograd form of it"""
    x, w, *bias = node.operands
    if node.result.tensor.rank != 4 or not w.dtype.is_float:
        return None
    out_channels, groups = w.dims[0], node.attrs["groups"]
    window = {name: node.attrs[name] for name in ("strides", "pads", "dilations")}
    depthwise = groups == out_channels == x.dims[1] and groups > 1
    if groups != 1 and not depthwise:
        return None
    packed = build.apply(ops.pack, x, axis=_AXIS, block=BLOCK)
    biases = [build.apply(ops.pack, b, axis=0, block=BLOCK) for b in bias]
    if depthwise:
        flat = build.apply(ops.reshape, w, dims=(out_channels, *w.dims[2:]))
        weights = build.apply(ops.pack, flat, axis=0, block=BLOCK)
        y = build.apply(ops.depthwise_blocked, packed, weights, *biases, **window)
    elif tile := _winograd_tile(node):
        transformed = build.apply(ops.winograd_weights, w, tile=tile)
        weights = build.apply(ops.pack, transformed, axis=0, block=BLOCK)
        pads = {"pads": window["pads"]}
        y = build.apply(ops.conv_winograd, packed, weights, *biases, **pads, channels=w.dims[1], tile=tile)
    else:
        weights = build.apply(ops.pack, w, axis=0, block=BLOCK)
        outputs = out_channels if isinstance(out_channels, int) else 0
        counts = {"channels": w.dims[1], "out_channels": outputs}
        y = build.apply(ops.conv_blocked, packed, weights, *biases, **{**window, **counts})
    return build.apply(ops.unpack, y, axis=_AXIS, size=out_channels)


def _winograd_tile(node: Node) -> int | None:
    """The tiles of a convolution in one group that Winograd's algorithm is for, and worth it; else None."""
    w = node.operands[1]
    outputs, channels, *window = w.dims
    steps = (*node.attrs["strides"], *node.attrs["dilations"])
    if w.dtype is not f32 or window != [3, 3] or set(steps) != {1}:
        return None
    assert isinstance(channels, int) and isinstance(outputs, int)
    return winograd.tile(channels, outputs, node.result.dims[2:])


def _matmul(build: Builder, node: Node) -> Value | None:
    """matmul(a, b) -> matmul_packed(a, panels(b))"""
    a, b = node.operands
    if b.tensor.rank != 2 or not b.dtype.is_float:
        return None
    panels = build.apply(ops.pack, build.apply(ops.transpose, b, perm=(1, 0)), axis=0, block=BLOCK)  # One copy.
    return build.apply(ops.matmul_packed, a, panels, n=b.dims[1])


# --- push -----------------------------------------------------------------------------------------------------------


def _unpacked(node: Node | None) -> Node | None:
    """A node, if it unpacks channel blocks."""
    if node is None or node.op is not ops.unpack or node.attrs["axis"] != _AXIS or node.operands[0].dims[-1] != BLOCK:
        return None
    return node if node.operands[0].tensor.rank == 5 else None


def _cancel(build: Builder, node: Node, sources: Sources) -> Value | None:
    """pack(unpack(x)) -> x"""
    (source,) = sources
    return source.operands[0] if source and (node.attrs["axis"], node.attrs["block"]) == (_AXIS, BLOCK) else None


def _push_elementwise(build: Builder, node: Node, sources: Sources) -> Value | None:
    """f(unpack(x), c) -> unpack(f(x, pack(c)))"""
    if node.result.tensor.rank != 4:
        return None
    channels = node.result.dims[_AXIS]
    if any(source and source.attrs["size"] != channels for source in sources):
        return None  # One channel for all: its block cannot be spread over the others' lanes.
    for value, source in zip(node.operands, sources):
        # A full-size operand in plain layout would have to be packed: no gain.
        if source is None and not isinstance(value, Constant) and value.dims == node.result.dims:
            return None
    operands = [
        source.operands[0] if source else _blocked(build, value, channels)
        for value, source in zip(node.operands, sources)
    ]
    y = build.apply(node.op, *operands, **node.attrs)
    return build.apply(ops.unpack, y, axis=_AXIS, size=channels)


def _blocked(build: Builder, value: Value, channels: Dim) -> Value:
    """A broadcast operand [.., C|1, .., ..] with the channel block as its last axis."""
    if value.tensor.elements == 1 and value.tensor.rank <= 1:
        return value
    full = (1,) * (4 - value.tensor.rank) + value.dims
    if full != value.dims:
        value = build.apply(ops.reshape, value, dims=full)
    if full[_AXIS] == channels and channels != 1:
        return build.apply(ops.pack, value, axis=_AXIS, block=BLOCK)
    return build.apply(ops.reshape, value, dims=(*full, 1))


def _push_window(build: Builder, node: Node, sources: Sources) -> Value | None:
    """max_pool(unpack(x)) -> unpack(max_pool(x, blocked=True))"""
    (source,) = sources
    assert source is not None
    y = build.apply(node.op, source.operands[0], **{**node.attrs, "blocked": True})
    return build.apply(ops.unpack, y, axis=_AXIS, size=source.attrs["size"])


def _push_pool(build: Builder, node: Node, sources: Sources) -> Value | None:
    """reduce(unpack(x), axes=[2,3], keep) -> unpack(reduce(x, axes=[2,3], keep))"""
    (source,) = sources
    if source is None or tuple(node.attrs["axes"]) != (2, 3) or not node.attrs["keep"]:
        return None
    y = build.apply(node.op, source.operands[0], **node.attrs)
    return build.apply(ops.unpack, y, axis=_AXIS, size=source.attrs["size"])


def _push_gather(build: Builder, node: Node, sources: Sources) -> Value | None:
    """gather(unpack(x), rows or columns) -> unpack(gather(x, rows or columns))"""
    source, axis = sources[0], node.attrs["axis"]
    if source is None or axis not in (2, 3) or node.operands[1].tensor.rank != 1:
        return None
    y = build.apply(node.op, source.operands[0], node.operands[1], axis=axis)
    return build.apply(ops.unpack, y, axis=_AXIS, size=source.attrs["size"])


def _push_concat(build: Builder, node: Node, sources: Sources) -> Value | None:
    """concat(unpack(x), unpack(y)) over channels -> unpack(concat(x, y)), where all but the last fill their blocks"""
    sizes = [source.attrs["size"] for source in sources if source]
    if (
        node.attrs["axis"] != _AXIS
        or len(sizes) != len(sources)
        or any(not isinstance(size, int) or size % BLOCK for size in sizes[:-1])
    ):
        return None
    y = build.apply(ops.concat, *(source.operands[0] for source in sources if source), axis=_AXIS)
    return build.apply(ops.unpack, y, axis=_AXIS, size=sum(sizes))


def _push_slice(build: Builder, node: Node, sources: Sources) -> Value | None:
    """slice(unpack(x)) -> unpack(slice(x)), where it takes whole blocks of channels"""
    (source,) = sources
    assert source is not None
    size, starts, stops, steps = source.attrs["size"], *(node.attrs[name] for name in ("starts", "stops", "steps"))
    start, stop = starts[_AXIS], stops[_AXIS]
    known = isinstance(size, int) and isinstance(start, int) and isinstance(stop, int) and steps[_AXIS] == 1
    if not known or start % BLOCK or (stop % BLOCK and stop != size):
        return None
    x = source.operands[0]

    def blocked(values: Sequence[Dim], channel: Dim, lane: Dim) -> tuple[Dim, ...]:
        return (values[0], channel, *values[2:], lane)

    y = build.apply(
        node.op,
        x,
        starts=blocked(starts, start // BLOCK, 0),
        stops=blocked(stops, -(-stop // BLOCK), BLOCK),
        steps=blocked(steps, 1, 1),
    )
    return build.apply(ops.unpack, y, axis=_AXIS, size=stop - start)


def _push_pad(build: Builder, node: Node, sources: Sources) -> Value | None:
    """pad(unpack(x)) -> unpack(pad(x)), where it adds no channels"""
    (source,) = sources
    assert source is not None
    pads, rank = node.attrs["pads"], node.result.tensor.rank
    before, after = pads[:rank], pads[rank:]
    if before[_AXIS] != 0 or after[_AXIS] != 0:
        return None
    y = build.apply(node.op, source.operands[0], **{**node.attrs, "pads": (*before, 0, *after, 0)})
    return build.apply(ops.unpack, y, axis=_AXIS, size=source.attrs["size"])


_CONVERT: Mapping[OpDef, Convert] = {ops.conv: _conv, ops.matmul: _matmul}

_PUSH: Mapping[OpDef, Push] = {
    ops.pack: _cancel,
    ops.max_pool: _push_window,
    ops.avg_pool: _push_window,
    ops.reduce_mean: _push_pool,
    ops.reduce_sum: _push_pool,
    ops.reduce_max: _push_pool,
    ops.reduce_min: _push_pool,
    ops.gather: _push_gather,
    ops.concat: _push_concat,
    ops.slice_: _push_slice,
    ops.pad: _push_pad,
}


def _push_of(node: Node) -> Push | None:
    return _push_elementwise if node.op.has(Trait.ELEMENTWISE) else _PUSH.get(node.op)
