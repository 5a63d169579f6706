"""Matrix products: packed panels as they are, anything else packed on the way."""

from __future__ import annotations

from collections.abc import Mapping

from relume.base import dims
from relume.base.targets import BLOCK
from relume.graph.types import Value
from relume.lower import views
from relume.lower.elementwise import run_with_epilogue
from relume.lower.groups import Group
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, want_block, want_dtype
from relume.lower.shape import pack_into
from relume.program.types import View


def matmul_packed(low: Lowering, group: Group) -> None:
    """`matmul_packed` with its epilogue."""
    a, panels = group.operands
    want_dtype(a, FLOATS)
    want_block(panels)
    _multiply(low, group, a, low.in_order(panels, 3))


def matmul(low: Lowering, group: Group) -> None:
    """The right side is copied into panels of 16 columns, padded with zeros: [.., K, N] -> [.., N / 16, K, 16].

    Integers are multiplied as they lie.
    """
    a, b = group.operands
    want_dtype(a, NUMBERS)
    if not a.dtype.is_float:
        *outer, _, _ = group.targets[0].dims
        factors = [views.broadcast(low.view(value), (*outer, *value.dims[-2:])) for value in (a, b)]
        run_with_epilogue(low, "dot", group, factors)
        return
    *batch, k, n = b.dims
    rank = len(batch)
    panels = low.temporary(f"{b.name}.panels", b.dtype, (*batch, dims.ceildiv(n, BLOCK), k, BLOCK))
    # `pack` would give [.., K, N / 16, 16]: the same with two axes exchanged.
    pack_into(low, low.view(b), rank + 1, BLOCK, views.transposed(panels, (*range(rank), rank + 1, rank, rank + 2)))
    _multiply(low, group, a, panels)


def _multiply(low: Lowering, group: Group, a: Value, panels: View) -> None:
    *batch, _, _ = group.targets[0].dims
    left = views.broadcast(low.in_order(a, 1), (*batch, *a.dims[-2:]))
    if len(panels.dims) > 3:
        panels = views.broadcast(panels, (*batch, *panels.dims[-3:]))
    run_with_epilogue(low, "matmul_packed", group, [left, panels])


LOWERINGS: Mapping[str, Lower] = {"matmul": matmul, "matmul_packed": matmul_packed}
