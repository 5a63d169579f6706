"""The code that every image carries besides its kernels: entry, polling, and the thread pool, as LLVM IR.

The pool forks and joins: a caller publishes a job, each thread runs one fixed range of its tasks, the caller waits.
Idle workers spin for a while and then sleep on a futex. The memory orders:

- the job is published by the increment of `generation` and received by a worker's load of it (release, acquire);
- a worker's results are published by its decrement of `pending` (release), received by the caller's load (acquire);
- whether a sleeper must be woken is Dekker's problem (the caller writes `generation` and reads `sleepers`, the worker
  writes `sleepers` and reads `generation`), so these four are sequentially consistent.
"""

from __future__ import annotations

from string import Template

from relume.base import abi
from relume.base.abi import Status
from relume.base.targets import Target

_CLOCK_MONOTONIC = 1
_SYS_FUTEX, _FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 202, 128, 129
_SIG_SETMASK = 2


def emit(target: Target) -> str:
    """The IR of `relume_entry`, `relume_poll`, `relume_parallel`, `relume_pool_start` and `relume_pool_stop`.

    Linux on x86-64 only. Raises `CompileError` where the target has no `pause`.
    """
    target.require("sse2")
    names: dict[str, int] = {f"ctx_{name}": offset for name, offset in abi.FIELD.items()}
    names |= {f"import_{name}": index * 8 for index, name in enumerate(abi.IMPORTS)}
    names |= {name: value for name, value in vars(abi).items() if isinstance(value, int)}
    names |= {status.name: int(status) for status in Status}
    names |= {
        "CLOCK_MONOTONIC": _CLOCK_MONOTONIC,
        "SYS_FUTEX": _SYS_FUTEX,
        "FUTEX_WAIT": _FUTEX_WAIT_PRIVATE,
        "FUTEX_WAKE": _FUTEX_WAKE_PRIVATE,
        "SIG_SETMASK": _SIG_SETMASK,
    }
    return Template(_ENTRY + _POLL + _PARALLEL + _WORKER + _POOL).substitute(names)


_ENTRY = """\
declare i32 @relume_run(ptr)
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse2.pause()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Called by Python with the GIL held.
define i32 @relume_entry(ptr %ctx) nounwind {
  %imports.at = getelementptr i8, ptr %ctx, i64 $ctx_imports
  %imports = load ptr, ptr %imports.at, align 8
  %save.at = getelementptr i8, ptr %imports, i64 $import_PyEval_SaveThread
  %save = load ptr, ptr %save.at, align 8
  %restore.at = getelementptr i8, ptr %imports, i64 $import_PyEval_RestoreThread
  %restore = load ptr, ptr %restore.at, align 8
  %next_poll.at = getelementptr i8, ptr %ctx, i64 $ctx_next_poll
  %next_signals.at = getelementptr i8, ptr %ctx, i64 $ctx_next_signals
  %state.at = getelementptr i8, ptr %ctx, i64 $ctx_thread_state
  %now = call i64 @llvm.readcyclecounter()
  %next = add i64 %now, $POLL_CYCLES
  store i64 %next, ptr %next_poll.at, align 8
  store i64 %now, ptr %next_signals.at, align 8
  %state = call ptr %save()
  store ptr %state, ptr %state.at, align 8
  %status = call i32 @relume_run(ptr %ctx)
  store ptr null, ptr %state.at, align 8
  call void %restore(ptr %state)
  ret i32 %status
}

"""

