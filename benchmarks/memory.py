"""The memory of one run of each model: arenas by order of instructions, and the peak beside ONNX Runtime's.

    python -m benchmarks.memory

The arena is planned for the input shapes given, once for program order and once for the order chosen for memory; the
bound is the largest sum of buffers that are live at once in the better of the two, after in-place decisions. For the
peak each engine runs in a process of its own, on one thread: imports, then the compiled executable or the session
(weights and code are there), then one run. `peak` is the resident memory of the process at its highest in that run
(VmHWM, counted anew from then) above what was resident before it. It holds arena, outputs, and whatever else a first
run allocates or touches: thread stacks, scratch of kernels, pages of code. Heap that loading has freed and the run uses
again was resident before and is not in it; that helps who allocates from the heap (ONNX Runtime) and small inputs, so
the whole process's peak stands beside it (ours has the compiler in it). From 2 MB on
our arena sits on huge pages: up to 2 MB of rounding.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests import models, process

import relume
from relume import pipeline
from relume.base import dims, intervals, targets
from relume.base.errors import RelumeError
from relume.ops.inference import requirements_of
from relume.program.plan import lifetimes, sizes
from relume.program.types import Program

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A model and the shape of its one input."""

    path: Path
    shape: Shape


def cases() -> list[Case]:
    folder = models.classifier().parent
    return [
        Case(models.DIGITS, (1, 1, 8, 8)),
        Case(models.DIGITS, (256, 1, 8, 8)),
        Case(models.classifier(), (1, 3, 48, 192)),
        Case(models.classifier(), (8, 3, 48, 192)),
        Case(folder / "ch_PP-OCRv4_det_infer.onnx", (1, 3, 320, 320)),
        Case(folder / "ch_PP-OCRv4_det_infer.onnx", (1, 3, 640, 640)),
        Case(folder / "ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320)),
    ]


# --- what is planned ------------------------------------------------------------------------------------------------


def arena(program: Program, binding: Mapping[str, int]) -> tuple[int, int]:
    """The bytes of a planned program's arena, and the largest live sum (each size rounded as the planner does)."""
    needed = [-(-dims.evaluate(size, binding) // 64) * 64 for size in sizes(program).values()]
    first, last = zip(*lifetimes(program).values())
    return intervals.plan(needed, first, last)[1], intervals.lower_bound(needed, first, last)


def arenas(case: Case) -> tuple[int, int, int]:
    """Bytes by program order, by memory order, and the bound."""
    fn = relume.load(case.path).main
    optimized, needs = pipeline.optimize(fn), requirements_of(fn)
    binding = {str(dim): size for dim, size in zip(fn.inputs[0].dims, case.shape) if not isinstance(dim, int)}
    host = targets.parse("host")
    made = [pipeline.to_program(optimized, host, order=order, requirements=needs) for order in ("program", "memory")]
    (one, least), (other, least_other) = (arena(program, binding) for program in made)
    return one, other, min(least, least_other)


# --- what is measured -----------------------------------------------------------------------------------------------


def ours(path: Path) -> Callable[[np.ndarray], object]:
    return relume.compile(path, threads=1)


def theirs(path: Path) -> Callable[[np.ndarray], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})


ENGINES = {"relume": ours, "onnxruntime": theirs}


def child(engine: str, path: str, shape: str) -> None:
    """Prints the peak of one run above what was resident before, and the peak as such."""
    x = np.random.default_rng(0).standard_normal(tuple(map(int, shape.split(",")))).astype(np.float32)
    run = ENGINES[engine](Path(path))
    process.forget_peak()
    before = process.status("VmRSS")
    run(x)
    print(process.status("VmHWM") - before, process.status("VmHWM"))


def measured(engine: str, case: Case) -> tuple[int, int] | None:
    """The peak of one run, and of the whole process in it; None where the engine is missing or does not run it."""
    what = engine, str(case.path), ",".join(map(str, case.shape))
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", *what]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{engine} does not run {case.path.name}: {done.stderr.strip().splitlines()[-1]}")
        return None
    above, whole = map(int, done.stdout.split())
    return above, whole


def shown(size: int | None) -> str:
    return "-" if size is None else f"{size / 1024:,.0f}"


def main() -> None:
    warnings.simplefilter("ignore")
    rows = [("model", "input", "program", "memory", "bound", "relume", "ort", "relume", "ort")]
    for case in cases():
        try:
            planned = arenas(case)
        except RelumeError as error:
            print(f"{case.path.name} does not compile: {error.what}")
            continue
        measured("relume", case)  # Fills the cache, so that the one that counts compiles nothing.
        peaks = [measured(engine, case) for engine in ENGINES]
        above, whole = ([None if one is None else one[index] for one in peaks] for index in (0, 1))
        shape = "x".join(map(str, case.shape))
        rows.append((case.path.stem[:22], shape, *map(shown, (*planned, *above, *whole))))
    print(f"{'KB':38}" + "arena by order, bound".center(30) + "peak of a run".center(20) + "whole process".center(20))
    for name, shape, *numbers in rows:
        print(f"{name:24}{shape:14}" + "".join(f"{number:>10}" for number in numbers))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
    else:
        main()
