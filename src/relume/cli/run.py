"""`relume run`: one run of a model, with its outputs or the best classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from relume import api
from relume.cli import inputs, states
from relume.cli import trace as tracing
from relume.cli.console import UsageError, command, emit_json, out, progress, table
from relume.graph.types import Module
from relume.runtime import Executable, load_executable


@command
def run(
    model: Annotated[Path, typer.Argument(help="an ONNX or .rlm file, or a compiled .rlx")],
    input: Annotated[list[str] | None, typer.Option(help="NAME=FILE: a .npy array or a picture")] = None,
    output: Annotated[Path | None, typer.Option(help="write each output there as NAME.npy")] = None,
    state: Annotated[list[str] | None, typer.Option(help=states.HELP)] = None,
    value: Annotated[list[str] | None, typer.Option(help=inputs.VALUE_HELP)] = None,
    engine: Annotated[str, typer.Option(help="native or reference")] = "native",
    top: Annotated[int, typer.Option(min=0, help="show the K largest of each output")] = 0,
    threads: Annotated[int | None, typer.Option(help="threads for one run")] = None,
    trace: Annotated[Path | None, typer.Option(help="write the time of each instruction there (Chrome trace)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Runs a model once. States start at zero."""
    if engine not in ("native", "reference"):
        raise UsageError(f"--engine {engine}: there is native and reference")
    if trace is not None and engine != "native":
        raise UsageError("--trace: only native code has instructions")
    compiled = model.suffix == ".rlx"
    if compiled and (state or value or trace or engine != "native"):
        raise UsageError(f"{model} is compiled: --state, --value, --trace and --engine reference are for models")
    loaded: Module | Executable
    if compiled:
        loaded = load_executable(model, threads)
    else:
        loaded = api.load(model, states=states.read(state or []), values=inputs.fixed(value or []))
    fn = loaded if isinstance(loaded, Executable) else loaded.main
    arrays = inputs.read(input or [], {value.name: (value.dtype, value.dims) for value in fn.inputs})
    compile_time = None
    if isinstance(loaded, Executable):
        start = time.perf_counter()
        results = loaded.run(arrays, states=states.zeros(fn, arrays))
    elif engine == "native":
        start = time.perf_counter()
        with progress("compiling"):
            traced = tracing.compile_traced(loaded.main, threads=threads) if trace is not None else None
            executable = api.compile(loaded, threads=threads) if traced is None else traced.exe
        compile_time = time.perf_counter() - start
        storage = states.zeros(fn, arrays)
        start = time.perf_counter()
        if traced is not None and trace is not None:
            results, spans = tracing.run(traced, arrays, storage)
            _write(trace, lambda: tracing.write_chrome(trace, traced, arrays, spans), "--trace")
        else:
            results = executable.run(arrays, states=storage)
    else:
        start = time.perf_counter()
        with progress("evaluating by the reference"):
            storage = states.zeros(fn, arrays)
            evaluated = api.evaluate(loaded, arrays, {name: storage[name] for name in storage} if storage else None)
            results = {name: evaluated[name] for name in loaded.main.output_names}
    run_time = time.perf_counter() - start
    if output is not None:
        _write(output, lambda: _save(output, results), "--output")
    if as_json:
        described = {name: _describe(array, top) for name, array in results.items()}
        emit_json(
            {"model": str(model), "engine": engine, "compile_s": compile_time, "run_s": run_time, "outputs": described}
        )
        return
    rows = [(name, f"{array.dtype}{list(array.shape)}", *_range(array)) for name, array in results.items()]
    table(f"{model.name} by {engine}", ("output", "type", "min", "max"), rows)
    if top:
        for name, array in results.items():
            best = _best(array, top)
            table(
                f"{name}: largest {len(best)}", ("index", "value"), [(index, f"{value:.6g}") for index, value in best]
            )
    if compile_time is not None:
        out.print(f"compiled in {compile_time * 1e3:.1f} ms, ", end="")
    out.print(f"ran in {run_time * 1e3:.2f} ms")


def _write(path: Path, write: Callable[[], object], option: str) -> None:
    try:
        write()
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}") from None


def _save(folder: Path, results: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in results.items():
        np.save(folder / f"{_file_name(name)}.npy", array)


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name)


def _range(array: np.ndarray) -> tuple[str, str]:
    return (f"{array.min():.6g}", f"{array.max():.6g}") if array.size and array.dtype.kind in "fiu" else ("", "")


def _best(array: np.ndarray, count: int) -> list[tuple[int, float]]:
    """The largest elements of the flattened array, first of equals first."""
    flat = array.reshape(-1)
    order = np.argsort(-flat.astype(np.float64), kind="stable")[:count]
    return [(int(index), float(flat[index])) for index in order]


def _describe(array: np.ndarray, top: int) -> dict[str, object]:
    described: dict[str, object] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if top:
        described["top"] = [{"index": index, "value": value} for index, value in _best(array, top)]
    elif array.size <= 1000:
        described["values"] = array.tolist()
    return described
