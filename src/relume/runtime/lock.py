"""A lock for many readers or one writer, that knows its threads and can be waited for up to a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relume.base.errors import LimitError, RunError

WAKE = 0.05
"""Seconds after which who waits looks again: a signal handler that raises may have eaten the notice."""


class ReadWriteLock:
    """Held by any number of readers, or by one writer. Readers let a waiting writer go first.

    A signal handler runs on the very thread that it interrupts: what it asks for while that thread holds the lock can
    never be waited for. A read within a read is let in; anything else raises `RunError`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # Over a re-entrant lock: a handler may come while this thread has it.
        self._readers: dict[object, int] = {}
        self._writer: tuple[object, int] | None = None
        self._waiting: dict[object, int] = {}

    @contextmanager
    def reading(self, deadline: int = 0) -> Iterator[None]:
        """Holds the lock with other readers. `deadline` as in `writing`."""
        token, me = object(), threading.get_ident()
        try:
            with self._changed:
                self._refuse_own_writer(me)
                if me not in self._readers.values():
                    self._wait(lambda: self._writer is None and not self._waiting, deadline)
                self._readers[token] = me
            yield
        finally:  # Also where a signal handler raised on the way in.
            self._readers.pop(token, None)
            self._notify()

    @contextmanager
    def writing(self, deadline: int = 0) -> Iterator[None]:
        """Holds the lock alone. Past `deadline` (nanoseconds of CLOCK_MONOTONIC; 0: none) raises `LimitError`."""
        token, me = object(), threading.get_ident()
        try:
            with self._changed:
                self._refuse_own_writer(me)
                if me in self._readers.values():
                    raise _interrupted()
                self._waiting[token] = me
                try:
                    self._wait(lambda: self._writer is None and not self._readers, deadline)
                    self._writer = (token, me)
                finally:
                    self._waiting.pop(token, None)
                    self._changed.notify_all()  # Readers may have waited for this writer, which may have given up.
            yield
        finally:
            writer = self._writer
            if writer is not None and writer[0] is token:
                self._writer = None
            self._notify()

    def forget_others(self) -> bool:
        """In the child of a fork, where this thread alone goes on: drops what others held and waited for.

        Returns whether one of them was writing.
        """
        if self._changed.acquire(blocking=False):  # Free, or held by this very thread.
            self._changed.release()
        else:
            self._changed = threading.Condition()
        me = threading.get_ident()
        self._readers = {token: thread for token, thread in self._readers.items() if thread == me}
        self._waiting = {token: thread for token, thread in self._waiting.items() if thread == me}
        foreign = self._writer is not None and self._writer[1] != me
        if foreign:
            self._writer = None
        return foreign

    def _notify(self) -> None:
        """Wakes who waits. The holder is gone already: nothing that a signal handler does here keeps the lock held."""
        with self._changed:
            self._changed.notify_all()

    def _refuse_own_writer(self, me: int) -> None:
        if self._writer is not None and self._writer[1] == me:
            raise _interrupted()

    def _wait(self, free: Callable[[], bool], deadline: int) -> None:
        while not free():
            left = (deadline - time.monotonic_ns()) / 1e9 if deadline else WAKE
            if left <= 0:
                raise LimitError("the time limit was reached before the storage was free", hint="other runs hold it")
            self._changed.wait(min(left, WAKE))


def _interrupted() -> RunError:
    return RunError("the storage is in use by a run that this thread has interrupted")
