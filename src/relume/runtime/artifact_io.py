"""Artifacts on disk: `.rlx` files, which run without the compiler.

::

    head (64 bytes)   magic, format version, ABI version, length of the header, length of the file, digest of the rest
    header            JSON: the functions, with dims as text, and where each run of bytes below lies
    code, constants   each at a multiple of 64 bytes, so that a mapped file is used where it is

Equal executables give equal bytes. A file is checked whole before anything in it is used, and then mapped: processes
that load the same file share its constants. So replace a file in use, as saving does; never write into it.
It holds machine code: like a program, load it only if you trust its source. The digest finds damage, not malice.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from relume.base import abi, dims, dtypes
from relume.base.digests import LENGTH
from relume.base.dims import Dim
from relume.base.errors import ModelError, UnsupportedError
from relume.base.requirements import KINDS, Requirement
from relume.runtime.artifact import Allocation, Artifact, Image, Port
from relume.runtime.executable import Executable
from relume.runtime.memory import round_up

MAGIC = b"\x89RLX\r\n\x1a\n"
"""Eight bytes that no text file has, and that any newline conversion destroys."""
FORMAT = 3
_HEAD = struct.Struct(f"<8sIIQQ{LENGTH}s")
_HEAD_BYTES = 64


# --- writing --------------------------------------------------------------------------------------------------------


def save_executable(executable: Executable | Artifact, path: str | os.PathLike[str]) -> None:
    """Writes an executable, with the other functions of its module, or a single artifact.

    The file appears whole or not at all. Raises `ModelError` where it cannot be written.
    """
    if isinstance(executable, Artifact):
        artifacts = [executable]
    else:
        artifacts = [function.artifact for function in executable.functions]
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}", where=path) from None
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in _pieces(artifacts):
                file.write(piece)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise ModelError(f"cannot write {path}: {error.strerror}", where=path) from None
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _pieces(artifacts: Sequence[Artifact]) -> Iterator[bytes | memoryview]:
    """The file, piece by piece: large constants are never copied."""
    body = _Body()
    functions = [_to_json(artifact, body) for artifact in artifacts]
    text = json.dumps({"functions": functions}, sort_keys=True, separators=(",", ":")).encode()
    header = text + b" " * (round_up(len(text)) - len(text))
    digest = blake2b(digest_size=LENGTH)
    for piece in (header, *body.pieces):
        digest.update(piece)
    size = _HEAD_BYTES + len(header) + body.size
    head = _HEAD.pack(MAGIC, FORMAT, abi.VERSION, len(header), size, digest.digest())
    yield head.ljust(_HEAD_BYTES, b"\0")
    yield header
    yield from body.pieces


class _Body:
    """Collects runs of bytes, each at a multiple of 64. Places count from the end of the header."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.size = 0

    def add(self, data: bytes | memoryview) -> int:
        place, padded = self.size, round_up(len(data))
        self.pieces += [data, bytes(padded - len(data))]
        self.size += padded
        return place


def _to_json(artifact: Artifact, body: _Body) -> dict[str, Any]:
    image = artifact.image
    return {
        "name": artifact.name,
        "target": artifact.target,
        "code": [body.add(image.code), len(image.code)],
        "exports": dict(image.exports),
        "slots": [list(slot) for slot in image.slots],
        **{kind: [_port_to_json(port) for port in getattr(artifact, kind)] for kind in ("inputs", "outputs", "states")},
        "constants": [_constant_to_json(array, body) for array in artifact.constants],
        "dims": [_dim_to_json(dim) for dim in artifact.dims],
        "extents": [_dim_to_json(dim) for dim in artifact.extents],
        "requirements": [
            [one.kind, _dim_to_json(one.a), _dim_to_json(one.b), one.what, one.where] for one in artifact.requirements
        ],
        "allocations": [[one.name, _dim_to_json(one.bytes), one.first, one.last] for one in artifact.allocations],
        "offsets": None if artifact.offsets is None else list(artifact.offsets),
        "written": list(artifact.written),
        "scratch": _dim_to_json(artifact.scratch),
        "derived": None if artifact.derived is None else _to_json(artifact.derived, body),
        "instructions": [[number, str(place)] for number, place in sorted(artifact.instructions.items())],
    }


def _port_to_json(port: Port) -> list[Any]:
    return [port.name, port.dtype.name, [_dim_to_json(dim) for dim in port.dims]]


def _dim_to_json(dim: Dim) -> int | str:
    return int(dim) if isinstance(dim, int) else str(dim)


