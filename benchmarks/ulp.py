"""The errors of all element-wise functions in units in the last place, over all exponents; do both targets agree?

    PYTHONPATH=src python benchmarks/ulp.py [--samples N] [FUNCTION...]

For f32 and f64: N significands (300) for each exponent of both signs, the special values, and the stretches where
functions bend; for f16 and bf16 all 65,536 numbers. `bits`: the AVX-512 schedule, in instructions that this machine can
run, gives the same bits as the AVX2 one for all of them. `ns` is the time per f32 element on one core, in cache.
Writes the table to benchmarks/results/ulp.md where all functions were measured. Exit status 1 where a bound is broken.
Needs the test harness beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "kernels"))

from ulps import FUNCTIONS, Measured, measure, timed

from relume.base import dtypes

DTYPES = (dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16)
RESULTS = Path(__file__).resolve().parent / "results" / "ulp.md"


def best(call: Callable[[], None]) -> float:
    """Seconds of the fastest of 50 calls."""
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def row(function: Measured, per_exponent: int) -> tuple[list[str], bool]:
    """A line of the table, and whether every bound holds. A short float may be rounded twice, from f32."""
    cells, fine, equal = [], True, True
    for dtype in DTYPES:
        if dtype not in function.dtypes:
            cells.append("")
            continue
        result = measure(function, dtype, per_exponent if dtype is dtypes.f32 else max(8, per_exponent // 8))
        limit = function.bound if dtype.bytes > 2 else max(1.0, function.bound)
        fine = fine and result.ulp <= limit and result.equal_bits
        equal = equal and result.equal_bits
        where = ", ".join(f"{value:.9g}" for value in result.at)
        cells.append(f"{result.ulp:.3f}" + (f" at {where}" if dtype is dtypes.f32 and result.ulp else ""))
    cells += ["equal" if equal else "DIFFER", f"{timed(function, dtypes.f32, best) * 1e9:.2f}"]
    return [function.op, *cells], fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", help="which (all)")
    parser.add_argument("--samples", type=int, default=300, help="significands for each exponent of f32 (300)")
    given = parser.parse_args()
    chosen = [function for function in FUNCTIONS if not given.functions or function.op in given.functions]
    lines = ["| function | f32 | f64 | f16 | bf16 | bits | ns |", "|---|---|---|---|---|---|---|"]
    print("\n".join(lines))
    broken = []
    for function in chosen:
        cells, fine = row(function, given.samples)
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if not fine:
            broken.append(function.op)
    if broken:
        print(f"beyond its bound: {', '.join(broken)}")
    elif len(chosen) == len(FUNCTIONS):
        RESULTS.parent.mkdir(exist_ok=True)
        title = f"Largest errors in units in the last place, {given.samples} samples per exponent: `benchmarks/ulp.py`."
        RESULTS.write_text("\n".join([title, "", *lines]) + "\n", encoding="utf-8")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
