"""What it costs that weights are a state: packed once for each version, against in every run.

    python benchmarks/states.py

One row times a matrix of 512 x 512 on one thread. Medians with the spread from the 10th to the 90th percentile, all
ways in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

import relume

SIZE, ROUNDS, CALLS = 512, 40, 100

STATE = f"""
func @infer(%x : f32[1,{SIZE}]) states(%w : f32[{SIZE},{SIZE}]) {{
  %m = state_read(%w)
  %y = matmul(%x, %m)
  return %y as "y" states(%w)
}}

func @touch(%i : i64[0], %rows : f32[0,{SIZE}]) states(%w : f32[{SIZE},{SIZE}]) {{
  %w1 = scatter_add(%w, %i, %rows)
  return states(%w1)
}}
"""

CONSTANT = f"""
func @infer(%x : f32[1,{SIZE}]) {{
  %y = matmul(%x, @w)
  return %y as "y"
}}
const @w : f32[{SIZE},{SIZE}] = random(1)
"""


def per_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    dice = np.random.default_rng(0)
    w, x = (dice.standard_normal((rows, SIZE), np.float32) for rows in (SIZE, 1))
    kept, plain = (relume.compile(relume.parse(STATE), threads=1, optimize=level) for level in (1, 0))
    constant = relume.compile(relume.parse(CONSTANT), threads=1)
    storage, written, borrowed = relume.Storage({"w": w}), relume.Storage({"w": w}), relume.Storage.borrow({"w": w})
    nothing = {"i": np.empty(0, np.int64), "rows": np.empty((0, SIZE), np.float32)}

    def after_a_write() -> object:
        kept["touch"].run(nothing, states=written)
        return kept.run({"x": x}, states=written)

    ways: dict[str, Callable[[], object]] = {
        "weights are a constant": lambda: constant.run({"x": x}),
        "a state, packed once": lambda: kept.run({"x": x}, states=storage),
        "a state, written before each run": after_a_write,
        "a state, borrowed memory": lambda: kept.run({"x": x}, states=borrowed),
        "a state, optimize=0": lambda: plain.run({"x": x}, states=storage),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            times[name].append(per_call(way))
    assert storage.derived_bytes == w.nbytes
    print(f"one row times f32[{SIZE},{SIZE}], us per run; kept beside the state: {storage.derived_bytes:,} bytes")
    for name, seconds in times.items():
        low, *_, high = statistics.quantiles(seconds, n=10)
        print(f"  {name:34}{statistics.median(seconds) * 1e6:8.1f}  ({low * 1e6:.1f} to {high * 1e6:.1f})")


if __name__ == "__main__":
    main()
