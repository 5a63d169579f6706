"""From whatever the user has to a protobuf message: files, bytes, messages. Nothing in it is trusted yet."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from relume.base.errors import InputError, LimitError, ModelError
from relume.frontends.onnx import pieces
from relume.frontends.onnx.pieces import Pieces

Source: TypeAlias = str | Path | bytes | onnx.ModelProto


@dataclass(frozen=True)
class Raw:
    """A parsed model. `file` is how messages call it; `folder` is where its external data lies (None: nowhere);
    `pieces` holds the large tensors, which are not in the message."""

    model: onnx.ModelProto
    file: str
    folder: Path | None
    pieces: Pieces = field(default_factory=Pieces)


def read(source: Source) -> Raw:
    """Parses `source`: a path, the bytes of a file, or a message (which is not changed).

    Raises `InputError` where there is no such file, `ModelError` where it is not an ONNX model, `LimitError`
    where messages are nested deeper than protobuf allows.
    """
    if isinstance(source, onnx.ModelProto):
        return Raw(_with_graph(source, "model", "a message"), "model", None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "model", None)
    if not isinstance(source, (str, Path)):
        raise InputError("a model is a path, bytes or an onnx.ModelProto", got=type(source).__name__)
    path = Path(source)
    try:
        with path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _parse_file(descriptor, path)
            data = file.readall()  # A pipe has no places to come back to.
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read {path}: {reason}", hint="check the path") from error
    return _parse(data, path.name, path.parent)


def _parse_file(descriptor: int, path: Path) -> Raw:
    """Parses an open file. Large tensors go from it to where they stay."""
    size = os.fstat(descriptor).st_size
    window = _Window(descriptor)
    found = pieces.cut(window.read, size)
    if found is None:
        return _parse(window.read(0, size), path.name, path.parent)
    rest, mark, spans = found
    model = _message(rest, path.name, size)
    return Raw(model, path.name, path.parent, Pieces(mark, pieces.read_all(spans, descriptor, path.name)))


def _parse(data: bytes, file: str, folder: Path | None) -> Raw:
    """Parses bytes. Large tensors are views of them."""
    found = pieces.cut(lambda offset, size: data[offset : offset + size], len(data))
    if found is None:
        return Raw(_message(data, file, len(data)), file, folder)
    rest, mark, spans = found
    whole = np.frombuffer(data, np.uint8)
    arrays = [whole[span.offset : span.offset + span.size] for span in spans]
    return Raw(_message(rest, file, len(data)), file, folder, Pieces(mark, arrays))


class _Window:
    """Reads a file by a window on it: most reads are a few bytes, one behind the other."""

    SIZE = 1 << 16

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._start, self._data = 0, b""

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes from `offset`, fewer at the end of the file."""
        begin = offset - self._start
        if begin < 0 or begin + size > len(self._data):
            self._start, begin = offset, 0
            self._data = _pread(self._descriptor, max(size, self.SIZE), offset)
        return self._data[begin : begin + size]


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    """As `os.pread`, which may give less than there is (it never gives more than 2 GiB)."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def _message(data: bytes, file: str, size: int) -> onnx.ModelProto:
    """Parses an encoded message; `size` is how large the file is."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if "depth" in str(error).lower() or "recursion" in str(error).lower():
            raise LimitError(
                "the model nests graphs too deep",
                where=file,
                expected="at most 32 graphs inside each other (protobuf stops at 100 nested messages)",
                hint="flatten the nested If and Loop nodes",
            ) from error
        raise ModelError(
            "this is not an ONNX protobuf",
            where=file,
            got=f"{size} bytes: {error}",
            hint="check that the file is a complete .onnx model (not a Git LFS pointer, an archive or a half download)",
        ) from error
    return _with_graph(model, file, f"{size} bytes")


def _with_graph(model: onnx.ModelProto, file: str, size: str) -> onnx.ModelProto:
    if not model.HasField("graph"):
        raise ModelError(
            "this is not an ONNX model: it holds no graph",
            where=file,
            got=f"{size} without a graph",
            hint="check that the file is a complete .onnx model",
        )
    return model