_POLL = """\
; Non-zero: return at once. Only thread 0, the calling one, looks at the clock and at Python.
define i32 @relume_poll(ptr %ctx, i64 %thread) nounwind {
  %stop.at = getelementptr i8, ptr %ctx, i64 $ctx_stop
  %stop = load atomic i64, ptr %stop.at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %halt, label %going
going:
  %calling = icmp eq i64 %thread, 0
  br i1 %calling, label %clock, label %proceed
clock:
  %now = call i64 @llvm.readcyclecounter()
  %next_poll.at = getelementptr i8, ptr %ctx, i64 $ctx_next_poll
  %next = load i64, ptr %next_poll.at, align 8
  ; One unsigned comparison: due when `next` has passed, and also when the counter has gone backwards.
  %left = sub i64 %next, %now
  %due = icmp ugt i64 %left, $POLL_CYCLES
  br i1 %due, label %slow, label %proceed
slow:
  %status = call i32 @poll_slow(ptr %ctx)
  ret i32 %status
proceed:
  ret i32 $OK
halt:
  ret i32 $STOPPED
}

define internal i32 @poll_slow(ptr %ctx) nounwind noinline cold {
  %time = alloca [2 x i64], align 16
  %imports.at = getelementptr i8, ptr %ctx, i64 $ctx_imports
  %imports = load ptr, ptr %imports.at, align 8
  %stop.at = getelementptr i8, ptr %ctx, i64 $ctx_stop
  %deadline.at = getelementptr i8, ptr %ctx, i64 $ctx_deadline
  %deadline = load i64, ptr %deadline.at, align 8
  %limited = icmp ne i64 %deadline, 0
  br i1 %limited, label %clock, label %python
clock:
  %clock_gettime.at = getelementptr i8, ptr %imports, i64 $import_clock_gettime
  %clock_gettime = load ptr, ptr %clock_gettime.at, align 8
  %ignored = call i32 %clock_gettime(i32 $CLOCK_MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest.at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %reached = add i64 %whole, %rest
  %late = icmp sge i64 %reached, %deadline
  br i1 %late, label %timeout, label %python
timeout:
  store atomic i64 1, ptr %stop.at release, align 8
  ret i32 $STOPPED
python:
  %state.at = getelementptr i8, ptr %ctx, i64 $ctx_thread_state
  %state = load ptr, ptr %state.at, align 8
  %no_python = icmp eq ptr %state, null
  %next_signals.at = getelementptr i8, ptr %ctx, i64 $ctx_next_signals
  %next_signals = load i64, ptr %next_signals.at, align 8
  %before = call i64 @llvm.readcyclecounter()
  %ahead = sub i64 %next_signals, %before
  %early = icmp sgt i64 %ahead, 0
  %skip = or i1 %no_python, %early
  br i1 %skip, label %proceed, label %signals
signals:
  %restore.at = getelementptr i8, ptr %imports, i64 $import_PyEval_RestoreThread
  %restore = load ptr, ptr %restore.at, align 8
  %check.at = getelementptr i8, ptr %imports, i64 $import_PyErr_CheckSignals
  %check = load ptr, ptr %check.at, align 8
  %save.at = getelementptr i8, ptr %imports, i64 $import_PyEval_SaveThread
  %save = load ptr, ptr %save.at, align 8
  call void %restore(ptr %state)
  %raised = call i32 %check()
  %again = call ptr %save()
  store ptr %again, ptr %state.at, align 8
  ; Where other threads keep the GIL busy, waiting for it takes a tenth of the time at most.
  %after = call i64 @llvm.readcyclecounter()
  %spent = sub i64 %after, %before
  %pause = mul i64 %spent, 9
  %resume = add i64 %after, %pause
  store i64 %resume, ptr %next_signals.at, align 8
  %interrupted = icmp ne i32 %raised, 0
  br i1 %interrupted, label %interrupt, label %proceed
interrupt:
  store atomic i64 1, ptr %stop.at release, align 8
  ret i32 $INTERRUPTED
proceed:
  %now = call i64 @llvm.readcyclecounter()
  %next = add i64 %now, $POLL_CYCLES
  %next_poll.at = getelementptr i8, ptr %ctx, i64 $ctx_next_poll
  store i64 %next, ptr %next_poll.at, align 8
  ret i32 $OK
}

"""

