"""Lookups by index."""

from __future__ import annotations

from collections.abc import Mapping

from relume.base import dims
from relume.lower import views
from relume.lower.groups import Group
from relume.lower.lowering import Lower, Lowering
from relume.lower.shape import axis_of
from relume.program.types import View


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


LOWERINGS: Mapping[str, Lower] = {"gather": gather}
