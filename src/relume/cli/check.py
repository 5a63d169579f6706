"""`relume check`: can this model be compiled? Every unsupported node at once, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from relume import api, pipeline
from relume.base import targets
from relume.cli import inputs, states
from relume.cli.console import command, emit_json, out, progress, table


@command
def check(
    model: Annotated[Path, typer.Argument(help="an ONNX or .rlm file")],
    state: Annotated[list[str] | None, typer.Option(help=states.HELP)] = None,
    value: Annotated[list[str] | None, typer.Option(help=inputs.VALUE_HELP)] = None,
    target: Annotated[str, typer.Option(help="host or the name of a target")] = "host",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Says whether a model can be compiled, and if not, what stands in the way."""
    module = api.load(model, states=states.read(state or []), values=inputs.fixed(value or []))
    where = targets.parse(target)
    ops: Counter[str] = Counter()
    with progress("checking"):
        for fn in module.functions.values():
            pipeline.programs(fn, where, check=True)
            ops.update(node.op.name for node in fn.graph.walk())
    fn = module.main
    described = {
        "inputs": {value.name: str(value.type) for value in fn.inputs},
        "outputs": {name: str(value.type) for name, value in zip(fn.output_names, fn.outputs)},
        "states": {value.name: str(value.type) for value in fn.states},
    }
    if as_json:
        emit_json(
            {"model": str(model), "ok": True, "target": where.name, **described, "ops": dict(sorted(ops.items()))}
        )
        return
    rows = [(kind[:-1], name, type_) for kind, ports in described.items() for name, type_ in ports.items()]
    table(model.name, ("what", "name", "type"), rows)
    out.print(f"{sum(ops.values())} nodes of {len(ops)} kinds, all supported on {where.name}")
