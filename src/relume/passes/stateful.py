"""Turns inputs into states: a recurrent model, which is handed its memory and hands it back, keeps it by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relume import ops
from relume.base import dims
from relume.base.errors import InputError, ModelError
from relume.graph.builder import Builder
from relume.graph.types import Function, Graph, State, Unknown, Value
from relume.runtime.arguments import as_names

_EXAMPLE = "states={'h_in': 'h_out'}"
READ = Unknown("with_states", "reads the state that was an input")
WRITE = Unknown("with_states", "the version that is overwritten")


def with_states(fn: Function, states: Mapping[str, str]) -> Function:
    """`fn` with some inputs kept between calls: `{input: the output that is its next value}`.

    Each such input becomes a state of the same name, read at the top and written at the end; the outputs named
    disappear. Further states come after those that `fn` has. Raises `ModelError` where a name is not there or an
    output is named twice, the two differ in type, another output has the name of a state, or a state has an open extent
    that no input is left to bind. Raises `InputError` where `states` is no mapping from names to names.

    before:  func(%x, %h) { %g = f(%x, %h); return %y, %g as "g" }
    after:   func(%x) states(%h) { %v = state_read(%h); %g = f(%x, %v); %n = state_write(%h, %g); return %y states(%n) }
    """
    if not as_names("states", states, _EXAMPLE):
        return fn
    inputs = {value.name: value for value in fn.inputs}
    outputs = dict(zip(fn.output_names, zip(fn.outputs, fn.graph.origins)))
    reads, writes = Builder(), Builder()
    params: list[Value] = []
    nexts: list[Value] = []
    _check_targets(fn, states)
    for source, target in states.items():
        _check(fn, source, inputs, "input")
        _check(fn, target, outputs, "output")
        value, (result, origin) = inputs[source], outputs[target]
        if value.type != result.type:
            raise ModelError(
                f"the output {target!r} cannot be the next value of the input {source!r}",
                where=f"@{fn.name}",
                expected=f"{source}: {value.type}",
                got=f"{target}: {result.type}",
                hint="a state keeps its element type and its extents",
            )
        state = Value(State(value.tensor), source)
        params.append(state)
        (made,) = reads.emit(ops.state_read, state, origins=(READ,))
        # The value that was the input is now what is read: its users do not change.
        reads.nodes[-1] = replace(reads.nodes[-1], results=(value,))
        assert made.type == value.type
        nexts.extend(writes.emit(ops.state_write, state, result, origins=(WRITE, origin), name=f"{source}_next"))
    stay = [value for value in fn.inputs if value.name not in states]
    _check_bound(fn, stay, params)
    kept = [name for name in fn.output_names if name not in states.values()]
    taken = [name for name in kept if name in states]
    if taken:
        raise ModelError(
            f"the output {taken[0]!r} has the name of the input {taken[0]!r}, which is to be a state",
            where=f"@{fn.name}",
            expected="another name for the output: states and outputs go by name",
            got=f"the outputs {', '.join(kept)}",
            hint="rename the output in the model, or name it as the next value of that input",
        )
    count = len(fn.outputs)
    graph = Graph(
        params=(*stay, *fn.states, *params),
        nodes=(*reads.nodes, *fn.graph.nodes, *writes.nodes),
        results=(*(outputs[name][0] for name in kept), *fn.next_states, *nexts),
        origins=(*(outputs[name][1] for name in kept), *fn.graph.origins[count:], *(WRITE for _ in nexts)),
    )
    return replace(fn, graph=graph, state_count=fn.state_count + len(params), output_names=tuple(kept))


def _check_targets(fn: Function, states: Mapping[str, str]) -> None:
    """Each next value is the name of an output, and of one input only."""
    sources: dict[str, str] = {}
    for source, target in states.items():
        if not isinstance(target, str):
            what = f"the next value of {source!r} is no name of an output"
            raise InputError(what, expected="a str", got=repr(target), hint=_EXAMPLE)
        if target in sources:
            raise ModelError(
                f"the output {target!r} cannot be the next value of two inputs, {sources[target]!r} and {source!r}",
                where=f"@{fn.name}",
                expected="an output of its own for each input",
                got=states,
                hint="make a state of one of them",
            )
        sources[target] = source


def _check_bound(fn: Function, inputs: Sequence[Value], states: Sequence[Value]) -> None:
    bound = {dims.symbol_name(dim) for value in inputs for dim in value.dims}
    for state in states:
        for dim in state.dims:
            loose = sorted(dims.symbols(dim) - bound)
            if loose:
                raise ModelError(
                    f"the input {state.name!r} cannot be a state: no other input says how large {loose[0]} is",
                    where=f"@{fn.name}",
                    expected=f"an input with the extent {loose[0]}, or a fixed one",
                    got=f"{state.name}: {state.tensor}",
                    hint="keep it as an input, or export the model with this extent fixed",
                )


def _check(fn: Function, name: str, there: Mapping[str, object], kind: str) -> None:
    if name not in there:
        raise ModelError(
            f"{fn.name} has no {kind} {name!r} to make a state of",
            where=f"@{fn.name}",
            expected=f"one of its {kind}s: {', '.join(there) or 'none'}",
            got=name,
        )
