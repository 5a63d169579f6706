"""The real models and pictures that the tests run."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

import relume


def package_folder(name: str) -> Path:
    """Where an installed package lies, without importing it (its own dependencies are not installed)."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"the tests need the package {name}; `make test` installs it"
    return Path(spec.origin).parent


DIGITS = Path(relume.__file__).parent / "demo" / "digits.onnx"


def classifier() -> Path:
    """rapidocr's text direction classifier: [N,3,H,W] -> [N,2], a MobileNetV3 with squeeze-and-excite blocks."""
    return package_folder("rapidocr_onnxruntime") / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"


@cache
def digits() -> np.ndarray:
    """The demo's held-out pictures [360,1,8,8] in 0..1."""
    from relume.cli.demo import read_digits

    return read_digits(DIGITS.parent)[0]


@cache
def text_lines(width: int) -> np.ndarray:
    """Lines of a real scanned page [N,3,48,width] in -1..1, half of them upside down, as the classifier expects."""
    page = np.asarray(Image.open(package_folder("skimage") / "data" / "page.png").convert("L"))
    strokes = np.abs(np.diff(page.astype(np.float32), axis=1)).mean(axis=1)  # text changes quickly along a row
    inside = strokes > strokes.mean() * 0.75
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(int)))
    rows = [(top, bottom) for top, bottom in edges.reshape(-1, 2) if bottom - top >= 6]
    assert len(rows) >= 4, "the scanned page has several lines of text"
    lines = []
    for index, (top, bottom) in enumerate(rows[:8]):
        line = Image.fromarray(page[max(0, top - 3) : bottom + 3])
        line = line.resize((max(1, line.width * 48 // line.height), 48)).crop((0, 0, width, 48))
        pixels = np.asarray(line.rotate(180) if index % 2 else line, dtype=np.float32)
        lines.append(np.repeat(((pixels / 255 - 0.5) / 0.5)[None], 3, axis=0))
    return np.stack(lines)
