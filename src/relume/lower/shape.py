"""Data movement: views where memory allows it, else strided copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from relume.base import dims
from relume.base.dims import Dim
from relume.graph.types import Value
from relume.lower import views
from relume.lower.groups import Group, attr, axis_of
from relume.lower.lowering import Lower, Lowering, NotSupported
from relume.ops.arithmetic import narrow
from relume.program.types import OUT, Operand, View


def _dims(group: Group, name: str) -> tuple[Dim, ...]:
    return cast("tuple[Dim, ...]", attr(group, name))


# --- views ----------------------------------------------------------------------------------------------------------


def reshape(low: Lowering, group: Group) -> None:
    """A view where the old axes between two cuts form runs, else of a copy in C order."""
    (x,), (y,) = group.operands, group.targets
    view = views.reshaped(low.view(x), y.dims)
    low.bind(y, view or _reshaped(low.in_order(x), y))


def _reshaped(view: View, value: Value) -> View:
    found = views.reshaped(view, value.dims)
    assert found is not None, "a view in C order takes any shape"
    return found


def transpose(low: Lowering, group: Group) -> None:
    """A view."""
    low.bind(
        group.targets[0], views.transposed(low.view(group.operands[0]), cast("tuple[int, ...]", attr(group, "perm")))
    )


def broadcast(low: Lowering, group: Group) -> None:
    """A view with strides of 0."""
    low.bind(group.targets[0], views.broadcast(low.view(group.operands[0]), group.targets[0].dims))


def slice_(low: Lowering, group: Group) -> None:
    """A view."""
    view = low.view(group.operands[0])
    for axis, (start, step, extent) in enumerate(
        zip(_dims(group, "starts"), cast("tuple[int, ...]", attr(group, "steps")), group.targets[0].dims)
    ):
        view = views.window(view, axis, start, extent, step)
    low.bind(group.targets[0], view)


# --- copies ---------------------------------------------------------------------------------------------------------


def concat(low: Lowering, group: Group) -> None:
    """One copy per operand that is not there yet, each into its part of the result."""
    axis = axis_of(group, "axis", len(group.targets[0].dims))
    out, at = low.result(group.targets[0]), cast(Dim, 0)
    for x in group.operands:
        part = views.window(out, axis, at, x.dims[axis])
        if x.dims[axis] != 0 and low.view(x) != part:
            low.copy(low.view(x), part)
        at = at + x.dims[axis]


def pad(low: Lowering, group: Group) -> None:
    """A fill and a copy into the middle."""
    (x,), (y,) = group.operands, group.targets
    out = low.result(y)
    pads = _dims(group, "pads")
    if any(pad != 0 for pad in pads):
        low.fill(out, narrow(attr(group, "value"), y.dtype.numpy)[()])  # type: ignore[arg-type]
    inside = out
    for axis, (dim, before) in enumerate(zip(x.dims, pads)):
        inside = views.window(inside, axis, before, dim)
    low.copy(low.view(x), inside)


def pack_into(low: Lowering, source: View, axis: int, block: int, target: View) -> None:
    """Copies an axis into blocks: whole blocks at once, then what is left, then zeros after it.

    `source` is [.., C, ..], `target` [.., ceil(C / block), .., block] with any strides.
    """
    whole, rest = dims.floordiv(source.dims[axis], block), dims.modulo(source.dims[axis], block)
    missing = dims.modulo(source.dims[axis] * -1, block)
    if whole != 0:
        low.copy(views.split(source, axis, block), views.window(target, axis, 0, whole))
    if rest == 0:
        return
    lanes = len(source.dims) - 1
    ragged = views.lane(target, axis, whole)  # [.., without the axis, .., block]
    last = views.window(source, axis, whole * block, rest)
    order = [other for other in range(len(source.dims)) if other != axis]
    low.copy(views.transposed(last, (*order, axis)), views.window(ragged, lanes, 0, rest))
    if missing != 0:
        low.fill(views.window(ragged, lanes, rest, missing), 0)


def pack(low: Lowering, group: Group) -> None:
    """Strided copies into blocks."""
    (x,), (y,) = group.operands, group.targets
    axis, block = axis_of(group, "axis", len(x.dims)), cast(int, attr(group, "block"))
    pack_into(low, low.view(x), axis, block, low.result(y))


def unpack(low: Lowering, group: Group) -> None:
    """Strided copies out of blocks: the whole ones at once, then the rest."""
    (x,), (y,) = group.operands, group.targets
    axis = axis_of(group, "axis", len(y.dims))
    block = x.dims[-1]
    if not isinstance(block, int):
        raise NotSupported(f"the blocks have {block} lanes, which must be known at compile time")
    source, target = low.view(x), low.result(y)
    size, lanes = y.dims[axis], len(y.dims) - 1
    whole, rest = dims.floordiv(size, block), dims.modulo(size, block)
    if whole != 0:
        low.copy(views.window(source, axis, 0, whole), views.split(target, axis, block))
    if rest != 0:
        ragged = views.window(views.lane(source, axis, whole), lanes, 0, rest)
        order = [other for other in range(len(y.dims)) if other != axis]
        low.copy(ragged, views.transposed(views.window(target, axis, whole * block, rest), (*order, axis)))


def extents(low: Lowering, group: Group) -> None:
    """Extents that become data."""
    low.emit("extents", [Operand(OUT, low.result(group.targets[0]))], scalars=_dims(group, "dims"))


LOWERINGS: Mapping[str, Lower] = {
    "reshape": reshape,
    "transpose": transpose,
    "broadcast": broadcast,
    "slice": slice_,
    "concat": concat,
    "pad": pad,
    "pack": pack,
    "unpack": unpack,
    "extents": extents,
}
