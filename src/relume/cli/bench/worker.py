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

import numpy as np

from relume.cli.bench.engines import ENGINES, Job, Run


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes: VmRSS, what is resident, or VmHWM, the most that ever was."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def main(spec: dict, say: Callable[[dict], None]) -> None:
    """Serves one engine until standard input ends."""
    os.sched_setaffinity(0, spec["cpus"])
    engine = ENGINES[spec["engine"]]
    with np.load(spec["inputs"]) as stored:
        inputs = {name: stored[f"arr_{index}"] for index, name in enumerate(spec["names"])}
    engine.imports()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew.
    start = time.perf_counter()
    loaded = engine.load(Job(**spec["job"]), inputs)
    load_s = time.perf_counter() - start
    outputs = loaded.run()
    first_s = time.perf_counter() - start - load_s
    peak = _status("VmHWM") - before
    np.savez(spec["outputs"], *outputs)
    del outputs
    say({"version": engine.version, "load_s": load_s, "first_s": first_s, "memory_bytes": peak, **loaded.facts})
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
