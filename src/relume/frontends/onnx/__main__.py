"""`python -m relume.frontends.onnx --write docs/onnx.md`: the page of ONNX operators."""

from __future__ import annotations

import argparse
from pathlib import Path

from relume.frontends.onnx.coverage import page

parser = argparse.ArgumentParser(prog="python -m relume.frontends.onnx", description=__doc__)
parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there; without it, print it")
given = parser.parse_args()
if given.write:
    given.write.write_text(page(), encoding="utf-8")
else:
    print(page(), end="")