_PARALLEL = """\
; The first task of a thread: an even split into fixed ranges.
define internal i64 @bound(i64 %tasks, i64 %threads, i64 %thread) nounwind {
  %product = mul i64 %tasks, %thread
  %first = udiv i64 %product, %threads
  ret i64 %first
}

; Runs tasks 0..tasks-1 of a kernel on the pool; on this thread alone where there is none, or it is busy.
; When it returns, no worker touches the job any more.
define i32 @relume_parallel(ptr %ctx, ptr %kernel, ptr %operands, ptr %extents, i64 %tasks) nounwind {
  %pool.at = getelementptr i8, ptr %ctx, i64 $ctx_pool
  %pool = load ptr, ptr %pool.at, align 8
  %no_pool = icmp eq ptr %pool, null
  %few = icmp slt i64 %tasks, 2
  %alone = or i1 %no_pool, %few
  br i1 %alone, label %serial, label %try
try:
  %lock.at = getelementptr i8, ptr %pool, i64 $POOL_LOCK
  %pair = cmpxchg ptr %lock.at, i32 0, i32 1 acquire monotonic
  %got = extractvalue { i32, i1 } %pair, 1
  br i1 %got, label %fork, label %serial
serial:
  %serial.status = call i32 %kernel(ptr %ctx, ptr %operands, ptr %extents, i64 0, i64 %tasks, i64 0)
  ret i32 %serial.status
fork:
  %job = getelementptr i8, ptr %pool, i64 $POOL_JOB
  %job.kernel = getelementptr i8, ptr %job, i64 8
  %job.operands = getelementptr i8, ptr %job, i64 16
  %job.extents = getelementptr i8, ptr %job, i64 24
  %job.tasks = getelementptr i8, ptr %job, i64 32
  store ptr %ctx, ptr %job, align 8
  store ptr %kernel, ptr %job.kernel, align 8
  store ptr %operands, ptr %job.operands, align 8
  store ptr %extents, ptr %job.extents, align 8
  store i64 %tasks, ptr %job.tasks, align 8
  %threads.at = getelementptr i8, ptr %pool, i64 $POOL_THREADS
  %threads = load i64, ptr %threads.at, align 8
  %others = sub i64 %threads, 1
  %workers = trunc i64 %others to i32
  %pending.at = getelementptr i8, ptr %pool, i64 $POOL_PENDING
  store atomic i32 %workers, ptr %pending.at monotonic, align 4
  call void @publish(ptr %pool)
  %end = call i64 @bound(i64 %tasks, i64 %threads, i64 1)
  %nothing = icmp eq i64 %end, 0
  br i1 %nothing, label %join, label %own
own:
  %own.status = call i32 %kernel(ptr %ctx, ptr %operands, ptr %extents, i64 0, i64 %end, i64 0)
  br label %join
join:
  %first = phi i32 [ $OK, %fork ], [ %own.status, %own ]
  %start = call i64 @llvm.readcyclecounter()
  %yield.at = getelementptr i8, ptr %pool, i64 $POOL_IMPORTS
  br label %wait
wait:
  %status = phi i32 [ %first, %join ], [ %polled, %pause ], [ %polled, %yield ]
  %pending = load atomic i32, ptr %pending.at acquire, align 4
  %joined = icmp eq i32 %pending, 0
  br i1 %joined, label %collect, label %poll
poll:
  ; The calling thread answers signals and the deadline also while it waits. An exception that Python has pending
  ; hides every other status.
  %poll.status = call i32 @relume_poll(ptr %ctx, i64 0)
  %fine = icmp eq i32 %status, $OK
  %raised = icmp eq i32 %poll.status, $INTERRUPTED
  %take = or i1 %fine, %raised
  %polled = select i1 %take, i32 %poll.status, i32 %status
  %now = call i64 @llvm.readcyclecounter()
  %waited = sub i64 %now, %start
  %long = icmp ugt i64 %waited, $SPIN_CYCLES
  br i1 %long, label %yield, label %pause
pause:
  call void @llvm.x86.sse2.pause()
  br label %wait
yield:
  %imports = load ptr, ptr %yield.at, align 8
  %sched_yield.at = getelementptr i8, ptr %imports, i64 $import_sched_yield
  %sched_yield = load ptr, ptr %sched_yield.at, align 8
  %yielded = call i32 %sched_yield()
  br label %wait
collect:
  ; The status of the lowest range that failed; being told to stop is no failure of its own.
  %worker = phi i64 [ 1, %wait ], [ %next, %fold ]
  %result = phi i32 [ %status, %wait ], [ %folded, %fold ]
  %more = icmp ult i64 %worker, %threads
  br i1 %more, label %fold, label %done
fold:
  %index = sub i64 %worker, 1
  %offset = mul i64 %index, $POOL_WORKER_SIZE
  %records = getelementptr i8, ptr %pool, i64 $POOL_WORKERS
  %record = getelementptr i8, ptr %records, i64 %offset
  %worker.status.at = getelementptr i8, ptr %record, i64 $WORKER_STATUS
  %worker.status = load i32, ptr %worker.status.at, align 4
  %weak = icmp ule i32 %result, $STOPPED
  %failed = icmp ne i32 %worker.status, $OK
  %replace = and i1 %weak, %failed
  %folded = select i1 %replace, i32 %worker.status, i32 %result
  %next = add i64 %worker, 1
  br label %collect
done:
  store atomic i32 0, ptr %lock.at release, align 4
  ret i32 %result
}

; Starts a new generation, and wakes the workers that sleep.
define internal void @publish(ptr %pool) nounwind {
  %generation.at = getelementptr i8, ptr %pool, i64 $POOL_GENERATION
  %old = atomicrmw add ptr %generation.at, i32 1 seq_cst
  %sleepers.at = getelementptr i8, ptr %pool, i64 $POOL_SLEEPERS
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %wake, label %done
wake:
  %imports.at = getelementptr i8, ptr %pool, i64 $POOL_IMPORTS
  %imports = load ptr, ptr %imports.at, align 8
  %syscall.at = getelementptr i8, ptr %imports, i64 $import_syscall
  %syscall = load ptr, ptr %syscall.at, align 8
  %woken = call i64 (i64, ...) %syscall(i64 $SYS_FUTEX, ptr %generation.at, i64 $FUTEX_WAKE, i64 2147483647,
    ptr null, ptr null, i64 0)
  br label %done
done:
  ret void
}

"""

