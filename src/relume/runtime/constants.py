"""Constants where generated code can use them: equal contents exist once in the process while someone runs on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from weakref import WeakValueDictionary

import numpy as np

from relume.base.content import Content
from relume.runtime.memory import is_placed, place


class Constants:
    """Placed arrays by content."""

    def __init__(self, arrays: Mapping[Content, np.ndarray]) -> None:
        self._by_content = dict(arrays)

    def find(self, contents: Sequence[Content]) -> list[np.ndarray] | None:
        """The placed array of each; None unless all are here."""
        found = [self._by_content[content] for content in contents if content in self._by_content]
        return found if len(found) == len(contents) else None


# Without a lock, which would stay locked in the child where another thread holds it when the process forks: each
# operation is atomic, and equal constants placed twice do no harm.
_LIVING: WeakValueDictionary[int, Constants] = WeakValueDictionary()
_numbers = count()


def hold(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Constants | None]:
    """The arrays as generated code can use them, and what has to be kept for as long as they should be shared.

    Someone else's are taken if they are all of these, whoever made them (a clone's constants are the original's): so
    one small constant never keeps another model's weights alive. Else those that are placed already (folding places
    what it makes) stay where they are, and the others go to one block of their own. What lies in a mapped file stays
    there: it is shared by its pages, and may be larger than memory.
    """
    own = [index for index, array in enumerate(arrays) if not (_is_mapped(array) and is_placed(array))]
    if not own:
        return list(arrays), None
    contents = [Content(arrays[index]) for index in own]
    for reference in _LIVING.valuerefs():
        living = reference()
        found = living.find(contents) if living is not None else None
        if found is not None:
            return _put(arrays, own, found), living
    loose = [index for index in own if not _stays(arrays[index])]
    placed = _put(arrays, loose, place([arrays[index] for index in loose]))
    made = Constants({content: placed[index] for content, index in zip(contents, own)})
    _LIVING[next(_numbers)] = made
    return placed, made


def _put(arrays: Sequence[np.ndarray], places: Sequence[int], found: Sequence[np.ndarray]) -> list[np.ndarray]:
    placed = list(arrays)
    for index, array in zip(places, found):
        placed[index] = array
    return placed


def _is_mapped(array: np.ndarray) -> bool:
    """Whether an array is a view of a mapped file."""
    root: object = array
    while isinstance(root, np.ndarray) and not isinstance(root, np.memmap):
        root = root.base
    return isinstance(root, np.memmap)


def _stays(array: np.ndarray) -> bool:
    """Whether an array is placed, and not by luck: what NumPy has allocated is at a multiple of 64 now and then."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root.base is not None and is_placed(array)
