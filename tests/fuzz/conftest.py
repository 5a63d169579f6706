"""The random functions, which the tests of `lower` have too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lower"))
