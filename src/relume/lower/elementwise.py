"""Bodies: element-wise steps as kernels run them, alone (`map`) or behind a kernel's own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relume.base.dims import Dim
from relume.graph.types import Constant, Value
from relume.kernels.stages import REDUCTIONS
from relume.lower import views
from relume.lower.groups import Group
from relume.lower.lowering import Lower, Lowering, constant_step
from relume.program.types import Param, View


@dataclass(frozen=True)
class Body:
    """The steps over numbered values: the kernel's own result if it has one, then `inputs`, then the steps."""

    inputs: tuple[View, ...]
    steps: tuple[Param, ...]
    outs: tuple[int, ...]


def body_of(low: Lowering, group: Group, shape: Sequence[Dim], bias: View | None = None, lanes: bool = False) -> Body:
    """The group's steps over the extents `shape`. A `bias` is added to the head's result before all else."""
    inputs: list[View] = []
    entering: dict[Value, int] = {}  # The place among the inputs of each value from outside.
    first = (group.head is not None) + (bias is not None)
    heads = group.head.results if group.head is not None else ()
    inner = {*heads, *(result for step in group.steps for result in step.results)}
    for value in (*(value for step in group.steps for value in step.operands), *group.results):
        outer = group.names.get(value, value)
        if value not in inner and outer not in entering and not _is_scalar(outer):
            view = low.view(outer)
            if lanes and view.dims and view.dims[-1] != 1:
                view = low.ordered(view, outer.name, 1)
            view = views.broadcast(view, shape)
            if view not in inputs:
                inputs.append(view)
            entering[outer] = inputs.index(view)
    steps: list[Param] = []
    numbers: dict[Value, int] = dict.fromkeys(heads, 0)
    known: dict[str, int] = {}

    def append(step: Param) -> int:
        steps.append(step)
        return first + len(inputs) + len(steps) - 1

    def number(value: Value) -> int:
        if value in numbers:
            return numbers[value]
        outer = group.names.get(value, value)
        if outer in entering:
            return first + entering[outer]
        assert isinstance(outer, Constant)
        step = constant_step(outer.data.reshape(-1)[0], outer.dtype)
        text = repr(step)  # Tells -0.0 from 0.0, which are equal.
        if text not in known:
            known[text] = append(step)
        return known[text]

    if bias is not None:
        (head,) = heads
        numbers[head] = append(("add", (0, 1), (), head.dtype.name))
    for node in group.steps:
        args = tuple(number(value) for value in node.operands)
        attrs = () if node.op.name in REDUCTIONS else _attrs(node.attrs)  # Which axes a kernel over rows knows.
        numbers[node.result] = append((node.op.name, args, attrs, node.result.dtype.name))
    outs = tuple(number(value) for value in group.results)
    return Body((*([] if bias is None else [bias]), *inputs), tuple(steps), outs)


def _attrs(attrs: Mapping[str, object]) -> tuple[Param, ...]:
    return tuple((name, value) for name, value in attrs.items())  # type: ignore[misc]


def _is_scalar(value: Value) -> bool:
    return isinstance(value, Constant) and value.data.size == 1


def lower_map(low: Lowering, group: Group) -> None:
    """Element-wise steps: one `map`."""
    shape = group.targets[0].dims
    body = body_of(low, group, shape)
    low.run("map", body.inputs, [low.result(value) for value in group.targets], body=body.steps, outs=body.outs)


def run_with_epilogue(
    low: Lowering,
    kernel: str,
    group: Group,
    inputs: Sequence[View],
    bias: View | None = None,
    lanes: bool = False,
    **params: Any,
) -> None:
    """Appends a kernel that runs the group's steps on each of its results before storing it.

    With `lanes` it does so on vectors along the last axis only, so every operand must be contiguous or repeated there.
    """
    body = body_of(low, group, group.targets[0].dims, bias, lanes)
    outputs = [low.result(value) for value in group.targets]
    low.run(kernel, [*inputs, *body.inputs], outputs, **params, body=body.steps, outs=body.outs)


LOWERINGS: Mapping[str, Lower] = {"map": lower_map}
