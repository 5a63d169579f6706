"""Measures engines side by side: each in a process of its own, on the same processors, in turn."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relume.cli.bench.engines import ENGINES, Arrays, Job

SLICE = 0.04
"""Seconds of one slice: an engine runs the model so long, and then it is the next one's turn."""


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(*(float(np.percentile(values, share)) for share in (50, 10, 90)))


@dataclass(frozen=True)
class Measured:
    """One engine: seconds of a run, and what its worker said when it was ready. `absent` says why there is nothing."""

    seconds: Spread | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    absent: str | None = None
    difference: float | None = None
    """The largest difference of an output from ours, relative to its largest element."""


@dataclass(frozen=True)
class Report:
    """One model on so many threads.

    `clock` is `processor` (on one thread: what other programs do on the machine is left out) or `wall`. `ratio` is the
    time of the best peer over ours, turn by turn. `share` is our multiply-adds per second of the machine's peak in the
    same turn. `cold_s` and `cached_s` are load and compile with an empty cache and a full one.
    """

    threads: int
    cpus: tuple[int, ...]
    clock: str
    multiply_adds: int
    engines: Mapping[str, Measured]
    peak_rate: Spread
    share: Spread
    best: str | None
    ratio: Spread | None
    cold_s: float | None
    cached_s: float

    @property
    def ours(self) -> Measured:
        return self.engines["relume"]

    def as_json(self) -> dict[str, Any]:
        """All of it for `json.dumps`."""
        return asdict(self)


class _Worker:
    """One engine's process."""

    def __init__(self, engine: str, job: Job, cpus: Sequence[int], clock: str, inputs: Path, names: list[str]) -> None:
        self.engine = engine
        self.outputs = inputs.with_name(f"{engine}-{os.urandom(4).hex()}.npz")
        spec = {
            "engine": engine,
            "job": asdict(job),
            "cpus": list(cpus),
            "clock": clock,
            "inputs": str(inputs),
            "names": names,
            "outputs": str(self.outputs),
        }
        command = [sys.executable, "-W", "ignore", "-m", "relume.cli.bench.worker", json.dumps(spec)]
        # Our folder first: the worker must run this Relume, wherever it was imported from.
        path = os.pathsep.join([str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "OMP_NUM_THREADS": str(job.threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.facts = self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        complaint = self.process.stderr.read().strip().splitlines()
        return {"error": f"ended with status {self.process.wait()}: {complaint[-1] if complaint else 'no message'}"}

    def slice(self, count: int) -> float:
        """The seconds of one run, over `count` of them. NaN where the process has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return math.nan
        return self._hear().get("seconds", math.nan)

    def results(self) -> list[np.ndarray]:
        with np.load(self.outputs) as stored:
            return [stored[name] for name in stored.files]

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(
    model: Path,
    inputs: Arrays,
    *,
    multiply_adds: int,
    threads: int,
    peers: Sequence[str],
    rounds: int,
    program: Path | None = None,
    cold: bool = True,
    cache: Path | None = None,
) -> Report:
    """Measures Relume and its peers on one model and one set of inputs.

    `multiply_adds` are those of one run. `program` is the model as a `torch.export` file. With `cold`, our compilation
    is first timed with an empty cache. `cache` is a folder for compiled code (None: one for this call alone).

    Raises `RuntimeError` where Relume itself fails in its worker.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0))[:threads])
    clock = "processor" if threads == 1 else "wall"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stored = Path(folder) / "inputs.npz"
        np.savez(stored, *inputs.values())
        job = Job(str(model), threads, str(program) if program else None, str(cache or Path(folder) / "cache"))

        def start(engine: str) -> _Worker:
            worker = _Worker(engine, job, cpus, clock, stored, list(inputs))
            stack.callback(worker.close)
            return worker

        first = start("relume")
        workers: dict[str, _Worker] = {}
        absent: dict[str, str] = {}
        for engine in ("relume", *peers, "peak"):
            missing = ENGINES[engine].absent(job)
            if missing is None:
                workers[engine] = start(engine)
                missing = workers[engine].facts.get("error")
            if missing is not None:
                absent[engine] = missing
                workers.pop(engine, None)
        for engine in ("relume", "peak"):
            if engine in absent:
                raise RuntimeError(absent[engine])
        times = _in_turn(workers, rounds)
        peak = workers["peak"]
        rates = [peak.facts["multiply_adds"] / seconds for seconds in times["peak"]]
        ours = times["relume"]
        best = min((name for name in workers if name in peers), key=lambda name: np.median(times[name]), default=None)
        engines = {
            name: Measured(Spread.of(times[name]), worker.facts, None, _difference(worker, workers["relume"]))
            for name, worker in workers.items()
            if name != "peak"
        }
        engines |= {name: Measured(absent=why) for name, why in absent.items()}
        return Report(
            threads,
            cpus,
            clock,
            multiply_adds,
            engines,
            Spread.of(rates),
            Spread.of([multiply_adds / seconds / rate for seconds, rate in zip(ours, rates)]),
            best,
            Spread.of([theirs / mine for theirs, mine in zip(times[best], ours)]) if best else None,
            first.facts["load_s"] if cold and first.facts.get("llvm_calls") else None,
            workers["relume"].facts["load_s"],
        )


def _in_turn(workers: Mapping[str, _Worker], rounds: int) -> dict[str, list[float]]:
    """Seconds of a run by engine and round. Every round begins with another engine."""
    counts = {}
    for name, worker in workers.items():
        once = worker.slice(1)
        counts[name] = max(1, min(10_000, round(SLICE / once))) if once > 0 else 1
    names = list(workers)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        shift = index % len(names)
        for name in (*names[shift:], *names[:shift]):
            times[name].append(workers[name].slice(counts[name]))
    for name, seconds in times.items():
        if not all(map(math.isfinite, seconds)):
            raise RuntimeError(f"{name} has ended while it was measured")
    return times


def _difference(worker: _Worker, ours: _Worker) -> float | None:
    """How far an engine's outputs are from ours, at most; None for ours."""
    if worker is ours:
        return None
    pairs = list(zip(worker.results(), ours.results(), strict=True))
    differences = [
        float(np.abs(theirs.astype(np.float64) - mine).max() / max(np.abs(mine).max(), 1e-30))
        for theirs, mine in pairs
        if mine.size
    ]
    return max(differences, default=0.0)


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one positive value."""
    return statistics.geometric_mean(values)
