"""From the dims that a file declares to symbols."""

from __future__ import annotations

import keyword
import re
import warnings
from collections.abc import Iterable, Sequence

from relume.base import dims
from relume.base.dims import Dim, Expr


class Symbols:
    """The symbols of one model. `names` are all the dim names of its inputs, which get their symbols first."""

    def __init__(self, names: Iterable[str]) -> None:
        self._taken: set[str] = set()
        self._named: dict[str, Expr] = {}
        for name in names:
            if name not in self._named and _identifier(name):
                self._named[name] = self._fresh(_identifier(name))

    def dims(self, input_name: str, declared: Sequence[int | str]) -> tuple[Dim, ...]:
        """The extents of an input.

        Equal names are equal extents. An extent without a name, or with one that says nothing (`?`), gets a symbol
        of its own, named after input and axis. A negative number is a mistake that many exporters make for that: it
        is taken so, with a warning.
        """
        out: list[Dim] = []
        for axis, dim in enumerate(declared):
            if isinstance(dim, int) and dim < 0:
                warnings.warn(
                    f"input {input_name!r} declares the extent {dim} for axis {axis}; it is taken as unknown",
                    stacklevel=5,  # whoever called `load`
                )
            if isinstance(dim, int) and dim >= 0:
                out.append(dim)
            elif isinstance(dim, str) and dim in self._named:
                out.append(self._named[dim])
            else:
                out.append(self._fresh(f"{_identifier(input_name) or 'input'}_{axis}"))
        return tuple(out)

    def _fresh(self, stem: str) -> Expr:
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return dims.symbol(name)


def _identifier(name: str) -> str:
    """An ASCII identifier for a name; empty where nothing of it is left."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    if text[:1].isdigit():
        text = f"d{text}"
    return f"{text}_" if keyword.iskeyword(text) or text in ("min", "max", "select") else text
