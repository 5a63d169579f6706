"""Where we stand: every model of the zoo beside its peers, on one and on two threads. `make bench`.

    python -m benchmarks.models [NAME...] [--rounds N] [--threads 1,2] [--no-kernels]

Each engine has a process of its own on the same processors; they take turns, every round beginning with another one, so
that a busy machine hits all of them. On one thread the clock is the processor's: what others do on the machine is left
out. Ratios are the best peer's time over ours, turn by turn. Writes `benchmarks/results/models.{md,json,svg}`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kernels, zoo
from benchmarks.chart import chart

import relume
from relume.cli.bench.engines import PEERS
from relume.cli.bench.measure import Report, geometric_mean, measure
from relume.cli.bench.work import multiply_adds

RESULTS = Path(__file__).parent / "results"
KERNELS = ("matmul 512^3", *(f"conv {name}" for name in kernels.RESNET50))

COLUMNS = ("model", "threads", "M mul-adds", "ours ms", *PEERS, "best/ours", "10th..90th", "G/s", "of peak")
MEMORY = ("model", "ours MB", *PEERS, "cold s", "cached s", "their load s")
ARENAS = ("model", "arena KB", "live KB", "over", "a run adds KB", *PEERS)


def _measure(model: zoo.Model, folder: Path, threads: Sequence[int], rounds: int) -> dict[int, Report]:
    """A report for each number of threads."""
    path = folder / f"{model.name}.onnx"
    path.write_bytes(model.onnx())
    inputs = model.inputs(model.sizes[0])
    program = None
    if model.network is not None:
        import torch

        program = folder / f"{model.name}.pt2"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensors = tuple(torch.from_numpy(array) for array in inputs.values())
            torch.export.save(torch.export.export(model.network(), tensors), program)
    fn = relume.load(path).main
    work = multiply_adds(fn, {name: array.shape for name, array in inputs.items()})
    peers = [name for name in PEERS if name != "torch" or program is not None]
    return {
        count: measure(
            path,
            inputs,
            multiply_adds=work,
            threads=count,
            peers=peers,
            rounds=rounds,
            program=program,
            cache=folder / model.name,
        )
        for count in threads
    }


def _row(name: str, report: Report) -> tuple[str, ...]:
    times = [report.engines.get(engine) for engine in ("relume", *PEERS)]
    shown = [f"{one.seconds.median * 1e3:.3f}" if one is not None and one.seconds else "-" for one in times]
    ratio = report.ratio
    return (
        name,
        str(report.threads),
        f"{report.multiply_adds / 1e6:,.1f}",
        *shown,
        f"{ratio.median:.2f}" if ratio else "-",
        f"{ratio.low:.2f}..{ratio.high:.2f}" if ratio else "-",
        f"{report.multiply_adds / report.ours.seconds.median / 1e9:.1f}" if report.ours.seconds else "-",
        f"{report.share.median:.0%}",
    )


def _memory_row(name: str, report: Report) -> tuple[str, ...]:
    facts = report.ours.facts
    peers = [report.engines[peer].facts if peer in report.engines else {} for peer in PEERS]
    loads = [f"{one['load_s']:.2f}" if "load_s" in one else "-" for one in peers]
    return (
        name,
        f"{facts['memory_bytes'] / 2**20:.1f}",
        *(f"{one['memory_bytes'] / 2**20:.1f}" if "memory_bytes" in one else "-" for one in peers),
        f"{report.cold_s:.2f}" if report.cold_s is not None else "-",
        f"{report.cached_s:.3f}",
        ", ".join(loads),
    )


def _arena_row(name: str, report: Report) -> tuple[str, ...]:
    facts = report.ours.facts
    peers = [report.engines[peer].facts if peer in report.engines else {} for peer in PEERS]
    arena, live = facts["arena_bytes"], facts["live_bytes"]
    return (
        name,
        f"{arena / 1024:,.0f}",
        f"{live / 1024:,.0f}",
        f"{arena / live - 1:.1%}" if live else "-",
        *(f"{one['run_bytes'] / 1024:,.0f}" if "run_bytes" in one else "-" for one in (facts, *peers)),
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is readable as text."""
    widths = [max(map(len, column)) for column in zip(columns, *rows)]
    rule = ["-" * width if index == 0 else "-" * (width - 1) + ":" for index, width in enumerate(widths)]
    lines = [columns, rule, *rows]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))) + " |"
        for line in lines
    )


