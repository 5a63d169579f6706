"""Matrix products: packed panels as they are, anything else packed on the way."""

from __future__ import annotations

from collections.abc import Mapping

from relume.base import dims
from relume.base.targets import BLOCK
from relume.graph.types import Value
from relume.lower import views
from relume.lower.elementwise import body_of, run_with_epilogue
from relume.lower.groups import Group
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, want_block, want_dtype
from relume.lower.reduce import by_row
from relume.lower.shape import pack_into
from relume.program.types import IN, OUT, Operand, View


def matmul_packed(low: Lowering, group: Group) -> None:
    """`matmul_packed` with its epilogue."""
    a, panels = group.operands
    want_dtype(a, FLOATS)
    want_block(panels)
    _multiply(low, group, a, low.in_order(panels, 3))


def matmul(low: Lowering, group: Group) -> None:
    """The right side is copied into panels of 16 columns, padded with zeros. Integers are multiplied as they lie."""
    a, b = group.operands
    want_dtype(a, NUMBERS)
    if not a.dtype.is_float:
        *outer, _, _ = group.targets[0].dims
        factors = [views.broadcast(low.view(value), (*outer, *value.dims[-2:])) for value in (a, b)]
        run_with_epilogue(low, "dot", group, factors)
        return
    _multiply(low, group, a, _panels(low, b))


def _panels(low: Lowering, b: Value) -> View:
    """A right side in panels: [.., K, N] -> [.., N / 16, K, 16]."""
    *batch, k, n = b.dims
    rank = len(batch)
    panels = low.temporary(f"{b.name}.panels", b.dtype, (*batch, dims.ceildiv(n, BLOCK), k, BLOCK))
    # `pack` would give [.., K, N / 16, 16]: the same with two axes exchanged.
    pack_into(low, low.view(b), rank + 1, BLOCK, views.transposed(panels, (*range(rank), rank + 1, rank, rank + 2)))
    return panels


def _multiply(low: Lowering, group: Group, a: Value, panels: View) -> None:
    *batch, _, _ = group.targets[0].dims
    left = views.broadcast(low.in_order(a, 1), (*batch, *a.dims[-2:]))
    if len(panels.dims) > 3:
        panels = views.broadcast(panels, (*batch, *panels.dims[-3:]))
    run_with_epilogue(low, "matmul_packed", group, [left, panels])


def attention(low: Lowering, group: Group) -> None:
    """Two products and the rows between them, a strip of rows at a time: y = steps(q k, ...) v."""
    q, k, v = group.operands
    assert group.rows is not None and group.tail is not None
    for value in (q, k, v):
        want_dtype(value, FLOATS)
    *batch, rows, columns = group.rows
    body = body_of(low, group, group.rows)
    extras = [by_row(low, view, 1) for view in body.inputs]
    panels = [views.broadcast(panels, (*batch, *panels.dims[-3:])) for panels in (_panels(low, k), _panels(low, v))]
    inputs = [views.broadcast(low.in_order(q, 1), (*batch, *q.dims[-2:])), *panels, *extras]
    weights = group.tail.operands[0]
    scores, softened, out = -1, -2, len(inputs)
    plain = (("body", ()), ("outs", (0,)))
    low.emit(
        "strips",
        [*(Operand(IN, view) for view in inputs), Operand(OUT, low.result(group.targets[0]))],
        [rows, columns, columns],
        batch=len(batch),
        rows=(True, False, False, *(True for _ in extras), True),
        between=(q.dtype.name, weights.dtype.name),
        parts=(
            ("matmul_packed", (0, 1), (scores,), (), plain),
            ("rows", (scores, *range(3, out)), (softened,), (1,), (("body", body.steps), ("outs", body.outs))),
            ("matmul_packed", (softened, 2), (out,), (), plain),
        ),
    )


LOWERINGS: Mapping[str, Lower] = {"matmul": matmul, "matmul_packed": matmul_packed, "attention": attention}
