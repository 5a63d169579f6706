"""How many instructions a run of a model executes on AVX2, counted by callgrind: a measure without noise.

    python -m benchmarks.instructions           counts, beside those recorded
    python -m benchmarks.instructions --write   records them, in benchmarks/instructions.json

Compilation is not counted, nor is Python: the counted run calls the generated code directly, on one thread. Needs
valgrind. A count is no time (it knows no cache), but it moves only when the generated code does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import llvmlite
import numpy as np
from benchmarks import zoo

import relume

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_suffix(".json")
MODELS = ("classifier", "letters", "onet")
"""Some of each kind, small enough for an emulated processor."""
TOLERANCE = 0.01
"""A poll now and then depends on the clock; all else is fixed."""


def valgrind() -> str | None:
    """Where valgrind is, if anywhere."""
    return shutil.which("valgrind")


def recorded() -> tuple[dict[str, int], str]:
    """The counts that were recorded, and the version of llvmlite that they are for."""
    record = json.loads(RECORD.read_text())
    return record["instructions"], record["llvmlite"]


def count(name: str) -> int:
    """The instructions of one run of a model of the zoo. Raises `RuntimeError` where valgrind fails."""
    model = zoo.MODELS[name]
    # Compiled out here, as a file that runs without the compiler: under valgrind that would take minutes.
    exe = relume.compile(model.onnx(), target="x86-64-avx2", threads=1)
    inputs = model.inputs(model.sizes[0])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model"
        relume.save(exe, file.with_suffix(".rlx"))
        np.savez(file.with_suffix(".npz"), *(inputs[port.name] for port in exe.inputs))
        command = [
            *(str(valgrind()), "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"),
            *(sys.executable, "-W", "ignore", "-m", "benchmarks.counted", str(file)),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        totals = [
            int(total)
            for path in sorted(Path(folder).glob("counts*"))
            for total in re.findall(r"^totals: (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
        ]
    if done.returncode or not any(totals):
        raise RuntimeError(f"valgrind counted nothing for {name}: {done.stderr.strip()[-500:]}")
    return max(totals)  # The other dump, at the end, is empty.


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the instructions of a run.")
    parser.add_argument("--write", action="store_true", help="record the counts")
    options = parser.parse_args()
    if valgrind() is None:
        sys.exit("valgrind is not installed")
    counts = {name: count(name) for name in MODELS}
    before = recorded()[0] if RECORD.exists() else {}
    for name, instructions in counts.items():
        change = f"{instructions / before[name] - 1:+.2%}" if name in before else "new"
        print(f"{name:14}{instructions:16,}  {change}")
    if options.write:
        RECORD.write_text(json.dumps({"llvmlite": llvmlite.__version__, "instructions": counts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
