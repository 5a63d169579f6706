"""Storage: the memory behind states, which outlives the runs that write it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from relume.base.dtypes import ALL, from_numpy
from relume.base.errors import InputError, RunError
from relume.runtime.memory import place


class Storage:
    """Named arrays that runs read and write in place, and that several executables may share.

    One run at a time holds it. `storage[name]` gives a copy. `version` counts the runs and resets that may have
    changed it. A run that ends early may have written some states and not others: the storage is then *torn*, and
    says so until it is `reset`.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        sources = {name: np.asarray(array) for name, array in arrays.items()}
        for name, source in sources.items():
            try:
                from_numpy(source.dtype)
            except KeyError:
                raise InputError(
                    f"state {name!r} cannot hold {source.dtype}", expected=", ".join(map(str, ALL)), got=source.dtype
                ) from None
        self._arrays = dict(zip(sources, place(list(sources.values()))))
        self._lock = threading.RLock()
        self._running = False
        self.version = 0
        self.torn = False

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        with self._held():
            self._check_whole()
            return self._arrays[name].copy()

    def type_of(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype and shape of a state, which never change."""
        return self._arrays[name].dtype, self._arrays[name].shape

    def __repr__(self) -> str:
        return f"Storage({', '.join(f'{name}: {a.dtype}{list(a.shape)}' for name, a in self._arrays.items())})"

    def reset(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Gives every state a new value of the same dtype and shape. The storage is whole again."""
        if arrays.keys() != self._arrays.keys():
            raise InputError(
                "a reset gives every state a value", expected=", ".join(self._arrays), got=", ".join(arrays)
            )
        values = {name: np.asarray(array) for name, array in arrays.items()}
        for name, value in values.items():
            own = self._arrays[name]
            if value.dtype != own.dtype or value.shape != own.shape:
                raise InputError(
                    f"state {name!r} cannot take this value",
                    expected=f"{own.dtype}{list(own.shape)}",
                    got=f"{value.dtype}{list(value.shape)}",
                )
        with self._held():
            for name, value in values.items():
                self._arrays[name][...] = value
            self.torn = False
            self.version += 1

    @contextmanager
    def run(self) -> Iterator[Mapping[str, np.ndarray]]:
        """Holds the storage for one run, and gives the arrays themselves. An exception inside leaves it torn."""
        with self._held():
            self._check_whole()
            self._running = True
            try:
                yield self._arrays
            except BaseException:
                self.torn = True
                raise
            finally:
                self._running = False
                self.version += 1

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            if self._running:  # The lock let us in, so this very thread runs on it: we are in a signal handler.
                raise RunError("the storage is in use by a run that this thread has interrupted")
            yield

    def _check_whole(self) -> None:
        if self.torn:
            raise RunError(
                "the storage is torn: a run that wrote to it ended early",
                hint="give every state a value with storage.reset({name: array})",
            )
