"""Collects `.rlm` files: what they say is explained in `textcase`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import textcase


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    return RlmFile.from_parent(parent, path=file_path) if file_path.suffix == ".rlm" else None


class RlmFile(pytest.File):
    """One `.rlm` file under `tests/`."""

    def collect(self) -> Iterator[RlmItem]:
        try:
            for case in textcase.cases_of(self.path):
                yield RlmItem.from_parent(self, name=case.name, case=case)
        except textcase.CaseFailure as failure:
            raise self.CollectError(f"{self.path}:{failure.line}: {failure}") from failure


class RlmItem(pytest.Item):
    """One case of a file."""

    def __init__(self, *, case: textcase.Case, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.case = case

    def runtest(self) -> None:
        textcase.check(self.case)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:
        if isinstance(excinfo.value, textcase.CaseFailure):
            return f"{self.path}:{excinfo.value.line}: {excinfo.value}"
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, self.name
