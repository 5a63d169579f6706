"""The examples that need no training run as their first lines say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(
    importlib.util.find_spec("rapidocr_onnxruntime") is None, reason="the package rapidocr_onnxruntime is not installed"
)
def test_the_text_of_a_photographed_page_is_read() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "read_text.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.replace(" ", "") == "Region-basedsegmentation"
    assert "Let us first determine markers of the coins and the" in lines
    assert "unambiguously as either object or background" in done.stdout
