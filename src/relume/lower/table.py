"""From a function to a program: one row per op."""

from __future__ import annotations

from collections.abc import Mapping

from relume.base import dims
from relume.base.errors import UnsupportedError
from relume.base.targets import Target
from relume.graph.types import Function, Value
from relume.kernels import KERNELS
from relume.lower import along, conv, elementwise, index, linalg, reduce, shape, state, window, winograd
from relume.lower.groups import EPILOGUES, STEPS, Group, groups_of
from relume.lower.lowering import Lower, Lowering, NotSupported
from relume.program.types import KernelDef, Program

TABLE: Mapping[str, Lower] = {
    **elementwise.LOWERINGS,
    **reduce.LOWERINGS,
    **along.LOWERINGS,
    **linalg.LOWERINGS,
    **conv.LOWERINGS,
    **winograd.LOWERINGS,
    **window.LOWERINGS,
    **shape.LOWERINGS,
    **index.LOWERINGS,
    **state.LOWERINGS,
}
"""How each op becomes instructions. `map` stands for all element-wise steps, `rows` for those with reductions among
them, `attention` for such rows between two products."""

OPS: frozenset[str] = STEPS | {"fused"} | (frozenset(TABLE) - {"map", "rows", "attention"})
"""The names of all ops that can be lowered."""

assert set(TABLE) >= EPILOGUES


def lower(fn: Function, target: Target, kernels: Mapping[str, KernelDef] = KERNELS) -> Program:
    """The program of a function: every value in a buffer of its own, or a view of another one's.

    No layout depends on `target` today; kernels tile for it. Raises `UnsupportedError` that lists every node without
    a lowering (place, op, reason).
    """
    groups = state.ordered(fn, list(groups_of(fn.graph)))
    low = Lowering(fn, groups, kernels)
    missing: list[tuple[str, str, str]] = []
    given = {name for value in fn.inputs for dim in value.dims if (name := dims.symbol_name(dim)) is not None}
    for value in (*fn.inputs, *fn.states):
        if not _symbols(value) <= given:
            missing.append((f"%{value.name}", "parameter", _unknown(value, given)))
    for group in groups:
        low.location = group.location
        try:
            _lower_group(low, group, given)
        except NotSupported as problem:
            missing.append((_place(group), group.op, str(problem)))
            for value in group.targets:  # Something for the nodes behind it, so that they are looked at too.
                low.bind(value, low.temporary(value.name, value.dtype, value.dims))
        low.close_halos()
    if missing:
        raise UnsupportedError(
            f"{fn.name}: {len(missing)} node{'s' if len(missing) > 1 else ''} cannot be compiled",
            tuple(missing),
            hint="evaluate the model with the reference, or leave these nodes out",
        )
    low.location = None
    state.finish(low)
    return low.finish()


def _lower_group(low: Lowering, group: Group, given: set[str]) -> None:
    if group.op not in TABLE:
        raise NotSupported("no kernel for it yet")
    for value in group.targets:
        if not _symbols(value) <= given:
            raise NotSupported(_unknown(value, given))
    TABLE[group.op](low, group)


def _symbols(value: Value) -> frozenset[str]:
    return frozenset().union(*map(dims.symbols, value.dims))


def _unknown(value: Value, given: set[str]) -> str:
    return f"no input has the extent {', '.join(sorted(_symbols(value) - given))} as an axis of its own"


def _place(group: Group) -> str:
    return str(group.location or f"%{group.targets[0].name}" if group.targets else group.op)
