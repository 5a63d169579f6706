"""The memory of states: where it is, which states share it, and how it is copied.

Two arrays share memory if their bytes overlap: in the address space, or in a file that both are mapped from, however
often it is mapped. For memory that NumPy did not allocate itself, the kernel's own list of mappings says which it is.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from relume.base.errors import InputError, RunError
from relume.runtime.arguments import typed
from relume.runtime.memory import ALIGN, Block, address_of, place, round_up

MAPPINGS = Path("/proc/self/maps")


@dataclass(frozen=True, order=True)
class Place:
    """A range of bytes of a file, named by its device and inode, or of the address space, where that is empty."""

    file: str
    start: int
    end: int

    def __contains__(self, other: Place) -> bool:
        return self.file == other.file and self.start <= other.start and other.end <= self.end


@dataclass(eq=False)
class Cell:
    """The memory of one state. `torn`: a run that writes it, or a part of it, has ended early."""

    array: np.ndarray
    place: Place
    mapping: mmap.mmap | None = None
    """What maps the file, where it is one."""
    touching: tuple[Cell, ...] = field(init=False)
    """The cells whose bytes overlap, this one among them."""
    torn: bool = False
    own: bool = False
    """Whether only storages can write it."""

    def __post_init__(self) -> None:
        self.touching = (self,)

    def check_size(self, name: str) -> None:
        """Raises `RunError` where the file of the cell has become too short: to touch it would end the process."""
        if self.place.file and self.mapping is not None and self.mapping.size() < self.place.end:
            raise RunError(
                f"the file of state {name!r} is shorter than when it was mapped",
                expected=f"at least {self.place.end:,} bytes",
                got=f"{self.mapping.size():,} bytes",
                hint="make it as long as it was (os.truncate), or map it again; never truncate it while it is mapped",
            )


def owned(arrays: Sequence[np.ndarray]) -> list[Cell]:
    """Cells of new memory that holds copies of the arrays."""
    return [Cell(array, _addresses(array), own=True) for array in place(arrays)]


def lent(arrays: Sequence[np.ndarray]) -> list[Cell]:
    """Cells over these very arrays, which know each other where they share memory."""
    made = [Cell(array, where, _mapping(array)) for array, where in zip(arrays, _places(arrays))]
    order = sorted(made, key=lambda cell: cell.place)
    touching: dict[Cell, list[Cell]] = {cell: [cell] for cell in made}
    for index, cell in enumerate(order):
        for other in islice(order, index + 1, None):
            if other.place.file != cell.place.file or other.place.start >= cell.place.end:
                break
            if other.place.end > other.place.start:
                touching[cell].append(other)
                touching[other].append(cell)
    for cell, others in touching.items():
        cell.touching = tuple(others)
    return made


def copies(cells: Sequence[Cell]) -> dict[Cell, Cell]:
    """New memory with the contents of each cell. Cells that share memory share it there in the same way."""
    groups = _groups(list(dict.fromkeys(cells)))
    spans = [(min(c.place.start for c in group), max(c.place.end for c in group)) for group in groups]
    # Alone, a cell starts at a multiple of ALIGN; where several share memory, each is aligned as it was.
    leads = [start % ALIGN if len(group) > 1 else 0 for group, (start, _) in zip(groups, spans)]
    sizes = [round_up(lead + end - start) for lead, (start, end) in zip(leads, spans)]
    block, at = Block(sum(sizes)), 0
    made: dict[Cell, Cell] = {}
    for group, (start, _), lead, size in zip(groups, spans, leads, sizes):
        for cell in group:
            array = block.array(cell.array.shape, cell.array.dtype, at + lead + cell.place.start - start)
            array[...] = cell.array
            made[cell] = Cell(array, _addresses(array), own=True)
        for cell in group:
            made[cell].touching = tuple(made[other] for other in cell.touching if other in made)
        at += size
    return made


def apart(arrays: Sequence[np.ndarray], cells: Sequence[Cell]) -> list[np.ndarray]:
    """The arrays, but copies of those that may lie in the memory of the cells.

    Where a cell is a file, that is any array that NumPy did not allocate: it may map the same file.
    """
    files = any(cell.place.file for cell in cells)
    return [
        array.copy()
        if (files and not _is_plain(array)) or any(np.may_share_memory(array, cell.array) for cell in cells)
        else array
        for array in arrays
    ]


def map_file(
    name: str, path: str | os.PathLike[str], dtype: np.dtype, shape: tuple[int, ...], writable: bool
) -> np.ndarray:
    """The elements of a file as an array over its pages, for the state `name`.

    Raises `InputError` where the file is missing or too short.
    """
    wanted = dtype.itemsize
    for extent in shape:
        wanted *= extent
    try:
        size = os.stat(path).st_size
        if size < wanted:
            raise InputError(
                f"the file of state {name!r} is too short",
                where=path,
                expected=f"{wanted:,} bytes for {typed(dtype, shape)}",
                got=f"{size:,} bytes",
                hint="a sparse file will do: open(path, 'wb').truncate(bytes)",
            )
        if not wanted:
            return np.empty(shape, dtype)
        with open(path, "r+b" if writable else "rb") as file:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return np.frombuffer(mmap.mmap(file.fileno(), wanted, access=access), dtype).reshape(shape)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"the file of state {name!r} cannot be mapped", where=path, got=error) from None


def clash(cells: Mapping[str, Cell], values: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
    """Two names that share memory whose values differ there; None where all values go together.

    `values` have the cells' dtypes, but for the byte order, and shapes.
    """
    first: dict[Cell, str] = {}
    for name, cell in cells.items():
        first.setdefault(cell, name)
        for other in cell.touching:
            rival = first.get(other, name)
            start, end = max(cell.place.start, other.place.start), min(cell.place.end, other.place.end)
            if (
                rival != name
                and (_bytes(values[name], cell, start, end) != _bytes(values[rival], other, start, end)).any()
            ):
                return rival, name
    return None


def _bytes(value: np.ndarray, cell: Cell, start: int, end: int) -> np.ndarray:
    """Those bytes of a cell's memory that a value would put from `start` to `end`."""
    plain = np.ascontiguousarray(value, cell.array.dtype)
    return plain.reshape(-1).view(np.uint8)[start - cell.place.start : end - cell.place.start]


