"""From whatever the user has to a protobuf message: files, bytes, messages. Nothing in it is trusted yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError

from relume.base.errors import InputError, LimitError, ModelError

Source: TypeAlias = str | Path | bytes | onnx.ModelProto


@dataclass(frozen=True)
class Raw:
    """A parsed model. `file` is how messages call it; `folder` is where its external data lies (None: nowhere)."""

    model: onnx.ModelProto
    file: str
    folder: Path | None


def read(source: Source) -> Raw:
    """Parses `source`: a path, the bytes of a file, or a message (which is not changed).

    Raises `InputError` where there is no such file, `ModelError` where it is not an ONNX model, `LimitError`
    where messages are nested deeper than protobuf allows.
    """
    if isinstance(source, onnx.ModelProto):
        return Raw(_with_graph(source, "model", "a message"), "model", None)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Raw(_parse(bytes(source), "model"), "model", None)
    if not isinstance(source, (str, Path)):
        raise InputError("a model is a path, bytes or an onnx.ModelProto", got=type(source).__name__)
    path = Path(source)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read {path}: {reason}", hint="check the path") from error
    return Raw(_parse(data, path.name), path.name, path.parent)


def _parse(data: bytes, file: str) -> onnx.ModelProto:
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
            got=f"{len(data)} bytes: {error}",
            hint="check that the file is a complete .onnx model (not a Git LFS pointer, an archive or a half download)",
        ) from error
    return _with_graph(model, file, f"{len(data)} bytes")


def _with_graph(model: onnx.ModelProto, file: str, size: str) -> onnx.ModelProto:
    if not model.HasField("graph"):
        raise ModelError(
            "this is not an ONNX model: it holds no graph",
            where=file,
            got=f"{size} without a graph",
            hint="check that the file is a complete .onnx model",
        )
    return model
