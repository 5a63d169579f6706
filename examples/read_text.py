"""Reads the text of a picture: finds the lines, gives each to a text recogniser, prints the words.

    pip install relume scikit-image && pip install --no-deps rapidocr-onnxruntime
    python examples/read_text.py [PICTURE]

Without a picture it reads a photographed page that comes with scikit-image. The recogniser is compiled once: every line
has a width of its own. Lines are found by simple projection: they should be nearly level.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import skimage.data
from PIL import Image

import relume

HEIGHT = 48
"""What the recogniser wants its lines to be high."""


NEAR = 12
"""Rows on each side that a row is compared with: about the distance of two lines."""


def lines(page: Image.Image) -> list[Image.Image]:
    """The lines of text, from top to bottom: runs of rows along which the grey changes much for where they are."""
    strokes = np.abs(np.diff(np.asarray(page, np.float32), axis=1)).mean(axis=1)  # Text changes quickly along a row.
    nearby = np.lib.stride_tricks.sliding_window_view(np.pad(strokes, NEAR), 2 * NEAR + 1).max(axis=1)
    inside = (strokes > 0.3 * nearby) & (strokes > 0.1 * strokes.max())
    edges = np.flatnonzero(np.diff(np.concatenate([[0], inside, [0]]))).reshape(-1, 2)
    return [
        page.crop((0, max(0, top - 5), page.width, min(page.height, bottom + 5)))
        for top, bottom in edges
        if bottom - top >= 6
    ]


def recogniser() -> tuple[relume.Executable, list[str]]:
    """rapidocr's recogniser, compiled, and its symbols, which its ONNX file carries. The first one is the blank."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        sys.exit("the recogniser is not here: pip install --no-deps rapidocr-onnxruntime")
    model = onnx.load(Path(spec.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx")
    (characters,) = (entry.value for entry in model.metadata_props if entry.key == "character")
    return relume.compile(model), ["", *characters.splitlines(), " "]


def read(exe: relume.Executable, symbols: list[str], line: Image.Image) -> str:
    """The text of one line: the best symbol of each step, repetitions and blanks dropped (CTC)."""
    scaled = line.resize((max(HEIGHT, line.width * HEIGHT // line.height), HEIGHT), Image.Resampling.BICUBIC)
    pixels = np.asarray(scaled.convert("RGB"), np.float32).transpose(2, 0, 1)[None]
    steps = exe(np.ascontiguousarray((pixels / 255 - 0.5) / 0.5))[0].argmax(-1)
    new = np.concatenate([[True], steps[1:] != steps[:-1]])
    return "".join(symbols[step] for step in steps[new])


def main() -> None:
    page = Image.open(sys.argv[1]) if len(sys.argv) > 1 else Image.fromarray(skimage.data.page())
    exe, symbols = recogniser()
    for line in lines(page.convert("L")):
        text = read(exe, symbols, line)
        if text.strip():
            print(text)


if __name__ == "__main__":
    main()
