"""`python -m tests.fuzz`: many random programs, every schedule and aliasing of each. See `fuzzing`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lower")]

from fuzzing import Fuzzer, report  # noqa: E402
from machine import Kernels  # noqa: E402

from relume.codegen import default_cache  # noqa: E402


def main() -> int:
    """Runs the fuzzer. Gives 1, and prints the smallest program and its seed, where a variant differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="how many random programs (2000)")
    parser.add_argument("--schedules", type=int, default=8, help="orders of each program (8)")
    parser.add_argument("--choices", type=int, default=256, help="most aliasings of each order (256)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program (0)")
    given = parser.parse_args()
    fuzzer = Fuzzer(schedules=given.schedules, choices=given.choices, kernels=Kernels(default_cache()))
    terminal = sys.stdout.isatty()
    begin, shown, seed = time.perf_counter(), 0.0, given.seed
    while fuzzer.counts.programs < given.programs:
        try:
            fuzzer.check(seed)
        except Exception as error:
            print(f"\nseed {seed} fails with {type(error).__name__}; the smallest program of it:", flush=True)
            print(report(fuzzer, seed))
            return 1
        seed += 1
        spent = time.perf_counter() - begin
        if spent - shown > (0.5 if terminal else 60):
            shown = spent
            counts = fuzzer.counts
            line = f"{counts.programs} of {given.programs} programs, {counts.variants} variants, {spent:.0f} s"
            print(f"\r{line}" if terminal else line, end="" if terminal else "\n", flush=True)
    spent, end = time.perf_counter() - begin, "\n" if terminal else ""
    print(f"{end}{fuzzer.counts}, kernels {len(fuzzer.kernels)}; {spent:.1f} s; every variant equals its oracle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
