"""The real models and pictures that the tests run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from benchmarks.zoo import data

import relume

DIGITS = Path(relume.__file__).parent / "demo" / "digits.onnx"


def classifier() -> Path:
    """rapidocr's text direction classifier: [N,3,H,W] -> [N,2], a MobileNetV3 with squeeze-and-excite blocks."""
    return data.package_folder("rapidocr_onnxruntime") / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"


@cache
def digits() -> np.ndarray:
    """The demo's held-out pictures [360,1,8,8] in 0..1."""
    from relume.cli.demo import read_digits

    return read_digits(DIGITS.parent)[0]


@cache
def text_lines(width: int) -> np.ndarray:
    """Lines of a real scanned page [N,3,48,width] in -1..1, half of them upside down, as the classifier expects."""
    count = min(8, len(data.line_strips()))
    assert count >= 4, "the scanned page has several lines of text"
    return data.text_lines(count, width)["x"]
