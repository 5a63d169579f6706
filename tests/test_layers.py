"""The one-way road is enforced, and the enforcement can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINT = [str(Path(sys.executable).with_name("lint-imports")), "--config", "pyproject.toml", "--no-cache"]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(LINT, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the source tree that a test may spoil."""
    shutil.copytree(ROOT / "src" / "relume", tmp_path / "relume", ignore=shutil.ignore_patterns("__pycache__", "demo"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_house_keeps_its_contract(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("graph/types.py", "from relume import ops\n"),
        ("passes/fold.py", "import relume.lower\n"),
        ("runtime/artifact.py", "def late():\n    from relume.graph import types\n    return types\n"),
        ("utils/__init__.py", "x = 1\n"),
    ],
    ids=["upward", "sideways", "inside a function", "an undeclared room"],
)
def test_a_forbidden_import_is_refused(house: Path, file: str, line: str) -> None:
    place = house / "relume" / file
    place.parent.mkdir(exist_ok=True)
    place.write_text((place.read_text() if place.exists() else "") + "\n" + line)
    assert lint(house).returncode == 1


def test_importing_relume_imports_nothing_heavy() -> None:
    code = "import sys, relume; print(sorted({'numpy', 'onnx', 'llvmlite', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
