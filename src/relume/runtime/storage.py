"""Storage: the memory behind states, which outlives the runs that write it."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from relume.base import dims
from relume.base.errors import InputError, LimitError, RunError
from relume.runtime import cells
from relume.runtime.arguments import as_arrays, as_dtype, as_extent, as_names, as_shape, typed
from relume.runtime.artifact import Port
from relume.runtime.cells import Cell
from relume.runtime.derived import Derived
from relume.runtime.lock import ReadWriteLock
from relume.runtime.memory import machine_memory


class Held:
    """A storage in the hands of one run."""

    def __init__(self, named: Mapping[str, Cell], written: Sequence[str], guard: _Guard) -> None:
        self.arrays = {name: cell.array for name, cell in named.items()}
        self._cells = named
        self._written = [named[name] for name in written]
        self._guard = guard
        self.wrote = False
        """To be set where native code may have written a state: an early end then leaves some written, some not."""

    def apart(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays, but copies of those that lie in states that the run writes: a caller may have lent both."""
        return cells.apart(arrays, self._written)

    def tear(self) -> None:
        """Marks what the run writes, if it may have begun to, and whatever shares memory with that."""
        for cell in self._written if self.wrote else ():
            for other in cell.touching:
                other.torn = True

    @property
    def keeps(self) -> bool:
        """Whether what is derived from the states can be kept. What is borrowed or mapped others may write unseen."""
        return all(cell.own for cell in self._cells.values())

    def derived(
        self, maker: object, names: Sequence[str], make: Callable[[Held], Sequence[np.ndarray]]
    ) -> Sequence[np.ndarray]:
        """What `make` computes from these states, in a run that writes none: once for each version and `maker`, or in
        each run where it cannot be kept."""
        some = tuple([self._cells[name] for name in names])
        found = self._guard.derived.find(maker, some)
        if found is not None:
            return found
        part = Held(dict(zip(names, some)), (), self._guard)
        made = make(part)
        return self._guard.derived.keep(maker, some, made) if part.keeps else made


@dataclass(eq=False)
class _Guard:
    """What storages over one memory have in common."""

    lock: ReadWriteLock = field(default_factory=ReadWriteLock)
    version: int = 0
    derived: Derived = field(default_factory=Derived)
    writer: Held | None = None
    """The run that writes now."""

    def __post_init__(self) -> None:
        _GUARDS.add(self)

    def forget_others(self) -> None:
        """In the child of a fork: the threads that held the storage are gone, and what they were writing is torn.

        `Held.wrote` decides, not the context: fork copies page after page while other threads run on.
        """
        if self.lock.forget_others() and self.writer is not None:
            self.writer.tear()
            self.writer = None


_GUARDS: weakref.WeakSet[_Guard] = weakref.WeakSet()


def _after_fork() -> None:
    for guard in list(_GUARDS):
        guard.forget_others()


os.register_at_fork(after_in_child=_after_fork)


