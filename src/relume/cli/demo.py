"""`relume demo`: the whole road on the small network that ships inside the package."""

from __future__ import annotations

import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from relume import api
from relume.cli.console import command, emit_json, out, progress, table

FULL_SCALE = 240
"""The brightest pixel of the shipped pictures; the network was trained on 0..1."""

AGREEMENT = 1e-5
"""How far native code may be from the reference, relative to the largest output."""


def read_digits(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The held-out pictures [N,1,8,8] in 0..1 and their labels [N], in the order of the file names."""
    paths = sorted((folder / "images").glob("*_is_*.png"))
    pictures = [np.asarray(Image.open(path), dtype=np.float32) / FULL_SCALE for path in paths]
    return np.stack(pictures)[:, None], np.array([int(path.stem[-1]) for path in paths])


@command
def demo(as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False) -> None:
    """Compiles the digits network that ships with Relume and reads held-out handwritten digits with it."""
    with as_file(files("relume") / "demo") as folder:
        pictures, labels = read_digits(folder)
        module = api.load(folder / "digits.onnx")
    start = time.perf_counter()
    with progress("compiling"):
        executable = api.compile(module)
    compile_time = time.perf_counter() - start

    predicted, times = [], []
    for picture in pictures:
        start = time.perf_counter()
        scores = executable(picture[None])
        times.append(time.perf_counter() - start)
        predicted.append(int(scores.argmax()))
    accuracy = float((np.array(predicted) == labels).mean())

    # The reference judges all pictures in one batch: the batch is symbolic, and no bit depends on it.
    (name,) = module.main.output_names
    meaning = api.evaluate(module, {module.main.inputs[0].name: pictures})[name]
    difference = float(np.abs(executable(pictures) - meaning).max() / np.abs(meaning).max())
    image_time = float(np.median(times))
    if as_json:
        emit_json(
            {
                "pictures": len(labels),
                "accuracy": accuracy,
                "predicted": predicted,
                "labels": labels.tolist(),
                "compile_s": compile_time,
                "image_s": image_time,
                "difference": difference,
            }
        )
    else:
        for digit in pictures[:2, 0]:
            out.print("\n".join("".join(" .:-=+*#%@"[int(p * 9)] * 2 for p in row) for row in digit), markup=False)
        rows = []
        for digit in range(10):
            mine = [p for p, label in zip(predicted, labels) if label == digit]
            wrong = ", ".join(str(p) for p in mine if p != digit)
            rows.append((digit, len(mine), sum(p == digit for p in mine), wrong or "-"))
        table("predictions against labels", ("label", "pictures", "right", "read as instead"), rows)
        out.print(f"accuracy        {accuracy:.2%} of {len(labels)} held-out pictures")
        out.print(f"time per image  {image_time * 1e6:.1f} us (median, batch of one, called from Python)")
        out.print(f"compile time    {compile_time * 1e3:.1f} ms")
        out.print(f"reference       agrees within {difference:.1e} of the largest output")
    if accuracy < 0.98 or not difference <= AGREEMENT:
        out.print("the demo failed: accuracy under 98 % or native code differs from the reference")
        raise typer.Exit(1)
