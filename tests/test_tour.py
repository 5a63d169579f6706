"""The tour is true: its snippets are run, in order, and what they print is compared."""

from __future__ import annotations

import doctest
from pathlib import Path

TOUR = Path(__file__).resolve().parents[1] / "docs" / "tour.md"


def test_the_tour_is_true() -> None:
    # A pattern of dots stands for what depends on the machine and for the rest of an error's text.
    done = doctest.testfile(str(TOUR), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert done.failed == 0
    assert done.attempted > 15
