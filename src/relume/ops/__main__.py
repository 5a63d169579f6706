"""`python -m relume.ops`: prints the page of ops, or writes it with `--write FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path

from relume.ops.matrix import facet_matrix

parser = argparse.ArgumentParser(prog="python -m relume.ops", description="The ops and their facets, in Markdown.")
parser.add_argument("--write", metavar="FILE", type=Path, help="write to FILE instead of printing")
target = parser.parse_args().write
if target is None:
    print(facet_matrix(), end="")
else:
    target.write_text(facet_matrix(), encoding="utf-8")