def _constant_to_json(array: np.ndarray, body: _Body) -> list[Any]:
    dtype = dtypes.from_numpy(array.dtype)
    data = np.ascontiguousarray(array, dtype.numpy).reshape(-1).view(np.uint8).data
    return [dtype.name, list(array.shape), body.add(data)]


# --- reading --------------------------------------------------------------------------------------------------------


def load_executable(path: str | os.PathLike[str], threads: int | None = None) -> Executable:
    """Loads what `save_executable` wrote. `threads` as in `Executable`.

    Raises `ModelError` for a file that cannot be read or is damaged, `UnsupportedError` for one that was made by
    another version of Relume or for another machine.
    """
    return Executable.of_module(load_artifacts(path), threads=threads)


def load_artifacts(path: str | os.PathLike[str]) -> tuple[Artifact, ...]:
    """The artifacts in a file, at least one. Constants are read-only and stay in the mapped file. Raises as above."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file.
        raise ModelError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", where=path) from None
    header, start = _checked(data, path)
    try:
        functions = json.loads(header)["functions"]
        if not functions:
            raise ValueError("no functions")
        return tuple(_from_json(function, data, start) for function in functions)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its header makes no sense ({error})") from None


def _checked(data: mmap.mmap, path: Path) -> tuple[bytes, int]:
    """The header and where the body starts, once the file has proved to be whole."""
    if data[: len(MAGIC)] != MAGIC:
        raise ModelError(f"{path} is not a compiled model", where=path, expected="a .rlx file", got=data[:8])
    if len(data) < _HEAD_BYTES:
        raise _damaged(path, "it is cut off")
    _, version, abi_version, length, size, digest = _HEAD.unpack_from(data)
    if (version, abi_version) != (FORMAT, abi.VERSION):
        raise UnsupportedError(
            f"{path} was made by another version of Relume",
            where=path,
            expected=f"format {FORMAT}, ABI {abi.VERSION}",
            got=f"format {version}, ABI {abi_version}",
            hint="compile the model again with this version",
        )
    start = _HEAD_BYTES + length
    if len(data) != size or start > size:
        raise _damaged(path, f"it has {len(data)} bytes and should have {size}")
    if blake2b(memoryview(data)[_HEAD_BYTES:], digest_size=LENGTH).digest() != digest:
        raise _damaged(path, "its checksum is wrong")
    return data[_HEAD_BYTES:start], start


def _damaged(path: Path, how: str) -> ModelError:
    return ModelError(f"{path} is damaged: {how}", where=path, hint="copy or compile it again")


def _from_json(function: dict[str, Any], data: mmap.mmap, start: int) -> Artifact:
    place, length = function["code"]
    code = data[start + place : start + place + length]
    inputs, outputs, states = (
        tuple(_port_from_json(port) for port in function[kind]) for kind in ("inputs", "outputs", "states")
    )
    return Artifact(
        name=function["name"],
        target=function["target"],
        image=Image(code, function["exports"], tuple((offset, name) for offset, name in function["slots"])),
        inputs=inputs,
        outputs=outputs,
        states=states,
        constants=tuple(_constant_from_json(constant, data, start) for constant in function["constants"]),
        dims=tuple(map(_dim_from_json, function["dims"])),
        allocations=tuple(
            Allocation(name, _dim_from_json(size), first, last) for name, size, first, last in function["allocations"]
        ),
        offsets=None if function["offsets"] is None else tuple(function["offsets"]),
        instructions=dict(function["instructions"]),
        extents=tuple(map(_dim_from_json, function["extents"])),
        requirements=tuple(
            Requirement(KINDS[kind], _dim_from_json(a), _dim_from_json(b), what, where)
            for kind, a, b, what, where in function["requirements"]
        ),
        written=tuple(function["written"]),
        scratch=_dim_from_json(function["scratch"]),
        derived=None if function["derived"] is None else _from_json(function["derived"], data, start),
    )


def _port_from_json(port: Sequence[Any]) -> Port:
    name, dtype, extents = port
    return Port(name, dtypes.BY_NAME[dtype], tuple(map(_dim_from_json, extents)))


def _dim_from_json(dim: int | str) -> Dim:
    return dim if isinstance(dim, int) else dims.parse(dim)


def _constant_from_json(constant: Sequence[Any], data: mmap.mmap, start: int) -> np.ndarray:
    name, shape, place = constant
    dtype = dtypes.BY_NAME[name].numpy
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype, count, start + place).reshape(shape)
