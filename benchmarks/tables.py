"""What one training-like step on a large embedding table writes, keeps in memory and takes (requirement M14).

    python -m benchmarks.tables

The table has 10,000,000 rows of 16 floats (640 MB). A step looks up 8 rows, one of them twice, and moves each towards
a goal. It is compared with a dense update in NumPy (a gradient as large as the table) and, where PyTorch is installed,
with its sparse embedding and SGD, in turn in one process on one thread. Then a table in a sparse file of 8 GiB.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests import process

import relume

ROWS, WIDTH, RATE, ROUNDS = 10_000_000, 16, 0.5, 9
ROW = 4 * WIDTH
SPARSE = (8 << 30) // ROW
NAMED = np.array([5, 9_999_999, 77, 5, 1_234_567, 8_000_001, 4_999_999, 2_718_281])
DISTINCT = len(set(NAMED.tolist()))
Step = Callable[[], object]


def compiled(rows: int) -> relume.Executable:
    return relume.compile(
        relume.parse(
            f"""func @step(%i : i64[{len(NAMED)}], %goal : f32[{len(NAMED)},{WIDTH}])
            states(%table : f32[{rows},{WIDTH}]) {{
              %now = state_read(%table)
              %rows = gather(%now, %i, axis=0)
              %away = sub(%goal, %rows)
              %part = mul(%away, @rate)
              %next = scatter_add(%table, %i, %part)
              return %rows states(%next)
            }}
            const @rate : f32[1] = [{RATE}]"""
        ),
        threads=1,
    )


def expected(table: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The rows named, after a step: each occurrence adds its part, in order."""
    rows = {index: table[index].copy() for index in NAMED.tolist()}
    for index, wanted in zip(NAMED.tolist(), goal):
        rows[index] += (wanted - table[index]) * np.float32(RATE)
    return np.stack([rows[index] for index in NAMED.tolist()])


def changed(before: np.ndarray, after: np.ndarray) -> tuple[set[int], int]:
    """The rows that differ, and how many bytes do: over the whole table, piece by piece."""
    rows: set[int] = set()
    count = 0
    for start in range(0, len(before), 1 << 18):
        differ = before[start : start + (1 << 18)].view(np.uint8) != after[start : start + (1 << 18)].view(np.uint8)
        count += int(np.count_nonzero(differ))
        rows |= {start + int(row) for row in np.flatnonzero(differ.any(1))}
    return rows, count


def peak(step: Step) -> int:
    """By how much the resident memory rose, at its highest, during a step."""
    process.forget_peak()
    before = process.status("VmRSS")
    step()
    return process.status("VmHWM") - before


def dense(table: np.ndarray, goal: np.ndarray) -> None:
    gradient = np.zeros_like(table)
    np.add.at(gradient, NAMED, goal - table[NAMED])
    gradient *= np.float32(RATE)
    table += gradient


