"""Constants where generated code can use them: equal contents exist once in the process while someone runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

import numpy as np

from relume.base.digests import of_array
from relume.runtime.memory import is_placed, place


class Constants:
    """Arrays by content, placed together in one block (weights sit on huge pages that way)."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._by_digest = dict(zip(arrays, place(list(arrays.values()))))

    def find(self, digests: Sequence[str]) -> list[np.ndarray] | None:
        """The placed array of each digest; None unless all are here."""
        found = [self._by_digest[digest] for digest in digests if digest in self._by_digest]
        return found if len(found) == len(digests) else None


# Without a lock, which would stay locked in the child where another thread holds it when the process forks: each
# operation is atomic, and equal constants placed twice do no harm.
_LIVING: WeakValueDictionary[int, Constants] = WeakValueDictionary()
_numbers = count()


def hold(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Constants | None]:
    """The arrays as generated code can use them, and what has to be kept for as long as they should be shared.

    What lies well in a mapped file or in a block stays where it is. The others come from a block that holds all of
    them, whoever made it (a clone's constants are the original's), else from a new one: whole blocks only, so that one
    small constant never keeps another model's weights alive.
    """
    loose = [index for index, array in enumerate(arrays) if not _stays(array)]
    if not loose:
        return list(arrays), None
    digests = [of_array(arrays[index]) for index in loose]
    for reference in _LIVING.valuerefs():
        living = reference()
        found = living.find(digests) if living is not None else None
        if found is not None:
            return _put(arrays, loose, found), living
    made = Constants({digest: arrays[index] for digest, index in zip(digests, loose)})
    _LIVING[next(_numbers)] = made
    return _put(arrays, loose, made.find(digests) or []), made


def _put(arrays: Sequence[np.ndarray], places: Sequence[int], found: Sequence[np.ndarray]) -> list[np.ndarray]:
    placed = list(arrays)
    for index, array in zip(places, found):
        placed[index] = array
    return placed


def _stays(array: np.ndarray) -> bool:
    """Whether an array is placed, and not by luck: what NumPy has allocated is at a multiple of 64 now and then."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root.base is not None and is_placed(array)
