"""Where a thing came from, in the user's own terms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """A place in the user's model: a file (`net.onnx`, `train.py`) and a name or line in it (`Conv_3`, `12`)."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def parse(text: str) -> Location:
    """Inverse of `str(location)`: the file is everything before the first colon."""
    file, _, name = text.partition(":")
    return Location(file, name)
