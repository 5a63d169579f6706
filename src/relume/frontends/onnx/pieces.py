"""Large tensors are read from the file straight into memory of their own; protobuf parses the rest.

Parsed as a whole, a hundred megabytes of weights exist three times before the first node is imported: as the file, in
the message, and as what the message hands out. So `cut` walks the encoding of the message
(https://protobuf.dev/programming-guides/encoding), field by field, down the messages that can hold a tensor, and takes
every large `raw_data` out. In its place stands a mark that names the piece; it starts with bytes drawn at random for
this one file, so that no file can hold one by itself.

What `cut` does not understand it leaves whole: protobuf, which judges every file, then sees it as it is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from relume.base.errors import ModelError
from relume.runtime.memory import Block, rooms

LEAST = 4096
"""Bytes of `raw_data` that are worth a piece of their own."""

OWN_BLOCK = 256 << 10
"""Bytes from which a piece has a block to itself, which goes when nobody needs that tensor any more."""

MAX_FIELDS = 200_000
"""Fields to walk at most: a file of more is not made of large tensors."""

_MAX_DEPTH = 100
"""Messages inside each other, where protobuf stops too."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types. Groups (3 and 4) are in no ONNX file."""

_FIXED = {_FIXED64: 8, _FIXED32: 4}
_RAW_DATA = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number

Read = Callable[[int, int], bytes]
"""(offset, size) -> so many bytes of the encoded message, fewer at its end."""


@dataclass(frozen=True)
class Span:
    """Where something lies in the encoded message, in bytes."""

    offset: int
    size: int


class Pieces:
    """The tensors that are not in the message, in the order of the file."""

    def __init__(self, mark: bytes = b"", arrays: Sequence[np.ndarray] = ()) -> None:
        self._mark, self._arrays = mark, arrays

    def raw_data(self, proto: onnx.TensorProto) -> np.ndarray:
        """The bytes (u8) of a tensor that has the field `raw_data`: a piece, or what is in the message."""
        data = proto.raw_data
        if self._arrays and data.startswith(self._mark):
            return self._arrays[int.from_bytes(data[len(self._mark) :], "little")]
        return np.frombuffer(data, np.uint8)


class _NotUnderstood(Exception):
    """The encoding is none that is worth cutting."""


def cut(read: Read, size: int) -> tuple[bytes, bytes, list[Span]] | None:
    """An encoded `onnx.ModelProto` without its large tensors, their mark, and where they lie.

    None where there are none, or the encoding is not understood.
    """
    cutter = _Cutter(read, secrets.token_bytes(16))
    try:
        parts = cutter.message(onnx.ModelProto.DESCRIPTOR, 0, size, 0)
    except _NotUnderstood:
        return None
    return (b"".join(parts), cutter.mark, cutter.spans) if parts else None


def read_all(spans: Sequence[Span], file: int, where: str) -> list[np.ndarray]:
    """Reads spans of an open file (a descriptor) into blocks: u8 arrays, each at a multiple of `memory.ALIGN`.

    Raises `ModelError` where the file ends before.
    """
    arrays = _rooms([span.size for span in spans])
    for span, array in zip(spans, arrays):
        view, done = array.data, 0
        while done < span.size:
            count = os.preadv(file, [view[done:]], span.offset + done)
            if not count:
                raise ModelError(
                    "the file became shorter while it was read",
                    where=where,
                    expected=f"{span.size} bytes at {span.offset}",
                    got=f"{done} bytes",
                    hint="somebody writes it: load it when it is complete",
                )
            done += count
    return arrays


def _rooms(sizes: Sequence[int]) -> list[np.ndarray]:
    """u8 arrays: large ones alone in a block, the others in one."""
    small = [size for size in sizes if size < OWN_BLOCK]
    shared = iter(rooms([((size,), np.dtype(np.uint8)) for size in small]))
    return [
        next(shared) if size < OWN_BLOCK else Block(size, huge=False).array((size,), np.dtype(np.uint8))
        for size in sizes
    ]


class _Cutter:
    """Walks one encoded message and collects what is cut out of it."""

    def __init__(self, read: Read, mark: bytes) -> None:
        self._read, self.mark = read, mark
        self._fields = 0
        self.spans: list[Span] = []

    def message(self, kind: Any, start: int, end: int, depth: int) -> list[bytes]:
        """The bytes `start` to `end`, which encode a message of the descriptor `kind`, with marks; [] if unchanged."""
        if depth > _MAX_DEPTH:
            raise _NotUnderstood
        parts: list[bytes] = []
        kept = at = start
        while at < end:
            begin = at
            tag, at = self._varint(at)
            number, wire = tag >> 3, tag & 7
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise _NotUnderstood
            if wire == _VARINT:
                _, at = self._varint(at)
            elif wire in _FIXED:
                at += _FIXED[wire]
            elif wire == _BYTES:
                size, at = self._varint(at)
                body, at = at, at + size
                if at > end:
                    raise _NotUnderstood
                inner = self._field(kind, number, body, at, depth) if size >= LEAST else []
                if inner:
                    parts += [self._read(kept, begin - kept), _varint(tag), _varint(sum(map(len, inner))), *inner]
                    kept = at
            else:
                raise _NotUnderstood
        if at != end:
            raise _NotUnderstood
        return [*parts, self._read(kept, end - kept)] if parts else []

    def _field(self, kind: Any, number: int, start: int, end: int, depth: int) -> list[bytes]:
        """What stands for the content of a large field; [] for what it is."""
        if kind is onnx.TensorProto.DESCRIPTOR and number == _RAW_DATA:
            self.spans.append(Span(start, end - start))
            return [self.mark + (len(self.spans) - 1).to_bytes(4, "little")]
        field = kind.fields_by_number.get(number)
        inner = field.message_type if field is not None else None
        return self.message(inner, start, end, depth + 1) if inner is not None else []

    def _varint(self, at: int) -> tuple[int, int]:
        """The number that starts there, and where it ends."""
        value = 0
        for index, byte in enumerate(self._read(at, 10)):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, at + index + 1
        raise _NotUnderstood


def _varint(value: int) -> bytes:
    """The encoding of a number."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
