"""ONNX models as Relume modules.

The road of a file: `reading` (bytes to message), `checking` (message to a `structure.Document` that holds together),
`importer` (document to graph) with the translators in `translate/`, one file per family of operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from relume.frontends.onnx import translate
from relume.frontends.onnx.checking import check
from relume.frontends.onnx.importer import Importer
from relume.frontends.onnx.reading import read
from relume.graph.opdef import OpDef
from relume.graph.types import Module
from relume.ops import OPS

__all__ = ["load", "translate"]


def load(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    values: Mapping[str, np.ndarray] | None = None,
    ops: Mapping[str, OpDef] = OPS,
) -> Module:
    """The model as a module with one function, `main`; `Module.source` is the file's name.

    `source` is a path, the bytes of a file, or a message (external data needs a path: it must lie in the model's
    folder, and is mapped, not read). Initializers are constants, whether or not they are also listed as inputs.
    Unknown extents become symbols, so one module serves all shapes. Inputs named in `values` become constants.

    Raises `InputError` (no such file, a value that does not fit its input), `ModelError` (the file is malformed; the
    text names the place),
    `UnsupportedError` (`nodes` lists every node that has no translation, `values` the inputs whose values would help),
    `LimitError` (too deep, too many nodes, a tensor too large).
    """
    return Importer(check(read(source)), ops, values or {}).module()
