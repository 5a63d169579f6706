"""Contexts: the memory of one run at a time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relume.base import abi
from relume.base.errors import RunError
from relume.runtime.memory import Block
from relume.runtime.plan import Plan
from relume.runtime.symbols import imports

# Places in the frame, which is an array of 64-bit fields.
INPUTS, OUTPUTS, STATES, CONSTANTS, ARENA, DIMS, OFFSETS, IMPORTS, POOL = (
    abi.FIELDS.index(name)
    for name in ("inputs", "outputs", "states", "constants", "arena", "dims", "offsets", "imports", "pool")
)
STOP, DEADLINE, FAILED, DETAIL0, DETAIL1, WRITTEN = (
    abi.FIELDS.index(name) for name in ("stop", "deadline", "failed", "detail0", "detail1", "written")
)
SCRATCH, SCRATCH_BYTES = abi.FIELDS.index("scratch"), abi.FIELDS.index("scratch_bytes")
STAMPS = abi.FIELDS.index("stamps")


class Context:
    """Owns the structure that generated code receives, its pointer tables, and an arena that grows as needed.

    It serves one run at a time, of any executable. Without one, an executable takes a context from its own pool, and
    gives it back; pass your own (`exe.run(..., context=Context())`) to keep a thread's memory to itself. The arena
    holds nothing between runs, and no output is ever part of it.

    `stamps` is the length of a table for the times that traced code notes; `runtime.trace` makes contexts with one.
    """

    __slots__ = (
        "_arena",
        "_busy",
        "_scratch",
        "address",
        "epoch",
        "frame",
        "inputs",
        "outputs",
        "plan",
        "stamps",
        "states",
    )

    def __init__(self, *, stamps: int = 0) -> None:
        self.frame = (ctypes.c_uint64 * len(abi.FIELDS))()
        self.address = ctypes.addressof(self.frame)
        self.frame[IMPORTS] = ctypes.addressof(imports())
        self.stamps = _table(stamps)
        if stamps:
            self.frame[STAMPS] = ctypes.addressof(self.stamps)
        self.plan: Plan | None = None
        self.epoch = -1
        self._busy = threading.Lock()
        self._arena: Block | None = None
        self._scratch: Block | None = None
        self.inputs, self.outputs, self.states = _table(0), _table(0), _table(0)

    @property
    def arena_bytes(self) -> int:
        """The size of the arena now."""
        return self._arena.size if self._arena else 0

    def bind(self, plan: Plan, inputs: int, constants: int) -> None:
        """Gets ready for a plan: `inputs` is how many there are, `constants` the address of their table.

        Raises `LimitError` where there is no memory for the arena.
        """
        self.plan = None
        frame = self.frame
        if plan.arena_bytes > self.arena_bytes:
            size = max(plan.arena_bytes, self.arena_bytes + self.arena_bytes // 4)  # Slowly growing shapes: few moves.
            self._arena = None  # Give the old one back first.
            frame[ARENA] = 0
            self._arena = Block(size)
            frame[ARENA] = self._arena.address
        self.inputs, self.outputs, self.states = _table(inputs), _table(len(plan.outputs)), _table(len(plan.states))
        for field, table in ((INPUTS, self.inputs), (OUTPUTS, self.outputs), (STATES, self.states)):
            frame[field] = ctypes.addressof(table)
        frame[DIMS], frame[OFFSETS], frame[CONSTANTS] = plan.dims_address, plan.offsets_address, constants
        self.epoch = -1  # Another executable may want another number of threads.
        self.plan = plan

    def attach(self, pool: int, epoch: int, threads: int) -> None:
        """Sets the thread pool (0: none) of so many threads. `epoch` is the process pool's when the address was given.

        Raises `LimitError` where there is no memory for what the threads need to themselves.
        """
        assert self.plan is not None
        needed = self.plan.scratch_bytes
        if needed * threads > (self._scratch.size if self._scratch else 0):
            self._scratch = None  # Give the old one back first.
            self.frame[SCRATCH] = 0
            self._scratch = Block(needed * threads)
            self.frame[SCRATCH] = self._scratch.address
        self.frame[SCRATCH_BYTES] = needed
        self.frame[POOL] = pool
        self.epoch = epoch

    def clear(self) -> None:
        """Makes the context usable again after a run that ended early."""
        self.frame[STOP] = 0
        self.frame[DEADLINE] = 0

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Holds the context for one run. Raises `RunError` if another run has it."""
        if not self._busy.acquire(blocking=False):
            raise RunError(
                "the context is in use by another run",
                expected="one run at a time",
                hint="use one Context per thread, or none: an executable has its own",
            )
        try:
            yield
        finally:
            self._busy.release()


def _table(length: int) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * max(length, 1))()
