"""The page of ONNX operators says what the translators say."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from relume.frontends import onnx as frontend
from relume.frontends.onnx.coverage import page

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"


def test_the_page_of_operators_is_current() -> None:
    assert frontend.translate
    text = PAGE.read_text(encoding="utf-8")
    if f"to {onnx.defs.onnx_opset_version()} of the" not in text.replace("\n", " "):
        pytest.skip("the page was written with another version of the onnx package")
    assert text == page(), "write it anew: python -m relume.frontends.onnx --write docs/onnx.md"
