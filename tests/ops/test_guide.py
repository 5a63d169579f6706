"""The guide to adding an op is true: its snippets are run."""

from __future__ import annotations

import doctest
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "adding-an-op.md"


def test_the_guide_is_true() -> None:
    done = doctest.testfile(str(GUIDE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert done.failed == 0
    assert done.attempted > 15
