"""What callers pass: checked, and refused with what was expected, before anything is done with it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from relume.base.dtypes import ALL, BY_NAME, DType, from_numpy
from relume.base.errors import InputError


def typed(dtype: np.dtype, shape: Sequence[int]) -> str:
    """A type as ports spell it: `f32[2,3]`; a dtype that Relume does not have, by NumPy's name."""
    known = _NAMES.get(dtype.newbyteorder("="), dtype.name or str(dtype))
    order = "" if dtype.isnative else " of foreign byte order"
    return f"{known}[{','.join(map(str, shape))}]{order}"


_NAMES = {dtype.numpy: dtype.name for dtype in ALL}


def as_array(what: str, value: object, expected: object = None) -> np.ndarray:
    """`value` as a plain array, over the same memory where it is one. Raises `InputError` for what is none."""
    try:
        array = np.asarray(value)
    except Exception as error:  # Whatever a foreign object's `__array__` raises; a list of lists of different lengths.
        raise InputError(f"{what} is no array: {type(value).__name__}", expected=expected, got=f"{error}") from error
    # NumPy imports `ma` when it is first asked for, which a run must not: a fork may come in the middle of an import.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(value, masked):
        raise InputError(
            f"{what} is a masked array: it has elements without a value",
            expected=expected,
            got=typed(array.dtype, array.shape),
            hint="fill them, as array.filled(value)",
        )
    return array


def as_names(what: str, given: object, example: str) -> Mapping[str, Any]:
    """`given` if it is a mapping from names. Raises `InputError` with an `example` of one for anything else."""
    if isinstance(given, Mapping):
        wrong = next((key for key in given if not isinstance(key, str)), None)
        if wrong is None:
            return given
        raise InputError(f"{what} has a name that is no string", expected="a str", got=repr(wrong), hint=example)
    raise InputError(f"{what} goes by name", expected="a dict", got=type(given).__name__, hint=example)


_ARRAYS = "{'w': array, ...}"


def as_arrays(what: str, given: object) -> dict[str, np.ndarray]:
    """The arrays by name, of element types that Relume has."""
    arrays = {name: as_array(f"state {name!r}", value) for name, value in as_names(what, given, _ARRAYS).items()}
    for name, array in arrays.items():
        as_dtype(name, array.dtype)
    return arrays


def as_dtype(name: str, dtype: object) -> np.dtype:
    """The NumPy dtype of a state: of a `DType`, its name, or whatever NumPy takes for one."""
    found = None
    with suppress(TypeError, ValueError, KeyError, SyntaxError):
        if isinstance(dtype, str) and dtype in BY_NAME:
            dtype = BY_NAME[dtype]
        if dtype is not None:
            found = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)  # type: ignore[call-overload]
            from_numpy(found)
            return found
    raise InputError(
        f"state {name!r} cannot hold {found if found is not None else repr(dtype)}",
        expected=", ".join(map(str, ALL)),
        got=dtype,
    )


def as_shape(name: str, shape: object) -> tuple[int, ...]:
    """The shape of a state."""
    if not isinstance(shape, Iterable) or isinstance(shape, (str, bytes)):
        raise InputError(f"the shape of state {name!r} is no sequence", expected="(10, 4)", got=repr(shape))
    return tuple(as_extent(f"an extent of state {name!r}", extent) for extent in shape)


def as_extent(what: str, value: object) -> int:
    """An extent: an integer from 0, of any type that is one."""
    extent = -1
    if not isinstance(value, (bool, np.bool_)):
        with suppress(TypeError):
            extent = operator.index(value)  # type: ignore[arg-type]
    if not 0 <= extent < 1 << 63:
        raise InputError(f"{what} is none", expected="an int from 0 to 2**63 - 1", got=repr(value))
    return extent