_WORKER = """\
; A worker thread: waits for the next generation, runs its range, says so.
define internal ptr @worker(ptr %self) nounwind {
  %pool.at = getelementptr i8, ptr %self, i64 $WORKER_POOL
  %pool = load ptr, ptr %pool.at, align 8
  %thread.at = getelementptr i8, ptr %self, i64 $WORKER_THREAD
  %thread = load i64, ptr %thread.at, align 8
  %status.at = getelementptr i8, ptr %self, i64 $WORKER_STATUS
  %generation.at = getelementptr i8, ptr %pool, i64 $POOL_GENERATION
  %sleepers.at = getelementptr i8, ptr %pool, i64 $POOL_SLEEPERS
  %pending.at = getelementptr i8, ptr %pool, i64 $POOL_PENDING
  %threads.at = getelementptr i8, ptr %pool, i64 $POOL_THREADS
  %quit.at = getelementptr i8, ptr %pool, i64 $POOL_QUIT
  %imports.at = getelementptr i8, ptr %pool, i64 $POOL_IMPORTS
  %imports = load ptr, ptr %imports.at, align 8
  %syscall.at = getelementptr i8, ptr %imports, i64 $import_syscall
  %syscall = load ptr, ptr %syscall.at, align 8
  %job = getelementptr i8, ptr %pool, i64 $POOL_JOB
  %job.kernel = getelementptr i8, ptr %job, i64 8
  %job.operands = getelementptr i8, ptr %job, i64 16
  %job.extents = getelementptr i8, ptr %job, i64 24
  %job.tasks = getelementptr i8, ptr %job, i64 32
  br label %idle
idle:
  %seen = phi i32 [ 0, %0 ], [ %current, %finish ]
  %start = call i64 @llvm.readcyclecounter()
  br label %spin
spin:
  %spun = load atomic i32, ptr %generation.at acquire, align 4
  %spun.new = icmp ne i32 %spun, %seen
  br i1 %spun.new, label %wanted, label %longer
longer:
  call void @llvm.x86.sse2.pause()
  %now = call i64 @llvm.readcyclecounter()
  %spent = sub i64 %now, %start
  %tired = icmp ugt i64 %spent, $SPIN_CYCLES
  br i1 %tired, label %sleep, label %spin
sleep:
  %more = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  br label %nap
nap:
  %woken = load atomic i32, ptr %generation.at seq_cst, align 4
  %woken.new = icmp ne i32 %woken, %seen
  br i1 %woken.new, label %rise, label %futex
futex:
  ; Returns at once where the generation is no longer `seen`; may return for no reason.
  %slept = call i64 (i64, ...) %syscall(i64 $SYS_FUTEX, ptr %generation.at, i64 $FUTEX_WAIT, i32 %seen,
    ptr null, ptr null, i64 0)
  br label %nap
rise:
  %fewer = atomicrmw sub ptr %sleepers.at, i32 1 monotonic
  br label %wanted
wanted:
  %current = phi i32 [ %spun, %spin ], [ %woken, %rise ]
  %quit = load atomic i32, ptr %quit.at monotonic, align 4
  %quitting = icmp ne i32 %quit, 0
  br i1 %quitting, label %end, label %work
work:
  %tasks = load i64, ptr %job.tasks, align 8
  %threads = load i64, ptr %threads.at, align 8
  %following = add i64 %thread, 1
  %from = call i64 @bound(i64 %tasks, i64 %threads, i64 %thread)
  %to = call i64 @bound(i64 %tasks, i64 %threads, i64 %following)
  %some = icmp ult i64 %from, %to
  br i1 %some, label %run, label %finish
run:
  %ctx = load ptr, ptr %job, align 8
  %kernel = load ptr, ptr %job.kernel, align 8
  %operands = load ptr, ptr %job.operands, align 8
  %extents = load ptr, ptr %job.extents, align 8
  %status = call i32 %kernel(ptr %ctx, ptr %operands, ptr %extents, i64 %from, i64 %to, i64 %thread)
  br label %finish
finish:
  %final = phi i32 [ $OK, %work ], [ %status, %run ]
  store i32 %final, ptr %status.at, align 4
  %left = atomicrmw sub ptr %pending.at, i32 1 release
  br label %idle
end:
  ret ptr null
}

"""

