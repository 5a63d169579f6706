"""What one run spends its time on: when each instruction began and ended, as traced code notes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relume.base.errors import RunError
from relume.runtime.context import Context
from relume.runtime.executable import Executable
from relume.runtime.storage import Storage


@dataclass(frozen=True)
class Span:
    """One instruction of one run, by its id: nanoseconds of CLOCK_MONOTONIC."""

    id: int
    start: int
    end: int

    @property
    def nanoseconds(self) -> int:
        """How long it took, with what the driver did for it."""
        return self.end - self.start


def record(
    executable: Executable, inputs: Mapping[str, object], states: Storage | None = None, context: Context | None = None
) -> tuple[dict[str, np.ndarray], tuple[Span, ...]]:
    """Runs an executable whose code is traced: the outputs by name, and a span per instruction in order.

    The outputs are those of any other run, bit for bit. `context` is one that `recorder` made (None: a new one).
    Raises `RunError` where the code is not traced, and what `Executable.run` raises.
    """
    context = recorder(executable) if context is None else context
    context.stamps[0] = 0
    outputs = executable.run(inputs, states=states, context=context)
    times = list(context.stamps)
    if times[0] == 0:
        raise RunError(
            f"the code of {executable.name} notes no times", hint="build it with codegen.build(..., traced=True)"
        )
    return outputs, tuple(
        Span(id_, start, end) for id_, start, end in zip(executable.artifact.instructions, times, times[1:])
    )


def recorder(executable: Executable) -> Context:
    """A context for `record`, to be used for several runs: the first touches new memory, the others do not."""
    return Context(stamps=len(executable.artifact.instructions) + 1)