# --- where arrays are -----------------------------------------------------------------------------------------------


def _bases(array: np.ndarray) -> Iterator[object]:
    """The array, and whatever holds its memory, the last one being its owner."""
    owner: object = array
    while owner is not None:
        yield owner
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj if isinstance(owner, memoryview) else None


def _is_plain(array: np.ndarray) -> bool:
    """Whether NumPy has allocated the memory: then it is no file."""
    *_, owner = _bases(array)
    return isinstance(owner, np.ndarray) and owner.flags.owndata


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """What maps the file that the array lies in, if it still knows how long that is."""
    for owner in _bases(array):
        if isinstance(owner, mmap.mmap):
            with suppress(OSError, ValueError):  # It has no file, or has let go of it.
                owner.size()
                return owner
    return None


def _addresses(array: np.ndarray) -> Place:
    start = address_of(array)
    return Place("", start, start + array.nbytes)


def _places(arrays: Sequence[np.ndarray]) -> list[Place]:
    places = [_addresses(array) for array in arrays]
    foreign = [index for index, array in enumerate(arrays) if array.nbytes and not _is_plain(array)]
    if foreign:
        files = list(_mapped_files())
        for index in foreign:
            where = places[index]
            for low, high, offset, file in files:
                if low <= where.start < high:
                    places[index] = Place(file, where.start - low + offset, where.end - low + offset)
    return places


def _mapped_files() -> Iterator[tuple[int, int, int, str]]:
    """(first address, one past the last, offset in the file, device and inode) of all that maps a file."""
    with MAPPINGS.open() as lines:
        for line in lines:
            addresses, _, offset, device, inode, *_ = line.split(maxsplit=5)
            if inode != "0":
                low, high = (int(address, 16) for address in addresses.split("-"))
                yield low, high, int(offset, 16), f"{device} {inode}"


def _groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells, those together that share memory directly or through others; in the order of the first of each."""
    order = {cell: index for index, cell in enumerate(cells)}
    groups: list[list[Cell]] = []
    end = 0
    for cell in sorted(cells, key=lambda cell: (cell.place.file, cell.place.start, order[cell])):
        if groups and groups[-1][0].place.file == cell.place.file and cell.place.start < end:
            groups[-1].append(cell)
            end = max(end, cell.place.end)
        else:
            groups.append([cell])
            end = cell.place.end
    for group in groups:
        group.sort(key=order.__getitem__)
    return sorted(groups, key=lambda group: order[group[0]])