_POOL = """\
; Fills the pool and starts its workers, with every signal blocked. 0, or what pthread_create returned: then nothing
; has been left running, and the pool has one thread.
define i32 @relume_pool_start(ptr %pool, ptr %imports, i64 %wanted) nounwind {
  %all = alloca [16 x i64], align 16
  %old = alloca [16 x i64], align 16
  %low = icmp slt i64 %wanted, 1
  %positive = select i1 %low, i64 1, i64 %wanted
  %high = icmp sgt i64 %positive, $THREADS_MAX
  %threads = select i1 %high, i64 $THREADS_MAX, i64 %positive
  call void @llvm.memset.p0.i64(ptr align 64 %pool, i8 0, i64 $POOL_SIZE, i1 false)
  call void @llvm.memset.p0.i64(ptr align 16 %all, i8 -1, i64 128, i1 false)
  %imports.at = getelementptr i8, ptr %pool, i64 $POOL_IMPORTS
  store ptr %imports, ptr %imports.at, align 8
  ; Workers read the number of threads when the first job comes; until then it counts those that must be joined.
  %threads.at = getelementptr i8, ptr %pool, i64 $POOL_THREADS
  store i64 1, ptr %threads.at, align 8
  %sigmask.at = getelementptr i8, ptr %imports, i64 $import_pthread_sigmask
  %sigmask = load ptr, ptr %sigmask.at, align 8
  %create.at = getelementptr i8, ptr %imports, i64 $import_pthread_create
  %create = load ptr, ptr %create.at, align 8
  %blocked = call i32 %sigmask(i32 $SIG_SETMASK, ptr %all, ptr %old)
  br label %loop
loop:
  %thread = phi i64 [ 1, %0 ], [ %next, %started ]
  %more = icmp ult i64 %thread, %threads
  br i1 %more, label %start, label %done
start:
  %index = sub i64 %thread, 1
  %offset = mul i64 %index, $POOL_WORKER_SIZE
  %records = getelementptr i8, ptr %pool, i64 $POOL_WORKERS
  %record = getelementptr i8, ptr %records, i64 %offset
  %pool.at = getelementptr i8, ptr %record, i64 $WORKER_POOL
  %thread.at = getelementptr i8, ptr %record, i64 $WORKER_THREAD
  %handle.at = getelementptr i8, ptr %record, i64 $WORKER_HANDLE
  store ptr %pool, ptr %pool.at, align 8
  store i64 %thread, ptr %thread.at, align 8
  %error = call i32 %create(ptr %handle.at, ptr null, ptr @worker, ptr %record)
  %next = add i64 %thread, 1
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %undo, label %started
started:
  store i64 %next, ptr %threads.at, align 8
  br label %loop
undo:
  %unblocked = call i32 %sigmask(i32 $SIG_SETMASK, ptr %old, ptr null)
  call void @relume_pool_stop(ptr %pool)
  ret i32 %error
done:
  %restored = call i32 %sigmask(i32 $SIG_SETMASK, ptr %old, ptr null)
  ret i32 0
}

; Ends the workers and waits until they are gone. The pool must be idle. Twice does no harm.
define void @relume_pool_stop(ptr %pool) nounwind {
  %threads.at = getelementptr i8, ptr %pool, i64 $POOL_THREADS
  %threads = load i64, ptr %threads.at, align 8
  %quit.at = getelementptr i8, ptr %pool, i64 $POOL_QUIT
  store atomic i32 1, ptr %quit.at monotonic, align 4
  call void @publish(ptr %pool)
  %imports.at = getelementptr i8, ptr %pool, i64 $POOL_IMPORTS
  %imports = load ptr, ptr %imports.at, align 8
  %join.at = getelementptr i8, ptr %imports, i64 $import_pthread_join
  %join = load ptr, ptr %join.at, align 8
  br label %loop
loop:
  %thread = phi i64 [ 1, %0 ], [ %next, %wait ]
  %more = icmp ult i64 %thread, %threads
  br i1 %more, label %wait, label %done
wait:
  %index = sub i64 %thread, 1
  %offset = mul i64 %index, $POOL_WORKER_SIZE
  %records = getelementptr i8, ptr %pool, i64 $POOL_WORKERS
  %record = getelementptr i8, ptr %records, i64 %offset
  %handle.at = getelementptr i8, ptr %record, i64 $WORKER_HANDLE
  %handle = load i64, ptr %handle.at, align 8
  %ignored = call i32 %join(i64 %handle, ptr null)
  %next = add i64 %thread, 1
  br label %loop
done:
  store i64 1, ptr %threads.at, align 8
  ret void
}
"""
