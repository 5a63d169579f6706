"""Constants where generated code can use them: equal contents exist once in the process while someone runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

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


_LIVING: WeakSet[Constants] = WeakSet()


def hold(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Constants | None]:
    """The arrays as generated code can use them, and what has to be kept for as long as they should be shared.

    What is placed already stays as it is. The others come from a block that holds all of them, of whoever made it
    (a clone's constants are the original's), else from a new one: whole blocks only, so that one small constant never
    keeps another model's weights alive.
    """
    loose = [index for index, array in enumerate(arrays) if not is_placed(array)]
    if not loose:
        return list(arrays), None
    digests = [of_array(arrays[index]) for index in loose]
    for living in list(_LIVING):
        found = living.find(digests)
        if found is not None:
            break
    else:
        living = Constants({digest: arrays[index] for digest, index in zip(digests, loose)})
        found = living.find(digests)
        assert found is not None
        _LIVING.add(living)
    placed = list(arrays)
    for index, array in zip(loose, found):
        placed[index] = array
    return placed, living
