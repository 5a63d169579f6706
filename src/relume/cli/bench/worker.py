"""One engine in a process of its own: `python -m relume.cli.bench.worker SPEC`, driven by `measure`.

It says one JSON line when the model is ready; then, for each line `N` that it reads, runs the model N times and says
the seconds of one run. It ends with its input. While another engine is measured it waits in a read and takes no time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from relume.cli.bench.engines import ENGINES, Job, Run

T = TypeVar("T")


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes: VmRSS, what is resident, or VmHWM, the most that ever was."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _weighed(work: Callable[[], T]) -> tuple[T, int, int]:
    """What `work` gives, the most memory that it ever had above what was resident before, and that; in bytes."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew.
    done = work()
    return done, _status("VmHWM") - before, before


def _clocked(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` gives, and the seconds that it took."""
    start = time.perf_counter()
    done = work()
    return done, time.perf_counter() - start


def main(spec: dict, say: Callable[[dict], None]) -> None:
    """Serves one engine until standard input ends."""
    os.sched_setaffinity(0, spec["cpus"])
    engine = ENGINES[spec["engine"]]
    with np.load(spec["inputs"]) as stored:
        inputs = {name: stored[f"arr_{index}"] for index, name in enumerate(spec["names"])}
    engine.imports()
    (loaded, load_s), load_bytes, before = _weighed(partial(_clocked, partial(engine.load, Job(**spec["job"]), inputs)))
    (outputs, first_s), run_bytes, ready = _weighed(partial(_clocked, loaded.run))
    np.savez(spec["outputs"], *outputs)
    del outputs
    peak = max(load_bytes, ready - before + run_bytes)
    memory = {"memory_bytes": peak, "run_bytes": run_bytes}
    say({"version": engine.version, "load_s": load_s, "first_s": first_s, **memory, **loaded.facts})
    clock = time.process_time if spec["clock"] == "processor" else time.perf_counter
    timed = loaded.timed or partial(_timed, loaded.run, clock)
    for line in sys.stdin:
        loaded.run()  # What the others left in the caches is no part of the time.
        say({"seconds": timed(int(line))})


def _timed(run: Run, clock: Callable[[], float], count: int) -> float:
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count


if __name__ == "__main__":
    # What a library prints must not come between the lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        main(json.loads(sys.argv[1]), say)
    except Exception as error:  # The one who measures must go on without this engine, and say why.
        say({"error": f"{type(error).__name__}: {str(error).strip()[:300]}"})
        sys.exit(1)