class Storage:
    """Named arrays that runs read and write in place, and that several executables may share.

    `Storage(arrays)` owns copies; `Storage.borrow` uses the caller's own arrays, `Storage.map` files. Runs that only
    read hold it together, a run that writes holds it alone. `storage[name]` gives a copy. `version` counts the runs
    and resets that may have changed it. A run that ends after its first write may have written some states and not
    others: those that it writes are then *torn*, and every use says so until they are `reset`.

    Names may share memory: by `share`, or because borrowed arrays overlap or lie in one file. What is written under
    one of them is then seen, and torn, under all. Every method raises `InputError` for arguments that do not fit, and
    `RunError` where it needs a state that is torn, or whose file has become too short.

    What runs derive from the states alone, such as packed weights, is kept beside them until one is written. Memory
    that is borrowed or mapped others may write unseen: what depends on it is computed in each run.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        given = as_arrays("Storage", arrays)
        self._open(dict(zip(given, cells.owned(list(given.values())))), _Guard())

    def _open(self, made: Mapping[str, Cell], guard: _Guard) -> None:
        self._cells = dict(made)
        self._guard = guard
        names: dict[Cell, list[int]] = {}
        for index, cell in enumerate(made.values()):
            names.setdefault(cell, []).append(index)
        order = list(made)
        self.overlaps = tuple(
            (name, order[other])
            for index, (name, cell) in enumerate(made.items())
            for other in sorted(at for near in cell.touching for at in names.get(near, ()) if at > index)
        )
        """The pairs of names whose memory overlaps."""

    @classmethod
    def _over(cls, made: Mapping[str, Cell], guard: _Guard) -> Storage:
        storage = cls.__new__(cls)
        storage._open(made, guard)
        return storage

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError(
            "a storage is not copied or pickled: it is the memory of runs",
            hint="make an independent copy with storage.fork(), or take the arrays: {name: storage[name]}",
        )

    # -- other ways to make one --

    @classmethod
    def borrow(cls, arrays: Mapping[str, np.ndarray]) -> Storage:
        """A storage over the caller's own arrays: runs write into them.

        Whoever reads or writes them elsewhere sees to it that no run is going on. Raises `InputError` where an array
        is not in C order, aligned, of native byte order and writable.
        """
        given = as_arrays("Storage.borrow", arrays)
        for name, array in given.items():
            if not isinstance(arrays[name], np.ndarray):
                _refuse_to_borrow(name, type(arrays[name]).__name__)
            flags = array.flags
            broken = [
                *(() if flags.c_contiguous else ("not C-contiguous",)),
                *(() if flags.aligned else ("not aligned",)),
                *(() if array.dtype.isnative else ("foreign byte order",)),
                *(() if flags.writeable else ("read-only",)),
            ]
            if broken:
                _refuse_to_borrow(name, f"{typed(array.dtype.newbyteorder('='), array.shape)}, {', '.join(broken)}")
        return cls._over(dict(zip(given, cells.lent(list(given.values())))), _Guard())

    @classmethod
    def map(
        cls, files: Mapping[str, tuple[str | os.PathLike[str], object, Sequence[int]]], *, writable: bool = True
    ) -> Storage:
        """A storage over files of raw elements in C order: `{name: (path, dtype, shape)}`.

        Nothing is read until a run touches it, so files may be larger than memory, and sparse. What runs write goes
        to the file; with `writable=False` no run may write. Raises `InputError` where a file is missing or too short.
        """
        given: Mapping[str, object] = as_names("Storage.map", files, _MAP)
        arrays = {}
        for name, spec in given.items():
            if not isinstance(spec, (tuple, list)) or len(spec) != 3 or not isinstance(spec[0], (str, os.PathLike)):
                raise InputError(
                    f"the file of state {name!r} is not described",
                    expected="(path, dtype, shape)",
                    got=repr(spec),
                    hint=_MAP,
                )
            path, element, shape = spec
            dtype = as_dtype(name, element)
            if not dtype.isnative:
                raise InputError(
                    f"the file of state {name!r} has a foreign byte order",
                    where=path,
                    expected=f"{typed(dtype.newbyteorder('='), ())[:-2]}, in the byte order of this machine",
                    got=dtype.str,
                    hint="convert the file: np.fromfile(path, dtype).astype(dtype.newbyteorder('=')).tofile(path)",
                )
            arrays[name] = cells.map_file(name, path, dtype, as_shape(name, shape), writable)
        return cls._over(dict(zip(arrays, cells.lent(list(arrays.values())))), _Guard())

    @classmethod
    def zeros(cls, states: Iterable[Port], symbols: Mapping[str, int] | None = None) -> Storage:
        """Zeros for every state of an executable (`Storage.zeros(exe.states)`); `symbols` gives open extents a size.

        Raises `LimitError` where there is not that much memory.
        """
        ports = list(states) if isinstance(states, Iterable) else [states]
        if not all(isinstance(port, Port) for port in ports):
            raise InputError(
                "Storage.zeros takes the states of an executable",
                expected="Storage.zeros(exe.states)",
                got=type(states).__name__,
            )
        sizes = {
            name: as_extent(f"the extent {name}", size)
            for name, size in as_names("symbols", symbols or {}, "{'N': 2}").items()
        }
        arrays, needed = {}, 0
        for port in ports:
            shape = tuple(_evaluated(port, dim, sizes) for dim in port.dims)
            needed += port.dtype.bytes * math.prod(max(extent, 1) for extent in shape)  # NumPy bounds empty ones too.
            if needed > machine_memory():
                raise LimitError(
                    "the states would need more memory than this machine has",
                    expected=f"at most {machine_memory():,} bytes",
                    got=f"{needed:,} bytes by state {port.name!r}, {typed(port.dtype.numpy, shape)}",
                    hint="map them from sparse files (Storage.map), or make them smaller",
                )
            arrays[port.name] = np.broadcast_to(port.dtype.numpy.type(0), shape)
        return cls(arrays)

    def fork(self) -> Storage:
        """An independent copy, in memory. Names that share memory here share it there."""
        with self._guard.lock.reading():
            self._check_usable(self._cells)
            made = cells.copies(list(self._cells.values()))
        return self._over({name: made[cell] for name, cell in self._cells.items()}, _Guard())

    def share(self, names: Iterable[str] | Mapping[str, str]) -> Storage:
        """Another storage over the same memory, with the same lock and version.

        `names` says which states, `{new: old}` under which other names; several new names may stand for one old one.
        Raises `InputError` for a state that is not here.
        """
        example = "share(['w']), or share({'new': 'old'})"
        if isinstance(names, Mapping):
            renamed = as_names("share", names, example)
        elif isinstance(names, Iterable) and not isinstance(names, (str, bytes)):
            listed = list(names)
            if not all(isinstance(name, str) for name in listed):
                raise InputError("share has a name that is no string", expected="str", got=repr(listed), hint=example)
            renamed = {name: name for name in listed}
        else:
            raise InputError("share takes names", expected="a list or a dict", got=repr(names), hint=example)
        return self._over({new: self._cell(old) for new, old in renamed.items()}, self._guard)

    # -- what it holds --

    @property
    def version(self) -> int:
        """Counts the runs that write and the resets: what is derived from the states can be kept by it."""
        return self._guard.version

    @property
    def derived_bytes(self) -> int:
        """The memory of what is kept beside the states: packed weights and the like, until a state is written."""
        return self._guard.derived.bytes

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
        cell = self._cell(name)
        with self._guard.lock.reading():
            self._check_usable([name])
            return cell.array.copy()

    def _cell(self, name: str) -> Cell:
        cell = self._cells.get(name) if isinstance(name, str) else None
        if cell is None:
            raise InputError(
                f"the storage has no state {name!r}", expected=", ".join(self._cells) or "none: it is empty", got=name
            )
        return cell

    def type_of(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype and shape of a state, which never change."""
        array = self._cell(name).array
        return array.dtype, array.shape

    def writable(self, name: str) -> bool:
        """Whether runs may write a state: all but those of files that are mapped to be read."""
        return self._cell(name).array.flags.writeable

    def __repr__(self) -> str:
        arrays = {name: cell.array for name, cell in self._cells.items()}
        return f"Storage({', '.join(f'{name}: {typed(a.dtype, a.shape)}' for name, a in arrays.items())})"

    # -- changing it --

    def reset(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Gives every state a new value of the same dtype and shape. The storage is whole again.

        Names that share memory need values that agree there.
        """
        given = as_arrays("reset", arrays)
        if given.keys() != self._cells.keys():
            raise InputError(
                "a reset gives every state a value", expected=", ".join(self._cells), got=", ".join(given) or "none"
            )
        for name, value in given.items():
            own = self._cells[name].array
            if value.dtype.newbyteorder("=") != own.dtype or value.shape != own.shape:
                raise InputError(
                    f"state {name!r} cannot take this value",
                    expected=typed(own.dtype, own.shape),
                    got=typed(value.dtype, value.shape),
                )
            if not own.flags.writeable:
                raise InputError(
                    f"state {name!r} is read-only: its file is mapped to be read", hint="map it with writable=True"
                )
        own_cells = list(self._cells.values())
        with self._guard.lock.writing():
            for name, cell in self._cells.items():
                cell.check_size(name)
            values = dict(zip(given, cells.apart(list(given.values()), own_cells)))
            rivals = self.overlaps and cells.clash(
                self._cells,
                {name: np.ascontiguousarray(a, self._cells[name].array.dtype) for name, a in values.items()},
            )
            if rivals:
                raise InputError(
                    f"the states {rivals[0]!r} and {rivals[1]!r} share memory, and are given different values",
                    hint="give both the same value, or each memory of its own (storage.fork() keeps what is shared)",
                )
            self._guard.version += 1
            self._guard.derived.drop()
            affected = dict.fromkeys(other for cell in own_cells for other in cell.touching)
            # What is reset only in part stays as whole as it was.
            left = {
                other: other.torn and not any(other.place in cell.place for cell in own_cells) for other in affected
            }
            for other in affected:
                other.torn = True
            for name, value in values.items():
                self._cells[name].array[...] = value
            for other, torn in left.items():
                other.torn = torn

    @contextmanager
    def run(self, names: Sequence[str], written: Sequence[str], deadline: int = 0) -> Iterator[Held]:
        """Holds the storage for one run on the states `names`, of which it writes `written`, and gives their arrays.

        An exception where `Held.wrote` leaves `written` torn, and all that shares its memory. Past `deadline` (as in
        `ReadWriteLock`) raises `LimitError`.
        """
        guard = self._guard
        with guard.lock.writing(deadline) if written else guard.lock.reading(deadline):
            self._check_usable(names)
            held = Held({name: self._cells[name] for name in names}, written, guard)
            if written:
                guard.derived.drop()
                guard.writer = held
            try:
                yield held
            except BaseException:
                held.tear()
                raise
            finally:
                if written:
                    guard.version += held.wrote
                    guard.writer = None

    def _check_usable(self, names: Iterable[str]) -> None:
        torn = []
        for name in names:
            self._cells[name].check_size(name)
            if self._cells[name].torn:
                torn.append(name)
        if torn:
            raise RunError(
                f"the storage is torn: a run that writes {', '.join(torn)} ended early",
                hint="give every state a value with storage.reset({name: array})",
            )


_MAP = "Storage.map({'w': ('w.bin', 'float32', (10, 4))})"


def _evaluated(port: Port, dim: dims.Dim, symbols: Mapping[str, int]) -> int:
    try:
        return as_extent(f"the extent {dim} of state {port.name!r}", dims.evaluate(dim, symbols))
    except ZeroDivisionError:
        raise InputError(f"the extent {dim} of state {port.name!r} is a division by zero", got=dict(symbols)) from None
    except dims.UnboundSymbol as error:
        raise InputError(
            f"the extents of state {port.name!r} are not known",
            expected=f"a size for {error.args[0]}",
            got=port,
            hint=f"Storage.zeros(states, {{{error.args[0]!r}: size}})",
        ) from None


def _refuse_to_borrow(name: str, got: str) -> NoReturn:
    raise InputError(
        f"state {name!r} cannot live in this array",
        expected="a NumPy array: C-contiguous, aligned, native byte order, writable",
        got=got,
        hint="give Storage(...) the array: it makes a copy that fits",
    )
