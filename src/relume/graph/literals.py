"""The small words of the graph text: names, strings, numbers, attributes and constant data, both ways.

What is written here reads back exactly: floats as the shortest text that gives the same bits (a NaN that is not the
default one shows its bits, `nan:7fc00001`), names as they are or, where they hold odd characters, as JSON strings.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from relume.base import dims, dtypes
from relume.base.dtypes import DType
from relume.graph.types import Attr, Constant, Tensor

INLINE = 16
"""Constants of up to this many elements are written out."""

LARGEST = 1 << 28
"""The most elements of a constant that is not written out byte by byte."""

PLAIN_NAME = re.compile(r"(?:[A-Za-z0-9_.]|/(?!/))+")
"""Names that need no quotes (ONNX's `input.1` and `/conv1/Conv_output_0` are such); `//` would open a comment."""


def quote(text: str) -> str:
    """A JSON string on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def name_text(name: str) -> str:
    """A name as it stands behind `%` or `@`."""
    return name if PLAIN_NAME.fullmatch(name) else quote(name)


# --- numbers --------------------------------------------------------------------------------------------------------


def element_text(value: Any, dtype: DType) -> str:
    """One element (a NumPy scalar of `dtype`) so that `parse_element` gives its bits back."""
    if dtype is dtypes.bool_:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    scalar = np.asarray(value, dtype.numpy)
    if np.isnan(scalar):
        bits = scalar.tobytes()[::-1].hex()
        return "nan" if scalar.tobytes() == dtype.numpy.type("nan").tobytes() else f"nan:{bits}"
    # The shortest text is read through a double, which can round twice: where that shows, the exact double is written.
    for text in (_with_point(str(scalar[()])), repr(float(scalar))):
        if parse_element(text, dtype).tobytes() == scalar.tobytes():
            return text
    raise AssertionError(f"{value!r} has no exact text")


def _with_point(text: str) -> str:
    return text if any(mark in text for mark in ".einf") else text + ".0"


def parse_element(text: str, dtype: DType) -> np.ndarray:
    """Inverse of `element_text`, as an array of rank 0. Raises `ValueError` on anything else, and out of range."""
    if dtype is dtypes.bool_:
        return np.array({"true": True, "false": False}[text] if text in ("true", "false") else _refuse(text, dtype))
    if not dtype.is_float:
        value = int(text)
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            raise ValueError(f"{text} does not fit {dtype}")
        return np.array(value, dtype.numpy)
    if text.startswith("nan:"):
        bits = bytes.fromhex(text[4:])[::-1]
        return np.frombuffer(bits, dtype.numpy).reshape(()) if len(bits) == dtype.bytes else _refuse(text, dtype)
    with np.errstate(over="ignore"):
        return np.array(float(text)).astype(dtype.numpy)


def _refuse(text: str, dtype: DType) -> Any:
    raise ValueError(f"{text!r} is not a value of type {dtype}")


# --- constant data --------------------------------------------------------------------------------------------------


def data_text(constant: Constant, *, whole: bool) -> str:
    """What stands behind `const @w : T =`. Large data is named by its digest, or written out where `whole` is set."""
    data, dtype = constant.data, constant.dtype
    if data.size <= INLINE:
        return _nested(data, dtype)
    flat = np.ascontiguousarray(data).reshape(-1)
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    if (raw == raw[:1]).all():
        return f"splat {element_text(flat[0], dtype)}"
    if not whole:
        return f'dense "{constant.digest}"'
    return f'base64 "{base64.b64encode(flat.tobytes()).decode()}"'


def _nested(data: np.ndarray, dtype: DType) -> str:
    if data.ndim == 0:
        return element_text(data[()], dtype)
    if data.size == 0:
        return "[]"
    return f"[{', '.join(_nested(part, dtype) for part in data)}]"


def nested_data(value: Any, type_: Tensor) -> np.ndarray:
    """The array behind nested lists of element texts. Raises `ValueError` where they do not have the type's shape."""
    shape = _bounded_shape(type_)
    if math.prod(shape) == 0:
        if value != []:
            raise ValueError(f"a constant of type {type_} is written []")
        return np.zeros(shape, type_.dtype.numpy)
    out = np.empty(shape, type_.dtype.numpy)

    def fill(value: Any, place: tuple[int, ...]) -> None:
        if len(place) == len(shape):
            if isinstance(value, list):
                raise ValueError(f"the lists nest deeper than {type_}")
            out[place] = parse_element(value, type_.dtype)
            return
        if not isinstance(value, list) or len(value) != shape[len(place)]:
            got = len(value) if isinstance(value, list) else "a single value"
            raise ValueError(f"axis {len(place)} of {type_} has {shape[len(place)]} entries, got {got}")
        for index, part in enumerate(value):
            fill(part, (*place, index))

    fill(value, ())
    return out


def splat_data(text: str, type_: Tensor) -> np.ndarray:
    """The array whose elements are all the same."""
    return np.full(_bounded_shape(type_), parse_element(text, type_.dtype))


def base64_data(text: str, type_: Tensor) -> np.ndarray:
    """The array behind the bytes, little endian, in C order. Raises `ValueError` where there are too many or few."""
    raw = base64.b64decode(text, validate=True)
    shape = static_shape(type_)
    if len(raw) != math.prod(shape) * type_.dtype.bytes:
        raise ValueError(f"{type_} has {math.prod(shape) * type_.dtype.bytes} bytes, got {len(raw)}")
    return np.frombuffer(raw, type_.dtype.numpy).reshape(shape)


def random_data(seed: int, type_: Tensor) -> np.ndarray:
    """Seeded data for tests: normal with deviation 0.1 for floats, -8..7 (unsigned: 0..15) for integers, both bools."""
    generator = np.random.Generator(np.random.PCG64(seed))
    shape, dtype = _bounded_shape(type_), type_.dtype
    if dtype.is_float:
        return (generator.standard_normal(shape) * 0.1).astype(dtype.numpy)
    low, high = (0, 2) if dtype is dtypes.bool_ else (-8, 8) if dtype.is_signed else (0, 16)
    return generator.integers(low, high, shape).astype(dtype.numpy)


def static_shape(type_: Tensor) -> tuple[int, ...]:
    """The extents as ints. Raises `ValueError` where one is symbolic."""
    shape = tuple(dim for dim in type_.dims if isinstance(dim, int))
    if len(shape) != type_.rank or any(extent < 0 for extent in shape):
        raise ValueError(f"a constant has known extents, got {type_}")
    return shape


def _bounded_shape(type_: Tensor) -> tuple[int, ...]:
    """The extents of data that the text does not hold byte by byte: a short text must not ask for all memory."""
    shape = static_shape(type_)
    if math.prod(shape) > LARGEST:
        raise ValueError(f"{type_} has more than {LARGEST} elements; give it as dense data")
    return shape


# --- attributes -----------------------------------------------------------------------------------------------------


def attr_text(value: Attr) -> str:
    """An attribute's value; `parse_attr` with its kind reads it back."""
    if isinstance(value, tuple):
        return f"[{','.join(attr_text(part) for part in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(value))
    return quote(value) if isinstance(value, str) else str(value)


def parse_attr(text: str, kind: str) -> Attr:
    """The attribute of that kind (see `AttrDef`). Raises `ValueError` where the text is none."""
    text = text.strip()
    if kind in _LISTS:
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError(f"a list in brackets is wanted, got {text!r}")
        return tuple(parse_attr(part, _LISTS[kind]) for part in split_commas(text[1:-1]))
    if kind == "int":
        return int(text)
    if kind == "float":
        # One NaN object: attributes are compared with ==, and identity comes first there.
        return math.nan if text == "nan" else float(text)
    if kind == "bool":
        return bool(parse_element(text, dtypes.bool_))
    if kind == "str":
        value = json.loads(text)
        if not isinstance(value, str):
            raise ValueError(f"a string is wanted, got {text}")
        return value
    if kind == "dtype":
        if text not in dtypes.BY_NAME:
            raise ValueError(f"there is no element type {text!r}")
        return dtypes.BY_NAME[text]
    if kind == "dim":
        return dims.parse(text)
    raise ValueError(f"there is no attribute kind {kind!r}")


_LISTS = {"ints": "int", "dims": "dim", "floats": "float", "strs": "str"}


def split_commas(text: str) -> Sequence[str]:
    """The parts between commas that stand outside brackets and strings; none for blank text."""
    parts: list[str] = []
    depth, start = 0, 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\](),]', text):
        mark = match.group()
        depth += (mark in "[(") - (mark in "])")
        if mark == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    rest = text[start:]
    return [*parts, rest] if parts or rest.strip() else []
