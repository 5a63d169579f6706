"""The snippets of docs/adding-a-pass.md run, and its text test passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import textcase
from relume import pipeline
from relume.base.errors import CompileError
from relume.graph.rules import sides
from relume.ops import OPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-pass.md"


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```(\S+)( raises)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    for _, raises, code in (block for block in blocks if block[0] == "python"):
        if raises:
            with pytest.raises(CompileError) as caught:
                exec(code, scope)
            first_line = str(caught.value).split("\n")[0]
            assert f"CompileError: {first_line}" in " ".join(PAGE.read_text().split())
        else:
            exec(code, scope)
    sides(scope["log_of_exp"], OPS)
    step = scope["square_by_mul"]
    monkeypatch.setattr(pipeline, "PASSES", {**pipeline.PASSES, step.name: step})
    (case_text,) = (code for language, _, code in blocks if language == "rlm")
    path = tmp_path / "square_by_mul.rlm"
    path.write_text(case_text)
    cases = list(textcase.cases_of(path))
    assert len(cases) == 2
    for case in cases:
        textcase.check(case)
