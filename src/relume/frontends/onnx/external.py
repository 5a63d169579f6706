"""External data: tensors whose bytes lie in another file, mapped into memory without a copy.

A model is someone else's text, so the path in it is too: only files inside the model's own folder are opened, after
symbolic links are resolved, and only bytes that exist are mapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from relume.base.errors import ModelError


class Folder:
    """The files beside a model. Each file is mapped once, read-only, when first asked for."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._maps: dict[Path, np.ndarray] = {}

    def view(self, entries: Mapping[str, str], size: int, where: str) -> np.ndarray:
        """The `size` bytes that `entries` (location, offset, length) point at, as a read-only u8 view of a map.

        Raises `ModelError` naming `where` for a path that leaves the folder, a missing file, or bytes past its end.
        """
        location = entries.get("location", "")
        if isinstance(location, bytes):  # protobuf hands out bytes where text is no valid UTF-8
            raise ModelError("the location of external data is not valid UTF-8", where=where, got=repr(location))
        path = self._resolve(location, where)
        offset = _number(entries, "offset", 0, where)
        length = _number(entries, "length", size, where)
        if length != size:
            raise ModelError(
                "the length of external data does not fit the tensor", where=where, expected=f"{size} bytes", got=length
            )
        present = path.stat().st_size
        if offset + size > present:
            raise ModelError(
                f"external data lies past the end of {location!r}",
                where=where,
                expected=f"bytes {offset} to {offset + size}",
                got=f"a file of {present} bytes",
                hint="the data file is cut short or belongs to another model: copy it again",
            )
        if size == 0:
            return np.empty(0, np.uint8)
        if path not in self._maps:
            self._maps[path] = np.memmap(path, np.uint8, mode="r")
        return np.asarray(self._maps[path])[offset : offset + size]

    def _resolve(self, location: str, where: str) -> Path:
        if self._folder is None:
            raise ModelError(
                f"the tensor lies in another file ({location!r}), but a model given as bytes or message has no folder",
                where=where,
                hint="load the model by its path, or embed the data (onnx.load does)",
            )
        posix, windows = PurePosixPath(location), PureWindowsPath(location)
        if not location or posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts:
            raise _escape(location, where)
        folder = self._folder.resolve()
        try:
            path = (folder / location).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # missing, a NUL in the name, a circle of links
            raise ModelError(
                f"the external data file {location!r} is missing",
                where=where,
                expected=f"a file in {folder}",
                hint="copy the data file beside the model",
            ) from None
        if not path.is_relative_to(folder):
            raise _escape(location, where)
        if not path.is_file():
            raise ModelError(f"the external data {location!r} is not a regular file", where=where)
        return path


def _escape(location: str, where: str) -> ModelError:
    return ModelError(
        "external data must lie inside the model's folder",
        where=where,
        expected="a relative path without '..' that ends inside the folder once links are resolved",
        got=repr(location),
        hint="copy the data file beside the model and save the model with a plain file name as its location",
    )


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None or text == "":
        return default
    if isinstance(text, bytes) or not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise ModelError(f"the {key} of external data is not a number of bytes", where=where, got=repr(text))
    return int(text)
