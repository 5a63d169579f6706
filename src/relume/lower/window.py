"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from relume.lower.groups import Group
from relume.lower.lowering import FLOATS, NUMBERS, Lower, Lowering, want_block, want_dtype
from relume.lower.shape import attr
from relume.program.types import Param


def pool(low: Lowering, group: Group) -> None:
    """The pools. Whether the last window is cut off (`ceil`) shows in the result's extents."""
    x, kind = group.operands[0], group.op.removesuffix("_pool")
    params = {name: cast(Param, attr(group, name)) for name in ("window", "strides", "pads", "dilations")}
    params["count_pads"] = kind == "avg" and bool(attr(group, "count_pads"))
    params["blocked"] = kind != "argmax" and bool(attr(group, "blocked"))
    if kind == "argmax":
        params["column_major"] = bool(attr(group, "column_major"))
    want_dtype(x, NUMBERS if kind in ("max", "argmax") else FLOATS)
    if params["blocked"]:
        want_block(x)
    # Blocked channels are neighbours: the kernel takes them as vectors.
    source = low.in_order(x, 1) if params["blocked"] else low.view(x)
    low.run("window", [source], [low.result(group.targets[0])], kind=kind, **params)


LOWERINGS: Mapping[str, Lower] = {"max_pool": pool, "argmax_pool": pool, "avg_pool": pool, "sum_pool": pool}
