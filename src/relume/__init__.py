"""Relume compiles neural networks: it watches a model run, specialises it, guards every bet, and falls back.

    import relume

    exe = relume.compile("model.onnx")
    y = exe(x)

Importing this package imports nothing heavy; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "relume.api": ("load", "parse", "compile", "evaluate", "save"),
    "relume.runtime": ("load_executable", "Executable", "Context", "Storage"),
    "relume.graph.types": ("Module", "Function", "State"),
    "relume.base.errors": (
        "RelumeError",
        "ModelError",
        "UnsupportedError",
        "InputError",
        "CompileError",
        "VerifyError",
        "LimitError",
        "RunError",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from relume.api import compile as compile
    from relume.api import evaluate as evaluate
    from relume.api import load as load
    from relume.api import parse as parse
    from relume.api import save as save
    from relume.base.errors import (
        CompileError as CompileError,
    )
    from relume.base.errors import (
        InputError as InputError,
    )
    from relume.base.errors import (
        LimitError as LimitError,
    )
    from relume.base.errors import (
        ModelError as ModelError,
    )
    from relume.base.errors import (
        RelumeError as RelumeError,
    )
    from relume.base.errors import (
        RunError as RunError,
    )
    from relume.base.errors import (
        UnsupportedError as UnsupportedError,
    )
    from relume.base.errors import (
        VerifyError as VerifyError,
    )
    from relume.graph.types import Function as Function
    from relume.graph.types import Module as Module
    from relume.graph.types import State as State
    from relume.runtime import Context as Context
    from relume.runtime import Executable as Executable
    from relume.runtime import Storage as Storage
    from relume.runtime import load_executable as load_executable


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'relume' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
