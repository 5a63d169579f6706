"""`relume dump`: what the model has become after a pass, as a program, as LLVM IR or as assembly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relume import api, codegen, pipeline
from relume.base import targets
from relume.cli import states
from relume.cli.console import UsageError, command, emit_json
from relume.graph.text import print_module
from relume.graph.types import Module
from relume.program.text import print_program


@command
def dump(
    model: Annotated[Path, typer.Argument(help="an ONNX or .rlm file")],
    state: Annotated[list[str] | None, typer.Option(help=states.HELP)] = None,
    after: Annotated[str | None, typer.Option(help="the graph after this pass (its last place in the table)")] = None,
    program: Annotated[bool, typer.Option("--program", help="buffers and instructions")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="the LLVM IR of driver and kernels")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="the assembly of driver and kernels")] = False,
    optimize: Annotated[int, typer.Option(help="0 or 1")] = 1,
    reuse: Annotated[bool, typer.Option(help="let results take the memory of dying operands")] = True,
    order: Annotated[str, typer.Option(help="of instructions: program, or memory for a small arena")] = "program",
    target: Annotated[str, typer.Option(help="host or the name of a target")] = "host",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Prints one stage of a model's way. Without options: the imported graph."""
    if sum((after is not None, program, llvm, asm)) > 1:
        raise UsageError("choose one of --after, --program, --llvm and --asm")
    if after is not None and after not in pipeline.PASSES:
        raise UsageError(f"--after {after}: there is {', '.join(pipeline.PASSES)}")
    if order not in ("program", "memory"):
        raise UsageError(f"--order {order}: there is program and memory")
    module = api.load(model, states=states.read(state or []))
    where = targets.parse(target)
    texts = []
    for fn in module.functions.values():
        stages = {"": fn}
        if after is not None:
            pipeline.optimize(fn, level=optimize, watch=stages.__setitem__)
        if program or llvm or asm:
            emit = codegen.emit_llvm if llvm else codegen.emit_assembly
            for part in pipeline.programs(fn, where, level=optimize, order=order, reuse=reuse):
                texts.append(print_program(part) if program else emit(part, where))
        else:
            if after is not None and after not in stages:
                raise UsageError(f"--after {after}: that pass does not run at --optimize {optimize}")
            texts.append(print_module(Module({fn.name: stages[after or ""]})))
    if as_json:
        stage = "program" if program else "llvm" if llvm else "asm" if asm else after or "import"
        emit_json({"model": str(model), "stage": stage, "text": "\n".join(texts)})
    else:
        typer.echo("\n".join(texts))
