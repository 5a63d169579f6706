"""Storage: the memory behind states, which outlives the runs that write it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from relume.base import dims
from relume.base.dtypes import ALL, from_numpy
from relume.base.errors import InputError, RunError
from relume.runtime.artifact import Port
from relume.runtime.lock import ReadWriteLock
from relume.runtime.memory import address_of, place


@dataclass(eq=False)
class _Cell:
    """The memory of one state. `torn`: a run that writes it has ended early."""

    array: np.ndarray
    torn: bool = False


@dataclass(eq=False)
class _Guard:
    """What storages over one memory have in common."""

    lock: ReadWriteLock = field(default_factory=ReadWriteLock)
    version: int = 0


class Held:
    """A storage in the hands of one run."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.wrote = False
        """To be set where native code may have written a state: an early end then leaves some written, some not."""


class Storage:
    """Named arrays that runs read and write in place, and that several executables may share.

    `Storage(arrays)` owns copies; `Storage.borrow` uses the caller's own arrays, `Storage.map` files. Runs that only
    read hold it together, a run that writes holds it alone. `storage[name]` gives a copy. `version` counts the runs
    and resets that may have changed it. A run that ends after its first write may have written some states and not
    others: those that it writes are then *torn*, and every use says so until they are `reset`.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        sources = {name: np.asarray(array) for name, array in arrays.items()}
        _check_dtypes(sources)
        self._open(dict(zip(sources, map(_Cell, place(list(sources.values()))))), _Guard())

    def _open(self, cells: Mapping[str, _Cell], guard: _Guard) -> None:
        self._cells = dict(cells)
        self._guard = guard
        self.overlaps = _overlaps(self._cells)
        """The pairs of names whose memory overlaps."""

    @classmethod
    def _over(cls, cells: Mapping[str, _Cell], guard: _Guard) -> Storage:
        made = cls.__new__(cls)
        made._open(cells, guard)
        return made

    # -- other ways to make one --

    @classmethod
    def borrow(cls, arrays: Mapping[str, np.ndarray]) -> Storage:
        """A storage over the caller's own arrays: runs write into them.

        Whoever reads or writes them elsewhere sees to it that no run is going on. Raises `InputError` where an array
        is not in C order, aligned, of native byte order and writable.
        """
        _check_dtypes(arrays)
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or not (array.flags.carray and array.dtype.isnative):
                raise InputError(
                    f"state {name!r} cannot live in this array",
                    expected="a NumPy array: C-contiguous, aligned, native byte order, writable",
                    got=_layout(array),
                    hint="give Storage(...) the array: it makes a copy that fits",
                )
        return cls._over({name: _Cell(array) for name, array in arrays.items()}, _Guard())

    @classmethod
    def map(
        cls, files: Mapping[str, tuple[str | os.PathLike[str], object, Sequence[int]]], *, writable: bool = True
    ) -> Storage:
        """A storage over files of raw elements in C order: `{name: (path, dtype, shape)}`.

        Nothing is read until a run touches it, so files may be larger than memory, and sparse. What runs write goes
        to the file; with `writable=False` no run may write. Raises `InputError` where a file is missing or too short.
        """
        cells: dict[str, _Cell] = {}
        for name, (path, dtype, shape) in files.items():
            element = np.dtype(getattr(dtype, "numpy", dtype))  # type: ignore[call-overload]
            _check_dtypes({name: np.empty(0, element)})
            cells[name] = _Cell(_mapped(name, Path(path), element, tuple(shape), "r+" if writable else "r"))
        return cls._over(cells, _Guard())

    @classmethod
    def zeros(cls, states: Iterable[Port], symbols: Mapping[str, int] | None = None) -> Storage:
        """Zeros for every state of an executable (`Storage.zeros(exe.states)`); `symbols` gives open extents a size."""
        arrays = {}
        for port in states:
            try:
                shape = tuple(dims.evaluate(dim, symbols or {}) for dim in port.dims)
            except dims.UnboundSymbol as error:
                raise InputError(
                    f"the extents of state {port.name!r} are not known",
                    expected=f"a size for {error.args[0]}",
                    got=port,
                    hint=f"Storage.zeros(states, {{{error.args[0]!r}: size}})",
                ) from None
            arrays[port.name] = np.zeros(shape, port.dtype.numpy)
        return cls(arrays)

    def fork(self) -> Storage:
        """An independent copy, in memory. Names that share memory here share it there."""
        with self._guard.lock.reading():
            self._check_whole(self._cells)
            distinct = list(dict.fromkeys(self._cells.values()))
            copies = dict(zip(distinct, map(_Cell, place([cell.array for cell in distinct]))))
        return self._over({name: copies[cell] for name, cell in self._cells.items()}, _Guard())

    def share(self, names: Iterable[str] | Mapping[str, str]) -> Storage:
        """Another storage over the same memory, with the same lock and version.

        `names` says which states, `{new: old}` under which other names; several new names may stand for one old one.
        Raises `InputError` for a state that is not here.
        """
        renamed = names if isinstance(names, Mapping) else {name: name for name in names}
        for old in renamed.values():
            if old not in self._cells:
                raise InputError(f"the storage has no state {old!r}", expected=", ".join(self._cells), got=old)
        return self._over({new: self._cells[old] for new, old in renamed.items()}, self._guard)

    # -- what it holds --

    @property
    def version(self) -> int:
        """Counts the runs that write and the resets: what is derived from the states can be kept by it."""
        return self._guard.version

    @property
    def torn(self) -> bool:
        """Whether a run that writes some of these states has ended early."""
        return any(cell.torn for cell in self._cells.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, name: object) -> bool:
        return name in self._cells

    def __getitem__(self, name: str) -> np.ndarray:
        with self._guard.lock.reading():
            self._check_whole([name])
            return self._cells[name].array.copy()

    def type_of(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype and shape of a state, which never change."""
        return self._cells[name].array.dtype, self._cells[name].array.shape

    def writable(self, name: str) -> bool:
        """Whether runs may write a state: all but those of files that are mapped to be read."""
        return self._cells[name].array.flags.writeable

    def __repr__(self) -> str:
        arrays = {name: cell.array for name, cell in self._cells.items()}
        return f"Storage({', '.join(f'{name}: {a.dtype}{list(a.shape)}' for name, a in arrays.items())})"

    # -- changing it --

    def reset(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Gives every state a new value of the same dtype and shape. The storage is whole again."""
        if arrays.keys() != self._cells.keys():
            raise InputError(
                "a reset gives every state a value", expected=", ".join(self._cells), got=", ".join(arrays)
            )
        values = {name: np.asarray(array) for name, array in arrays.items()}
        for name, value in values.items():
            own = self._cells[name].array
            if value.dtype != own.dtype or value.shape != own.shape or not own.flags.writeable:
                raise InputError(
                    f"state {name!r} cannot take this value",
                    expected=f"{own.dtype}{list(own.shape)}" if own.flags.writeable else "none: it is read-only",
                    got=f"{value.dtype}{list(value.shape)}",
                )
        with self._guard.lock.writing():
            self._guard.version += 1
            for cell in self._cells.values():
                cell.torn = True
            for name, value in values.items():
                self._cells[name].array[...] = value
            for cell in self._cells.values():
                cell.torn = False

    @contextmanager
    def run(self, names: Sequence[str], written: Sequence[str], deadline: int = 0) -> Iterator[Held]:
        """Holds the storage for one run on the states `names`, of which it writes `written`, and gives their arrays.

        An exception where `Held.wrote` leaves `written` torn. Past `deadline` (as in `ReadWriteLock`) raises
        `LimitError`.
        """
        lock = self._guard.lock
        with lock.writing(deadline) if written else lock.reading(deadline):
            self._check_whole(names)
            held = Held({name: self._cells[name].array for name in names})
            try:
                yield held
            except BaseException:
                for name in written if held.wrote else ():
                    self._cells[name].torn = True
                raise
            finally:
                if written and held.wrote:
                    self._guard.version += 1

    def _check_whole(self, names: Iterable[str]) -> None:
        torn = [name for name in names if self._cells[name].torn]
        if torn:
            raise RunError(
                f"the storage is torn: a run that writes {', '.join(torn)} ended early",
                hint="give every state a value with storage.reset({name: array})",
            )


def _check_dtypes(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        dtype = np.asarray(array).dtype
        try:
            from_numpy(dtype)
        except KeyError:
            raise InputError(
                f"state {name!r} cannot hold {dtype}", expected=", ".join(map(str, ALL)), got=dtype
            ) from None


def _mapped(name: str, path: Path, dtype: np.dtype, shape: tuple[int, ...], mode: str) -> np.ndarray:
    wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        size = path.stat().st_size
        if size < wanted:
            raise InputError(
                f"the file of state {name!r} is too short",
                where=path,
                expected=f"{wanted:,} bytes for {dtype}{list(shape)}",
                got=f"{size:,} bytes",
                hint="a sparse file will do: open(path, 'wb').truncate(bytes)",
            )
        if not wanted:
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(path, dtype, mode, 0, shape))  # type: ignore[call-overload]
    except (OSError, ValueError) as error:
        raise InputError(f"the file of state {name!r} cannot be mapped", where=path, got=error) from None


def _layout(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    flags = array.flags
    broken = [
        *(() if flags.c_contiguous else ("not C-contiguous",)),
        *(() if flags.aligned else ("not aligned",)),
        *(() if array.dtype.isnative else ("foreign byte order",)),
        *(() if flags.writeable else ("read-only",)),
    ]
    return f"{array.dtype}{list(array.shape)}, {', '.join(broken)}"


def _overlaps(cells: Mapping[str, _Cell]) -> tuple[tuple[str, str], ...]:
    """The pairs of names whose byte ranges overlap: by start, each against those that begin before it ends."""
    order = {name: index for index, name in enumerate(cells)}
    ranges = [(address_of(cell.array), cell.array.nbytes, name) for name, cell in cells.items() if cell.array.nbytes]
    ranges.sort(key=lambda one: one[:2])
    pairs: list[tuple[str, str]] = []
    for index, (start, size, name) in enumerate(ranges):
        for other_start, _, other in ranges[index + 1 :]:
            if other_start >= start + size:
                break
            pairs.append((name, other) if order[name] < order[other] else (other, name))
    return tuple(sorted(pairs, key=lambda pair: (order[pair[0]], order[pair[1]])))
