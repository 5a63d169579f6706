"""Counting, and what is addressed by indices."""

from __future__ import annotations

from collections.abc import Mapping

from relume.base import dims
from relume.lower import views
from relume.lower.groups import Group, attr, axis_of
from relume.lower.lowering import Lower, Lowering
from relume.program.types import IN, INOUT, Operand, View


def iota(low: Lowering, group: Group) -> None:
    """The kernel counts along the one axis; the others repeat that."""
    (y,) = group.targets
    axis, rank = axis_of(group, "axis", len(y.dims)), len(y.dims)
    line = low.temporary(y.name, y.dtype, (y.dims[axis],))
    low.run("iota", [], [line])
    shape = tuple(dim if other == axis else 1 for other, dim in enumerate(y.dims))
    low.bind(y, views.broadcast(_flat(line, shape), y.dims) if rank > 1 else line)


def gather(low: Lowering, group: Group) -> None:
    """The kernel sees x as [outer, axis, inner...], the indices flat, and the result as [outer, indices, inner...]."""
    (x, indices), (y,) = group.operands, group.targets
    axis = axis_of(group, "axis", len(x.dims))
    outer, inner = dims.product(x.dims[:axis]), x.dims[axis + 1 :]
    count = indices.tensor.elements
    shape = (outer, x.dims[axis], *inner)
    source = views.reshaped(low.view(x), shape) or _flat(low.in_order(x), shape)
    flat = views.reshaped(low.view(indices), (count,)) or _flat(low.in_order(indices), (count,))
    low.run("gather", [source, flat], [_flat(low.result(y), (outer, count, *inner))])


def _flat(view: View, shape: tuple[dims.Dim, ...]) -> View:
    found = views.reshaped(view, shape)
    assert found is not None, "a view in C order takes any shape"
    return found


def gather_nd(low: Lowering, group: Group) -> None:
    """The kernel takes the operands as they are."""
    (y,) = group.targets
    low.run("gather_nd", [low.view(value) for value in group.operands], [low.result(y)], batch=attr(group, "batch"))


def scatter_nd(low: Lowering, group: Group) -> None:
    """A copy, and the updates in place."""
    (x, *rest), (y,) = group.operands, group.targets
    out = low.result(y)
    low.copy(low.view(x), out)
    operands = [*(Operand(IN, low.view(value)) for value in rest), Operand(INOUT, out)]
    low.emit("scatter_nd", operands, batch=attr(group, "batch"), reduction=attr(group, "reduction"))


LOWERINGS: Mapping[str, Lower] = {"iota": iota, "gather": gather, "gather_nd": gather_nd, "scatter_nd": scatter_nd}