def _means(reports: Mapping[str, Mapping[int, Report]], threads: Sequence[int]) -> dict[int, float]:
    """The geometric mean of the ratios, by threads."""
    means = {}
    for count in threads:
        ratios = [by[count].ratio.median for by in reports.values() if count in by and by[count].ratio is not None]
        if ratios:
            means[count] = geometric_mean(ratios)
    return means


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':')[1].strip()}, {os.cpu_count()} processors"
    return platform.processor()


def _written(
    reports: Mapping[str, Mapping[int, Report]],
    shares: Mapping[str, float],
    missing: Mapping[str, str],
    threads: Sequence[int],
) -> str:
    """Writes the three files; the text of the table."""
    means = _means(reports, threads)
    engines = {name: one for by in reports.values() for report in by.values() for name, one in report.engines.items()}
    versions = ", ".join(f"{name} {one.facts['version']}".strip() for name, one in engines.items() if one.facts)
    parts = [
        "# Models",
        f"{_machine()}; {versions}. Times of one run in ms, medians. `python -m benchmarks.models` writes this page.",
        _table(COLUMNS, [_row(name, report) for name, by in reports.items() for report in by.values()]),
        "\n".join(f"Geometric mean of best peer / ours, {n} thread(s): {mean:.3f}" for n, mean in means.items()),
        "Memory above the imports (load and one run, one thread), and seconds to load (ours from ONNX to ready):",
        _table(MEMORY, [_memory_row(name, next(iter(by.values()))) for name, by in reports.items()]),
        "Our arena, and the largest sum of buffers that are live at once. Our peers do not tell theirs: beside it "
        "stands what the first run adds to the resident memory of each process (arena, outputs, pages of code):",
        _table(ARENAS, [_arena_row(name, next(iter(by.values()))) for name, by in reports.items()]),
    ]
    parts += [f"Not measured: {name}, {why}." for name, why in missing.items()]
    if shares:
        rows = [(name, f"{share:.0%}") for name, share in shares.items()]
        parts += [
            "Kernels on one thread, as a share of the peak measured around each:",
            _table(("case", "share"), rows),
        ]
    text = "\n\n".join(parts) + "\n"
    data: dict[str, Any] = {
        "machine": _machine(),
        "means": means,
        "models": {name: [report.as_json() for report in by.values()] for name, by in reports.items()},
        "kernels": dict(shares),
        "missing": dict(missing),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "models.md").write_text(text)
    (RESULTS / "models.json").write_text(json.dumps(data, indent=1) + "\n")
    ratios = {
        name: {count: report.ratio.median for count, report in by.items() if report.ratio is not None}
        for name, by in reports.items()
    }
    (RESULTS / "models.svg").write_text(chart(ratios, means, threads))
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Every model of the zoo beside its peers.")
    parser.add_argument("names", nargs="*", help="only these models")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--no-kernels", action="store_true")
    options = parser.parse_args()
    threads = [int(count) for count in options.threads.split(",")]
    threads = [count for count in threads if count <= len(os.sched_getaffinity(0))]
    reports: dict[str, dict[int, Report]] = {}
    missing: dict[str, str] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or zoo.MODELS:
            model = zoo.MODELS[name]
            if model.missing is not None:
                missing[name] = f"the package {model.missing} is not installed"
                continue
            try:
                reports[name] = _measure(model, Path(folder), threads, options.rounds)
            except (relume.RelumeError, RuntimeError) as error:
                missing[name] = str(error).splitlines()[0]
                print(f"{name}: {missing[name]}", file=sys.stderr)
                continue
            for report in reports[name].values():
                print("  ".join(_row(name, report)), file=sys.stderr, flush=True)
    shares = {} if options.no_kernels else {name: share for name, _, share, _ in kernels.measure(KERNELS)}
    print(_written(reports, shares, missing, threads))
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
