"""What runs have computed from states alone (packed weights and the like), kept until somebody writes the states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

Cells = tuple[Hashable, ...]
"""The memory of the states that something was computed from, in the order of who did."""


class Derived:
    """Arrays by who has computed them and from which cells, gone with either.

    They are put in by who holds the storage to read, and dropped by who holds it to write, before anything is written:
    what is here is true, wherever a run may end. Without a lock, for each operation is atomic.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[object, dict[Cells, Sequence[np.ndarray]]] = WeakKeyDictionary()

    def find(self, maker: object, cells: Cells) -> Sequence[np.ndarray] | None:
        """What `maker` has computed from these cells; None where it has not, or they were written since."""
        return self._kept.get(maker, {}).get(cells)

    def keep(self, maker: object, cells: Cells, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Keeps the arrays. Gives those of another thread where it was first: so they exist once."""
        return self._kept.setdefault(maker, {}).setdefault(cells, arrays)

    def drop(self) -> None:
        """Forgets everything."""
        if self._kept:
            self._kept.clear()

    @property
    def bytes(self) -> int:
        """The memory of what is kept."""
        makers = [reference() for reference in self._kept.keyrefs()]  # At once: other threads may add to it.
        made = [list(self._kept.get(maker, {}).values()) for maker in makers if maker is not None]
        return sum(array.nbytes for kept in made for arrays in kept for array in arrays)
