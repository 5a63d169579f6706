"""The interpreter of programs, which the tests of `program` have too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "program"))
