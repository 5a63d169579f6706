"""The binary interface between generated code and whoever runs it. Prose: `docs/abi.md`.

Every field of the context is 8 bytes, so a field's offset is 8 times its place in `FIELDS`.
"""

from __future__ import annotations

from enum import IntEnum

VERSION = 3
"""Part of every key: code made for another version is never loaded."""

FIELDS: tuple[str, ...] = (
    "inputs",  # ptr*  one pointer per input, C order
    "outputs",  # ptr*  one pointer per output, allocated by the caller
    "states",  # ptr*  one pointer per state
    "constants",  # ptr*  one pointer per constant
    "arena",  # ptr   64-byte aligned scratch memory for all activations
    "dims",  # i64*  the run-time extents: the program's `dims` table evaluated for these inputs
    "strides",  # i64*  element strides of the inputs; null: all inputs are in C order
    "offsets",  # i64*  byte offset in the arena of each allocation
    "counters",  # i64*  observation counters, shared with no tensor; null: the code observes nothing
    "imports",  # ptr*  functions from outside, in the order of `IMPORTS`
    "pool",  # ptr   thread pool; null: run everything on the calling thread
    "stop",  # i64   non-zero: stop as soon as possible
    "next_poll",  # i64   cycle counter at which the calling thread polls next
    "deadline",  # i64   CLOCK_MONOTONIC nanoseconds after which the run stops; 0: none
    "thread_state",  # ptr   Python's thread state while the GIL is released
    "failed",  # i64   the id of the instruction whose kernel returned non-zero
    "detail0",  # i64   what that kernel says about it (an index, an extent ...)
    "detail1",  # i64
    "next_signals",  # i64   cycle counter before which the calling thread does not take the GIL again
    "written",  # i64   set before the first instruction that writes a state
    "scratch",  # ptr   memory that threads keep to themselves while a kernel runs, 64-byte aligned
    "scratch_bytes",  # i64   of each thread: thread t has those from t times this on
    "stamps",  # i64*  where a traced driver notes the times at which instructions end; null: it notes nothing
)
FIELD: dict[str, int] = {name: index * 8 for index, name in enumerate(FIELDS)}
"""Byte offset of each field."""
SIZE = len(FIELDS) * 8

IMPORTS: tuple[str, ...] = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyErr_CheckSignals",
    "clock_gettime",
    "pthread_create",
    "pthread_sigmask",
    "syscall",
    "sched_yield",
    "pthread_join",
)
"""What the support code calls through the context. All are resolved before anything runs."""

SYMBOLS: frozenset[str] = frozenset({"memcpy", "memset", "memmove", "fmodf", "fmod"})
"""The allow-list of symbols that an object may leave undefined (LLVM makes calls to some by itself)."""

POLL_CYCLES = 4_000_000
"""Cycles between two polls of Python's signals: 1 to 2 ms."""

ENTRY_POINTS: dict[str, str] = {
    "relume_entry": "i32 (ptr ctx)",  # called with the GIL held: releases it, runs, takes it back
    "relume_run": "i32 (ptr ctx)",  # the run itself; with `thread_state` null it never touches Python
    "relume_poll": "i32 (ptr ctx, i64 thread)",  # called by kernels: non-zero means return at once
    "relume_parallel": "i32 (ptr ctx, ptr kernel, ptr operands, ptr extents, i64 tasks)",
    "relume_pool_start": "i32 (ptr pool, ptr imports, i64 threads)",  # 0, or the errno of pthread_create
    "relume_pool_stop": "void (ptr pool)",  # returns when every worker has ended
}
"""Functions that every image exports, besides its kernels."""

THREADS_MAX = 64
"""Most threads of a pool, the calling one included."""
SPIN_CYCLES = 100_000
"""Cycles that an idle worker spins before it sleeps, and a waiting caller before it yields: about 30 microseconds."""

# The thread pool: `POOL_SIZE` bytes, aligned to a cache line, that the owner allocates and `relume_pool_start` fills.
# What different threads write stands on different cache lines.
POOL_LOCK = 0  # i32  1 while a caller uses the pool; another caller then runs serially
POOL_GENERATION = 64  # i32  the futex word: counts the jobs
POOL_SLEEPERS = 128  # i32  workers that sleep, or are about to
POOL_PENDING = 192  # i32  workers that have not finished the current job
POOL_JOB = 256  # ctx, kernel, operands, extents (ptr each), tasks (i64)
POOL_THREADS = 320  # i64  the calling thread and the workers
POOL_IMPORTS = 328  # ptr  the imports table; it outlives the pool
POOL_QUIT = 336  # i32  1: workers end
POOL_WORKERS = 384  # the first worker's record
POOL_WORKER_SIZE = 32
WORKER_POOL = 0  # ptr  back to the pool
WORKER_THREAD = 8  # i64  its number, from 1
WORKER_HANDLE = 16  # i64  pthread_t
WORKER_STATUS = 24  # i32  of the last job; written before POOL_PENDING is decremented
POOL_SIZE = 4096


class Status(IntEnum):
    """What `run` and every kernel return."""

    OK = 0
    STOPPED = 1  # the stop flag was set, or the deadline passed
    INTERRUPTED = 2  # Python has an exception pending (a signal handler raised)
    INDEX = 3  # an index out of range: detail0 is the index, detail1 the extent
    DIVISION = 4  # an integer division by zero, for kernels that refuse it (those of today define it)