def sparse_torch(table: np.ndarray, goal: np.ndarray) -> Step | None:
    """A step of PyTorch on the same memory; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    layer = torch.nn.Embedding.from_pretrained(torch.from_numpy(table), freeze=False, sparse=True)
    sgd = torch.optim.SGD(layer.parameters(), lr=RATE)
    indices, wanted = torch.from_numpy(NAMED), torch.from_numpy(goal)

    def step() -> None:
        sgd.zero_grad()
        (0.5 * (layer(indices) - wanted).square().sum()).backward()
        sgd.step()

    return step


def timed(steps: dict[str, tuple[Step, int]]) -> None:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, (step, count) in steps.items():
            start = time.perf_counter()
            for _ in range(count):
                step()
            times[name].append((time.perf_counter() - start) / count)
    base = statistics.median(times["relume"])
    print(f"time per step, us: median of {ROUNDS} rounds in turn (lowest to highest), one thread")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        spread = f"({min(seconds) * 1e6:.1f} to {max(seconds) * 1e6:.1f})"
        print(f"  {name:28}{middle * 1e6:12.1f}  {spread:28}{middle / base:10.1f}x")


def in_memory(folder: Path) -> None:
    dice = np.random.default_rng(0)
    table = dice.standard_normal((ROWS, WIDTH), np.float32)
    goal = dice.standard_normal((len(NAMED), WIDTH), np.float32)
    before, want = table.copy(), expected(table, goal)
    exe, storage = compiled(ROWS), relume.Storage.borrow({"table": table})
    given = {"i": NAMED, "goal": goal}
    rise = peak(lambda: exe.run(given, states=storage))
    rows, count = changed(before, table)
    assert rows == set(NAMED.tolist()), "only the rows named have changed"
    assert table[NAMED].tobytes() == want.tobytes(), "each occurrence is added, in order"
    assert rise < table.nbytes
    print(f"table of {ROWS:,} x {WIDTH} f32: {table.nbytes:,} bytes; {len(NAMED)} lookups of {DISTINCT} rows")
    print(f"  rows changed    {len(rows)}: exactly the {DISTINCT} named; the one named twice has both updates")
    print(f"  bytes changed   {count} of the {DISTINCT * ROW} in these rows; 0 elsewhere (the whole table compared)")

    path = folder / "table"
    before.tofile(path)
    del before
    # Copy on write: each page that is written, and no other, becomes anonymous. (In a shared mapping the kernel counts
    # all pages of a large folio as dirty with the first one.)
    private = np.memmap(path, np.float32, "c", 0, table.shape)
    exe.run(given, states=relume.Storage.borrow({"table": np.asarray(private)}))
    dirty = process.mapping(path)["Anonymous"]
    assert 0 < dirty <= process.PAGE * DISTINCT
    print(f"  pages written   {dirty // process.PAGE}, {dirty:,} bytes (the same table, mapped copy-on-write; smaps)")
    del private
    path.unlink()

    theirs = sparse_torch(table, goal)
    steps: dict[str, tuple[Step, int]] = {
        "relume": (lambda: exe.run(given, states=storage), 500),
        "NumPy, dense": (lambda: dense(table, goal), 1),
    }
    if theirs is None:
        print("PyTorch is not installed: no comparison with it")
    else:
        theirs()
        steps["PyTorch, sparse SGD"] = theirs, 100
    print(f"  peak memory of a step above the table, bytes (limit {table.nbytes:,}: one more table)")
    for name, (step, _) in steps.items():
        print(f"    {name:26}{rise if name == 'relume' else peak(step):14,}")
    timed(steps)


def in_a_sparse_file(folder: Path) -> None:
    path = folder / "sparse"
    with path.open("wb") as file:
        file.truncate(SPARSE * ROW)
    exe = compiled(SPARSE)
    storage = relume.Storage.map({"table": (path, np.float32, (SPARSE, WIDTH))})
    indices = NAMED * (SPARSE // ROWS)
    goal = np.ones((len(NAMED), WIDTH), np.float32)
    before = process.mapping(path)
    exe.run({"i": indices, "goal": goal}, states=storage)
    after = process.mapping(path)
    resident, dirty = after["Rss"] - before["Rss"], after["Dirty"] - before["Dirty"]
    most, most_dirty = (64 << 10) * DISTINCT + (1 << 20), process.PAGE * DISTINCT
    print(f"sparse file of {SPARSE * ROW:,} bytes as a table, {DISTINCT} rows touched (smaps of the mapping)")
    print(f"  resident growth {resident:10,} bytes, limit {most:,} (64 KB a row and 1 MB)")
    print(f"  dirty           {dirty:10,} bytes, limit {most_dirty:,} (4 KB a row)")
    print(f"  on disk         {path.stat().st_blocks * 512:10,} bytes")
    assert resident <= most and 0 < dirty <= most_dirty


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        in_memory(Path(folder))
        in_a_sparse_file(Path(folder))


if __name__ == "__main__":
    main()
