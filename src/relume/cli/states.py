"""What is behind `--state IN=OUT`: inputs that become states, and where they start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dims
from relume.cli.console import UsageError
from relume.graph.types import Function
from relume.runtime import Executable, Storage
from relume.runtime.artifact import Port

HELP = "IN=OUT: keep the input IN between runs; its next value is the output OUT"


def read(given: Sequence[str]) -> dict[str, str]:
    """The output for each input. Raises `UsageError` on an entry of another form, or an input given twice."""
    states: dict[str, str] = {}
    for entry in given:
        source, equals, target = entry.partition("=")
        if not (source and equals and target):
            raise UsageError(f"--state {entry}: write IN=OUT, the input and the output that is its next value")
        if source in states:
            raise UsageError(f"--state {entry}: {source} is given twice")
        states[source] = target
    return states


def zeros(fn: Function | Executable, arrays: Mapping[str, np.ndarray]) -> Storage | None:
    """Zeros for the states of a function, whose open extents are those of the inputs; None if it has no states."""
    if not fn.states:
        return None
    symbols: dict[str, int] = {}
    for value in fn.inputs:
        for dim, size in zip(value.dims, arrays[value.name].shape):
            name = dims.symbol_name(dim)
            if name is not None:
                symbols.setdefault(name, size)
    return Storage.zeros([Port(state.name, state.dtype, state.dims) for state in fn.states], symbols)
