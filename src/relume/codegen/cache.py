"""The cache on disk: files of code, found by a digest and taken only on equality of the whole key.

A file is `<two digits>/<digest>-<digest of key and reads>.entry`::

    magic (8)   BLAKE2b-128 of the rest (16)   size of the header (u32)   header (JSON: key, reads)   payload

Files appear whole, by an atomic rename, so any number of processes may share a directory. What does not check out is
reported, deleted and built anew. A directory that cannot be written is reported once and only read.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import platformdirs

from relume.base import digests
from relume.codegen.keys import Read

_MAGIC = b"RELUME1\n"
_HEAD = struct.Struct(f"<8s{digests.LENGTH}sI")


class CacheWarning(UserWarning):
    """The cache does not do its work: an entry was damaged, or the directory cannot be used."""


@dataclass
class Stats:
    """What a cache has been asked for, and how it went."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    rebuilt: int = 0
    """Damaged entries that were found and thrown away."""


@dataclass(frozen=True)
class Entry:
    """Something built: its exact key, what was read of constants when it was built, and the result."""

    key: str
    reads: tuple[Read, ...]
    payload: bytes


def replays(reads: tuple[Read, ...], answer: Callable[[Read], str | None]) -> bool:
    """Whether every logged question has the same answer now."""
    return all(answer(read) == read.answer for read in reads)


class Cache:
    """A directory of entries. It is made when first written to. `stats` counts what this object did."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.stats = Stats()
        self._writable = True
        self._readable = True

    def find(self, digest: str, key: str, answer: Callable[[Read], str | None]) -> Entry | None:
        """The entry with exactly this key whose reads replay; `digest` only says where to look."""
        for path in self._candidates(digest):
            entry = self._load(path)
            if entry is not None and entry.key == key and replays(entry.reads, answer):
                self.stats.hits += 1
                return entry
        self.stats.misses += 1
        return None

    def store(self, digest: str, entry: Entry) -> None:
        """Adds an entry, whole or not at all. Failing to is reported and does no harm."""
        if not self._writable:
            return
        header = json.dumps({"key": entry.key, "reads": [_row(read) for read in entry.reads]}).encode()
        body = struct.pack("<I", len(header)) + header + entry.payload
        content = _MAGIC + blake2b(body, digest_size=digests.LENGTH).digest() + body
        place = self._place(digest, entry)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, content)
        except OSError as error:
            self._writable = False
            _report(f"the cache in {self.directory} cannot be written ({error}): nothing is kept in it")
        else:
            self.stats.stored += 1

    def discard(self, digest: str, entry: Entry, why: str) -> None:
        """Throws away an entry that was found but is no good; it counts as damaged and not as a hit."""
        self.stats.hits -= 1
        self.stats.misses += 1
        self._throw_away(self._place(digest, entry), why)

    def _folder(self, digest: str) -> Path:
        return self.directory / digest[:2]

    def _place(self, digest: str, entry: Entry) -> Path:
        return self._folder(digest) / f"{digest}-{digests.of_text(entry.key, repr(entry.reads))}.entry"

    def _candidates(self, digest: str) -> Iterator[Path]:
        folder = self._folder(digest)
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return
        except OSError as error:
            self._unreadable(error)
            return
        for name in names:
            if name.startswith(f"{digest}-") and name.endswith(".entry"):
                yield folder / name

    def _load(self, path: Path) -> Entry | None:
        """The entry in a file; None for one that is gone, cannot be read, or is damaged (then it is deleted)."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # Another process has thrown it away.
            return None
        except OSError as error:
            self._unreadable(error)
            return None
        try:
            return _parse(content)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            self._throw_away(path, str(error))
            return None

    def _throw_away(self, path: Path, why: str) -> None:
        self.stats.rebuilt += 1
        _report(f"the cache entry {path} is damaged ({why}): it is rebuilt")
        with contextlib.suppress(OSError):  # It is replaced when the new one is stored; if that fails, it is reported.
            path.unlink(missing_ok=True)

    def _unreadable(self, error: OSError) -> None:
        if self._readable:
            self._readable = False
            _report(f"the cache in {self.directory} cannot be read ({error})")


def _row(read: Read) -> list[object]:
    return [read.call, read.operand, read.predicate, read.answer]


def _parse(content: bytes) -> Entry:
    """Raises `ValueError`, `KeyError`, `TypeError` or `struct.error` for what `store` has not written."""
    magic, checksum, size = _HEAD.unpack_from(content)
    start = _HEAD.size - 4
    if magic != _MAGIC:
        raise ValueError("not an entry")
    if blake2b(memoryview(content)[start:], digest_size=digests.LENGTH).digest() != checksum:
        raise ValueError("its checksum is wrong")
    header = json.loads(content[_HEAD.size : _HEAD.size + size])
    return Entry(header["key"], tuple(Read(*row) for row in header["reads"]), content[_HEAD.size + size :])


def _write(place: Path, content: bytes) -> None:
    """Writes a file beside its place and renames it. Raises `OSError`; nothing is left behind then."""
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise


def _report(what: str) -> None:
    warnings.warn(what, CacheWarning, stacklevel=4)


def default_cache() -> Cache:
    """The user's cache: in RELUME_CACHE_DIR if that is set, else where the system keeps caches."""
    return Cache(Path(os.environ.get("RELUME_CACHE_DIR") or platformdirs.user_cache_dir("relume")))
