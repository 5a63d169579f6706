"""Per-instruction times of a run: as a Chrome trace (chrome://tracing, ui.perfetto.dev), and as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relume import codegen, pipeline
from relume.base import dims, targets
from relume.graph.types import Function
from relume.ops.inference import requirements_of
from relume.program.types import IN, Instr, Program
from relume.runtime import Executable, Storage
from relume.runtime.plan import bind_symbols
from relume.runtime.trace import Span, record, recorder


@dataclass(frozen=True)
class Traced:
    """A function compiled with a driver that notes times, and the program that its instructions belong to."""

    program: Program
    exe: Executable


def compile_traced(fn: Function, *, threads: int | None) -> Traced:
    """Compiles like `api.compile`, and takes all kernels from the same cache: only the driver is another."""
    where = targets.parse("host")
    requirements = requirements_of(fn)
    program = pipeline.to_program(pipeline.optimize(fn), where, requirements=requirements)
    artifact = codegen.build(program, where, cache=codegen.default_cache(), traced=True)
    return Traced(program, Executable(replace(artifact, requirements=requirements), threads=threads))


def run(
    traced: Traced, inputs: Mapping[str, np.ndarray], states: Storage | None = None
) -> tuple[dict[str, np.ndarray], tuple[Span, ...]]:
    """One run, with its spans."""
    return record(traced.exe, inputs, states)


def _binding(traced: Traced, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    return bind_symbols(traced.exe.inputs, [np.shape(inputs[port.name]) for port in traced.exe.inputs])


def _facts(instr: Instr, binding: Mapping[str, int]) -> dict[str, Any]:
    """Where an instruction comes from and what it writes."""
    written = [operand.view for operand in instr.operands if operand.access != IN]
    spec, values = instr.specialise()
    extents = {f"e{index}": dims.evaluate(value, binding) for index, value in enumerate(values)}
    return {
        "where": str(instr.location or ""),
        "writes": [f"{v.buffer.dtype}{[dims.evaluate(dim, binding) for dim in v.dims]}" for v in written],
        "work": dims.evaluate(instr.kernel.work(spec), extents),
    }


def write_chrome(path: Path, traced: Traced, inputs: Mapping[str, np.ndarray], spans: Sequence[Span]) -> None:
    """Writes a trace in Chrome's format: one complete event per instruction, times in microseconds from the start."""
    binding = _binding(traced, inputs)
    instrs = {instr.id: instr for instr in traced.program.instrs}
    zero = spans[0].start if spans else 0
    events = [
        {
            "name": instrs[span.id].kernel.name,
            "cat": "instruction",
            "ph": "X",
            "ts": (span.start - zero) / 1e3,
            "dur": span.nanoseconds / 1e3,
            "pid": 1,
            "tid": 1,
            "args": {"id": span.id, **_facts(instrs[span.id], binding)},
        }
        for span in spans
    ]
    name = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": f"relume {traced.program.name}"}}
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": [name, *events]}, indent=1) + "\n")


def node_times(traced: Traced, inputs: Mapping[str, np.ndarray], runs: int) -> list[dict[str, Any]]:
    """The time of each instruction in order: the least of several runs, since a busy machine only adds to it.

    A first run, which touches new memory, is not among them.
    """
    context = recorder(traced.exe)
    recorded = [record(traced.exe, inputs, context=context)[1] for _ in range(runs + 1)][1:]
    binding = _binding(traced, inputs)
    return [
        {
            "id": instr.id,
            "kernel": instr.kernel.name,
            "seconds": min(spans[place].nanoseconds for spans in recorded) / 1e9,
            **_facts(instr, binding),
        }
        for place, instr in enumerate(traced.program.instrs)
    ]
