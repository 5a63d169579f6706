"""A plan: all that one combination of input shapes decides, worked out when it is first met and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dims, intervals
from relume.base.dims import Dim
from relume.base.errors import CompileError, InputError, LimitError
from relume.base.requirements import Requirement
from relume.runtime.artifact import Artifact, Port
from relume.runtime.memory import address_of, machine_memory, round_up

Shape = tuple[int, ...]
_LARGEST = (1 << 63) - 1


class Plan:
    """The run-time tables of one artifact for one combination of input shapes. Read-only, shared by all contexts.

    `dims` and `offsets` are the context's i64 tables; `outputs` the shape and dtype to allocate for each output;
    `states` the shape that each state must have; `arena_bytes` what the activations take, `scratch_bytes` what each
    thread takes besides.
    """

    __slots__ = (
        "arena_bytes",
        "dims",
        "dims_address",
        "offsets",
        "offsets_address",
        "outputs",
        "scratch_bytes",
        "states",
    )

    def __init__(
        self,
        extents: Sequence[int],
        offsets: Sequence[int],
        arena_bytes: int,
        scratch_bytes: int,
        outputs: tuple[tuple[Shape, np.dtype], ...],
        states: tuple[Shape, ...],
    ) -> None:
        self.dims = np.array(extents, np.int64)
        self.offsets = np.array(offsets, np.int64)
        self.dims_address, self.offsets_address = address_of(self.dims), address_of(self.offsets)
        self.arena_bytes, self.scratch_bytes = arena_bytes, scratch_bytes
        self.outputs, self.states = outputs, states


def check_closed(artifact: Artifact) -> None:
    """Raises `CompileError` if an extent depends on a symbol that no input binds."""
    bound = {str(dim) for port in artifact.inputs for dim in port.dims if _is_symbol(dim)}
    ports = (*artifact.inputs, *artifact.outputs, *artifact.states)
    used = [dim for port in ports for dim in port.dims]
    used += [
        artifact.scratch,
        *artifact.dims,
        *artifact.extents,
        *(allocation.bytes for allocation in artifact.allocations),
    ]
    free = sorted(frozenset().union(*(dims.symbols(dim) for dim in used)) - bound)
    if free:
        raise CompileError(
            f"{artifact.name} has extents that its inputs do not decide",
            expected="every symbol to be an extent of some input",
            got=", ".join(free),
        )


def _is_symbol(dim: Dim) -> bool:
    return not isinstance(dim, int) and str(dim).isidentifier()


def bind_symbols(inputs: Sequence[Port], shapes: Sequence[Shape]) -> dict[str, int]:
    """The value of each symbol. Raises `InputError` where a rank, an extent, or two inputs do not fit."""
    binding: dict[str, int] = {}
    source: dict[str, str] = {}
    for port, shape in zip(inputs, shapes):
        if len(shape) != len(port.dims):
            raise _misfit(port, shape, f"has rank {len(shape)}, not {len(port.dims)}")
        for axis, (dim, extent) in enumerate(zip(port.dims, shape)):
            if not _is_symbol(dim):
                continue
            name = str(dim)
            if binding.setdefault(name, extent) != extent:
                raise InputError(
                    f"input {port.name!r} disagrees about {name}",
                    expected=f"{port}, with {name} = {binding[name]} from {source[name]}",
                    got=f"{_typed(port, shape)}, so {name} = {extent} on axis {axis}",
                    hint=f"pass inputs that agree about {name}",
                )
            source.setdefault(name, f"axis {axis} of {port.name!r}")
    for port, shape in zip(inputs, shapes):
        for axis, (dim, extent) in enumerate(zip(port.dims, shape)):
            wanted = _evaluate(dim, binding)
            if wanted != extent:
                known = "" if isinstance(dim, int) else f" ({dim})"
                raise _misfit(port, shape, f"is {extent} along axis {axis}, not {wanted}{known}")
    return binding


def _typed(port: Port, shape: Shape) -> str:
    return f"{port.dtype}[{','.join(map(str, shape))}]"


def _misfit(port: Port, shape: Shape, how: str) -> InputError:
    return InputError(
        f"input {port.name!r} {how}",
        expected=port,
        got=_typed(port, shape),
        hint="resize, reshape or pad it to the expected shape",
    )


def _evaluate(dim: Dim, binding: Mapping[str, int]) -> int:
    try:
        return dims.evaluate(dim, binding)
    except ZeroDivisionError:
        raise InputError(
            f"the shapes of the inputs make {dim} a division by zero",
            got=_assignments(binding),
        ) from None


def _assignments(binding: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(binding.items())) or "no symbols"


def make_plan(artifact: Artifact, shapes: Sequence[Shape]) -> Plan:
    """Works out the plan for these input shapes, one per input.

    Raises `InputError` where the shapes do not fit or lead to tensors that cannot be, `LimitError` where the tensors
    would not fit in this machine's memory.
    """
    binding = bind_symbols(artifact.inputs, shapes)

    def extent(dim: Dim, what: str) -> int:
        value = _evaluate(dim, binding)
        if not 0 <= value <= _LARGEST:
            raise InputError(
                f"the inputs are too {'small' if value < 0 else 'large'}: {what} would be {value}",
                expected=f"{dim} to be {'at least 0' if value < 0 else 'below 2**63'}",
                got=_assignments(binding),
                hint=f"pass {'larger' if value < 0 else 'smaller'} inputs",
            )
        return value

    def shape(port: Port, kind: str) -> Shape:
        return tuple(extent(dim, f"axis {axis} of {kind} {port.name!r}") for axis, dim in enumerate(port.dims))

    for requirement in artifact.requirements:
        _check(requirement, binding)
    for dim in artifact.extents:
        extent(dim, "an extent of an intermediate tensor")
    table = [_evaluate(dim, binding) for dim in artifact.dims]
    for dim, value in zip(artifact.dims, table):
        if abs(value) > _LARGEST:
            raise InputError(f"the inputs are too large: {dim} would be {value}", got=_assignments(binding))
    outputs = tuple((shape(port, "output"), port.dtype.numpy) for port in artifact.outputs)
    states = tuple(shape(port, "state") for port in artifact.states)
    sizes = [extent(allocation.bytes, f"the size of {allocation.name}") for allocation in artifact.allocations]
    # Before the planner looks at it: a single tensor that is too large needs no plan.
    outside = sum(dims.evaluate(dims.product(shape), {}) * dtype.itemsize for shape, dtype in outputs)
    _check_memory(artifact, outside + max(sizes, default=0), binding)
    if artifact.offsets is not None:
        offsets: Sequence[int] = artifact.offsets
        total = max((offset + size for offset, size in zip(offsets, sizes)), default=0)
    else:
        first = [allocation.first for allocation in artifact.allocations]
        last = [allocation.last for allocation in artifact.allocations]
        offsets, total = intervals.plan(sizes, first, last)
    scratch = round_up(extent(artifact.scratch, "the memory of a thread"))
    _check_memory(artifact, outside + total + scratch, binding)
    return Plan(table, offsets, total, scratch, outputs, states)


def _check(requirement: Requirement, binding: Mapping[str, int]) -> None:
    try:
        if requirement.holds(binding):
            return
    except ZeroDivisionError:
        pass
    raise InputError(
        f"the shapes of the inputs do not go together: {requirement.what}",
        where=requirement.where or None,
        expected=requirement.expected(binding),
        got=f"{requirement.got(binding)}, for {_assignments(binding)}",
        hint="pass inputs whose extents agree",
    )


def _check_memory(artifact: Artifact, size: int, binding: Mapping[str, int]) -> None:
    if size > machine_memory():
        raise LimitError(
            f"{artifact.name} would need more memory than this machine has",
            expected=f"at most {machine_memory():,} bytes",
            got=f"{size:,} bytes of outputs and intermediate tensors, for {_assignments(binding)}",
            hint="pass smaller inputs, or a smaller batch",
        )
