"""From what a caller passes to arrays that generated code can read: names, dtypes, layout."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from relume.base.dtypes import DType
from relume.base.errors import InputError
from relume.runtime.arguments import as_array, typed
from relume.runtime.artifact import Artifact, Port

READY = 0x1 | 0x100
"""The array flags (`array.flags.num`) C_CONTIGUOUS and ALIGNED: what generated code reads as it is."""


def by_position(artifact: Artifact, arrays: Sequence[object], named: Mapping[str, object]) -> list[object]:
    """Puts positional and named arguments in the order of the inputs, each exactly once, else `InputError`."""
    names = [port.name for port in artifact.inputs]
    if not arrays and len(named) == len(names):
        with suppress(KeyError):
            return [named[name] for name in names]
    signature = f"{artifact.name}({', '.join(map(str, artifact.inputs))})"
    if len(arrays) > len(names):
        raise InputError(
            f"{artifact.name} takes {_count(len(names), 'input')}, got {len(arrays)} by position", expected=signature
        )
    for name in named:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, 1)
            raise InputError(
                f"{artifact.name} has no input {name!r}",
                expected=signature,
                got=", ".join(map(str, named)),
                hint=f"did you mean {close[0]!r}?" if close else "pass only the inputs that it has",
            )
    given = dict(zip(names, arrays))
    twice = [name for name in named if name in given]
    if twice:
        raise InputError(
            f"input {twice[0]!r} is given twice, by position and by name",
            expected=signature,
            hint="pass it one way only",
        )
    given.update(named)
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"{artifact.name} misses {'inputs' if len(missing) > 1 else 'input'} {', '.join(map(repr, missing))}",
            expected=signature,
            got=", ".join(given) or "no inputs",
            hint="pass every input, by position or by name",
        )
    return [given[name] for name in names]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"


def as_ready(port: Port, value: object) -> np.ndarray:
    """`value` as an array of exactly the port's dtype, in C order, aligned, in native byte order.

    Anything that `np.asarray` takes will do, if what comes out has the right dtype: a list of Python floats is
    float64. Values are never cast: between dtypes the caller decides how. What is not laid out as needed is copied;
    the caller's array is never written.
    """
    array = as_array(f"input {port.name!r}", value, port)
    wanted = port.dtype.numpy
    if array.dtype != wanted:
        if array.dtype.newbyteorder("=") != wanted:
            raise InputError(
                f"input {port.name!r} has the wrong dtype",
                expected=port,
                got=f"{typed(array.dtype, array.shape)} ({type(value).__name__})",
                hint=_cast_hint(port.dtype, value, array),
            )
        array = array.astype(wanted)  # Only the byte order differs.
    if array.flags.num & READY != READY:
        array = array.copy(order="C")
    # An equal dtype need not be the same object; the view has the very object, which the fast path compares.
    return array if array.dtype is wanted else array.view(wanted)


def _cast_hint(dtype: DType, value: object, array: np.ndarray) -> str:
    name = f"ml_dtypes.{dtype.numpy.name}" if dtype.numpy.kind == "V" else f"np.{dtype.numpy.name}"
    if dtype.kind == "bool":
        name = "np.bool_"
    if array.dtype.kind not in "biufV":
        return f"pass numbers, as np.asarray(..., dtype={name})"
    if isinstance(value, np.ndarray):
        return f"convert it, as x.astype({name})"
    return f"convert it, as np.asarray(..., dtype={name})"
