"""The worker threads: one pool for the whole process, in native code, started when first asked for.

The pool's code comes from the image of the executable that asked first, whose mapping is then kept for ever: its
threads run in it. A pool cannot be resized, so a larger request starts a new one, and the old one's threads sleep on.
Threads do not survive `fork`: the child forgets the pool and starts its own when it needs one.
"""

from __future__ import annotations

import ctypes
import os
import threading

from relume.base import abi
from relume.base.errors import InputError, RunError
from relume.runtime.image import POOL_START, MappedImage
from relume.runtime.memory import Block
from relume.runtime.symbols import imports


def thread_count(asked: int | None) -> int:
    """The number of threads to use; for None, one per processor that this process may run on."""
    if asked is None:
        return min(len(os.sched_getaffinity(0)), abi.THREADS_MAX)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= abi.THREADS_MAX:
        raise InputError("there is no such number of threads", expected=f"1 to {abi.THREADS_MAX}", got=asked)
    return asked


class ThreadPool:
    """The process's pool. `epoch` changes whenever an address given out before is no longer the right one."""

    def __init__(self) -> None:
        self.epoch = 0
        self.threads = 1
        self._address = 0
        self._lock = threading.RLock()  # A signal handler may run a model while this thread starts the pool.
        self._kept: list[tuple[MappedImage, Block]] = []

    def request(self, image: MappedImage, threads: int) -> tuple[int, int, int]:
        """The address of a pool of at least `threads` threads (the calling thread is one of them), its epoch, and how
        many it has.

        The address is null for one thread. Raises `RunError` if the system gives no more threads.
        """
        if threads == 1:
            return 0, self.epoch, 1
        with self._lock:
            if threads > self.threads:
                block = Block(abi.POOL_SIZE)
                start = POOL_START(image.address("relume_pool_start"))
                status = start(block.address, ctypes.addressof(imports()), threads)
                if status:  # Nothing has been left running.
                    raise RunError(
                        f"the system refused to start {threads} threads",
                        got=os.strerror(status),
                        hint="pass a smaller `threads`",
                    )
                self._kept.append((image, block))
                self._address, self.threads = block.address, threads
                self.epoch += 1
            return self._address, self.epoch, self.threads

    def forget(self) -> None:
        """In the child of a fork: there are no threads. What they ran in stays mapped."""
        self._lock = threading.RLock()
        self._address, self.threads = 0, 1
        self.epoch += 1


POOL = ThreadPool()
os.register_at_fork(after_in_child=POOL.forget)
