"""The command `relume bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from relume import api
from relume.base.errors import InputError, RunError
from relume.cli import inputs
from relume.cli.bench.engines import PEERS
from relume.cli.bench.measure import Report, Spread, measure
from relume.cli.bench.work import drawn, multiply_adds
from relume.cli.console import UsageError, command, emit_json, out, progress, table
from relume.cli.trace import compile_traced, node_times


@command
def bench(
    model: Annotated[Path, typer.Argument(help="an ONNX or .rlm file")],
    vs: Annotated[str, typer.Option(help="peers, by commas: onnxruntime, openvino, torch")] = "",
    threads: Annotated[int, typer.Option(min=1, help="threads of a run")] = 1,
    input: Annotated[list[str] | None, typer.Option(help="NAME=FILE: .npy or picture; others are drawn")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="SYMBOL=EXTENT: an open extent of a drawn input")] = None,
    torch: Annotated[Path | None, typer.Option(help="the model as a torch.export program, for --vs torch")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="turns of each engine")] = 15,
    nodes: Annotated[bool, typer.Option("--nodes", help="also the time of each instruction")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Times a model beside other engines: in turn, on the same processors, in float32."""
    peers = [name for name in vs.split(",") if name]
    for name in peers:
        if name not in PEERS:
            raise UsageError(f"--vs {name}: there is {', '.join(PEERS)}")
    if threads > len(os.sched_getaffinity(0)):
        raise UsageError(f"--threads {threads}: this process may run on {len(os.sched_getaffinity(0))} processors")
    if torch is not None and not torch.is_file():
        raise UsageError(f"--torch {torch}: there is no such file")
    fn = api.load(model).main
    if fn.states:
        raise InputError("a model with states is not timed: its runs depend on one another", where=fn.name)
    wanted = {value.name: (value.dtype, value.dims) for value in fn.inputs}
    named = _named(input or [], wanted)
    arrays = drawn(fn, inputs.read(input or [], named) if named else {}, _extents(dim or []))
    work = multiply_adds(fn, {name: array.shape for name, array in arrays.items()})
    with progress(f"timing {model.name}"):
        try:
            report = measure(
                model, arrays, multiply_adds=work, threads=threads, peers=peers, rounds=rounds, program=torch
            )
        except RuntimeError as error:
            raise RunError("the model could not be timed", where=model.name, got=error) from None
        times = node_times(compile_traced(fn, threads=threads), arrays, rounds) if nodes else None
    if as_json:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        emit_json({"model": str(model), "inputs": shapes, **report.as_json(), "nodes": times})
    else:
        show(model.name, report)
        if times is not None:
            show_nodes(times)


def _named(given: list[str], wanted: dict) -> dict:
    """Those of `wanted` that have a file; an entry without a name is for the only input."""
    if len(wanted) == 1 and given:
        return wanted
    names = {entry.partition("=")[0] for entry in given}
    unknown = sorted(names - wanted.keys())
    if unknown:
        raise UsageError(f"--input {unknown[0]}: there is no such input, only {', '.join(wanted)}")
    return {name: type_ for name, type_ in wanted.items() if name in names}


def _extents(given: list[str]) -> dict[str, int]:
    extents = {}
    for entry in given:
        name, _, extent = entry.rpartition("=")
        if not name or not extent.isdecimal():
            raise UsageError(f"--dim {entry}: write SYMBOL=EXTENT")
        extents[name] = int(extent)
    return extents


def show(name: str, report: Report) -> None:
    """Prints a report for people."""
    rows = []
    for engine, measured in report.engines.items():
        if measured.seconds is None:
            continue
        seconds, facts = measured.seconds, measured.facts
        rows.append(
            (
                f"{engine} {facts['version']}".strip(),
                *milliseconds(seconds),
                f"{report.multiply_adds / seconds.median / 1e9:.1f}",
                f"{facts['memory_bytes'] / 2**20:.1f}",
                f"{facts['load_s'] * 1e3:.0f}",
                "" if measured.difference is None else f"{measured.difference:.0e}",
            )
        )
    threads = f"{report.threads} thread{'s' if report.threads > 1 else ''}"
    columns = ("engine", "ms", "10th, 90th", "G/s", "MB", "load ms", "differs")
    table(f"{name}: {report.multiply_adds / 1e6:,.1f} M multiply-adds, {threads}, {report.clock} time", columns, rows)
    out.print(
        "G/s: billions of multiply-adds a second; MB: peak memory above the imports; differs: from ours, relative"
    )
    for engine, measured in report.engines.items():
        if measured.absent is not None:
            out.print(f"{engine}: not measured, {measured.absent}")
    share, facts = report.share, report.ours.facts
    out.print(
        f"share of the peak  {share.median:.0%} ({share.low:.0%} to {share.high:.0%}) of "
        f"{report.peak_rate.median / 1e9:.1f} G multiply-adds/s, measured in the same turns"
    )
    if report.ratio is not None:
        ratio = report.ratio
        out.print(f"best peer / ours   {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), {report.best}")
    if report.cold_s is not None:
        out.print(f"load and compile   {report.cold_s:.2f} s cold, {report.cached_s:.3f} s from the cache")
    out.print(f"arena              {facts['arena_bytes']:,} bytes; largest live sum {facts['live_bytes']:,}")


def show_nodes(times: list[dict[str, Any]]) -> None:
    """Prints the time of each instruction, the longest first."""
    total = sum(one["seconds"] for one in times)
    rows = [
        (
            f"{one['kernel']} #{one['id']}",
            f"{one['seconds'] * 1e6:.1f}",
            f"{one['seconds'] / total:.1%}",
            one["writes"][0],
            one["where"],
        )
        for one in sorted(times, key=lambda one: -one["seconds"])
    ]
    title = f"{len(times)} instructions, {total * 1e3:.3f} ms, each the least of several runs"
    table(title, ("instruction", "us", "share", "writes", "where"), rows)


def milliseconds(seconds: Spread) -> tuple[str, str]:
    """The median, and what lies between the percentiles."""
    median, low, high = (f"{value * 1e3:.4g}" for value in (seconds.median, seconds.low, seconds.high))
    return median, f"{low}, {high}"
