"""The thread pool loses no task and no status, and a run answers signals and deadlines."""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytest
from native import FOREVER, REFUSE, THREAD, Mapped, Pool, Run, address_of_symbol, chain, one

from relume import codegen
from relume.base import abi, dims
from relume.base.abi import Status
from relume.base.targets import AVX2
from relume.runtime.artifact import Artifact

TASKS = 1000
PROMPT = 300
"""Milliseconds in which a run of minutes must have ended: 50 till it is asked to, the rest for a busy machine."""


@pytest.fixture(scope="module")
def thread_artifact() -> Artifact:
    return codegen.build(one(THREAD, dims.symbol("N")), AVX2, cache=None)


@pytest.fixture(scope="module")
def refuse_artifact() -> Artifact:
    return codegen.build(one(REFUSE, TASKS), AVX2, cache=None)


@pytest.fixture(scope="module")
def forever_artifact() -> Artifact:
    return codegen.build(one(FOREVER, 2), AVX2, cache=None)


# --- the pool -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("tasks", [0, 1, 2, 5, 63, TASKS])
def test_every_task_runs_once_on_its_thread(thread_artifact: Artifact, threads: int, tasks: int) -> None:
    with Pool(Mapped(thread_artifact.image), threads) as pool:
        run = Run(thread_artifact, pool=pool, N=tasks)
        for _ in range(3):
            run.outputs[0][:] = -1
            assert run.run() == Status.OK
            expected = np.zeros(tasks, np.int64)
            if tasks >= 2:
                for thread in range(threads):
                    expected[tasks * thread // threads : tasks * (thread + 1) // threads] = thread
            assert np.array_equal(run.outputs[0], expected)


def test_more_threads_than_the_most_are_not_started(thread_artifact: Artifact) -> None:
    with Pool(Mapped(thread_artifact.image), 1000) as pool:
        run = Run(thread_artifact, pool=pool, N=TASKS)
        assert run.run() == Status.OK
        assert run.outputs[0].max() == abi.THREADS_MAX - 1


def test_many_jobs_in_a_row_and_with_pauses(thread_artifact: Artifact) -> None:
    """Both ways of waiting: workers that still spin, and workers that sleep."""
    with Pool(Mapped(thread_artifact.image), 3) as pool:
        run = Run(thread_artifact, pool=pool, N=6)
        for pause in [0.0] * 3000 + [0.002] * 30 + [0.0001] * 200:
            run.outputs[0][:] = -1
            assert run.run() == Status.OK
            assert run.outputs[0].tolist() == [0, 0, 1, 1, 2, 2]
            time.sleep(pause) if pause else None


@pytest.mark.parametrize("task", [0, 1, TASKS // 2, TASKS - 1])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_failure_in_any_thread_is_the_status(refuse_artifact: Artifact, threads: int, task: int) -> None:
    with Pool(Mapped(refuse_artifact.image), threads) as pool:
        run = Run(refuse_artifact, pool=pool)
        for _ in range(50):
            run.outputs[0][task] = 5
            assert run.run() == Status.INDEX
            assert (run["failed"], run["detail0"], run["detail1"]) == (7, task, 5)
            run.outputs[0][task] = 0
            assert run.run() == Status.OK, "a status does not outlive its job"


def test_two_callers_share_a_pool(thread_artifact: Artifact) -> None:
    """One has the workers, the other runs alone; nobody waits and nothing is lost."""
    with Pool(Mapped(thread_artifact.image), 2) as pool:
        wrong: list[object] = []

        def call() -> None:
            run = Run(thread_artifact, pool=pool, N=40)
            for _ in range(2000):
                run.outputs[0][:] = -1
                status, got = run.run(), run.outputs[0].tolist()
                if status or got not in ([0] * 40, [0] * 20 + [1] * 20):
                    wrong.append((status, got))

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong


def _threads() -> set[int]:
    return {int(task) for task in os.listdir("/proc/self/task")}


def _ended(threads: set[int]) -> bool:
    """Whether all of these threads end soon: the system takes a joined thread off its list a little later."""
    deadline = time.monotonic() + 10
    while threads & _threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    return not threads & _threads()


def test_stopping_a_pool_ends_its_threads(thread_artifact: Artifact) -> None:
    mapped = Mapped(thread_artifact.image)
    for _ in range(20):
        before = _threads()
        pool = Pool(mapped, 4)
        with pool:
            workers = _threads() - before
            assert len(workers) == 3
        assert _ended(workers)
        pool.__exit__()  # twice does no harm
        run = Run(thread_artifact, pool=pool, N=10)
        assert run.run() == Status.OK
        assert not run.outputs[0].any(), "what is left is a pool of one thread"


def test_workers_block_every_signal(thread_artifact: Artifact) -> None:
    mine = _threads()
    with Pool(Mapped(thread_artifact.image), 3):
        workers = _threads() - mine
        assert len(workers) == 2
        for worker in workers:
            with open(f"/proc/self/task/{worker}/status") as status:
                blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
            assert blocked & (1 << signal.SIGINT - 1) and blocked & (1 << signal.SIGTERM - 1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(), "the caller's own mask is as it was"


def test_a_system_without_threads_gives_the_error_and_leaves_none_running(thread_artifact: Artifact) -> None:
    mapped, before = Mapped(thread_artifact.image), _threads()
    real = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(
        ctypes.cast(ctypes.CDLL(None).pthread_create, ctypes.c_void_p).value
    )
    made = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)
    def create(handle: int, attributes: int, function: int, argument: int) -> int:
        made.append(handle)
        return 11 if len(made) == 3 else real(handle, attributes, function, argument)

    imports = (ctypes.c_uint64 * len(abi.IMPORTS))(*map(address_of_symbol, abi.IMPORTS))
    imports[abi.IMPORTS.index("pthread_create")] = ctypes.cast(create, ctypes.c_void_p).value
    pool = Pool(mapped, 8)
    start = mapped("relume_pool_start", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    assert start(pool.address, ctypes.addressof(imports), 8) == 11
    assert _ended(_threads() - before)


def test_the_pool_fits_and_its_lines_are_apart() -> None:
    assert abi.POOL_WORKERS + (abi.THREADS_MAX - 1) * abi.POOL_WORKER_SIZE <= abi.POOL_SIZE
    written_by_different_threads = (
        abi.POOL_LOCK,
        abi.POOL_GENERATION,
        abi.POOL_SLEEPERS,
        abi.POOL_PENDING,
        abi.POOL_JOB,
        abi.POOL_WORKERS,
    )
    assert len({place // 64 for place in written_by_different_threads}) == len(written_by_different_threads)


# --- polling --------------------------------------------------------------------------------------------------------


def _milliseconds(start: float) -> float:
    return (time.monotonic() - start) * 1e3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("enter", [True, False], ids=["entry", "run"])
def test_the_deadline_ends_a_run(forever_artifact: Artifact, threads: int, enter: bool) -> None:
    with Pool(Mapped(forever_artifact.image), threads) as pool:
        run = Run(forever_artifact, pool=pool)
        start = time.monotonic()
        run["deadline"] = time.monotonic_ns() + 50_000_000
        assert (run.enter() if enter else run.run()) == Status.STOPPED
        assert 50 <= _milliseconds(start) < PROMPT
        assert (run["stop"], run["failed"]) == (1, 7)


def test_the_caller_polls_while_it_waits_for_a_worker(forever_artifact: Artifact) -> None:
    with Pool(Mapped(forever_artifact.image), 2) as pool:
        run = Run(forever_artifact, pool=pool)
        run.outputs[0][0] = 1  # The caller's own task ends at once.
        start = time.monotonic()
        run["deadline"] = time.monotonic_ns() + 50_000_000
        assert run.enter() == Status.STOPPED
        assert 50 <= _milliseconds(start) < PROMPT


class Interrupted(Exception):
    """What the handler raises."""


@pytest.fixture
def alarm() -> None:  # type: ignore[misc]
    """SIGALRM raises `Interrupted`."""

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("own_task_ends", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_handler_that_raises_ends_the_run(
    forever_artifact: Artifact, threads: int, own_task_ends: bool
) -> None:
    with Pool(Mapped(forever_artifact.image), threads) as pool:
        run = Run(forever_artifact, pool=pool)
        run.outputs[0][0] = own_task_ends
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            run.enter()
        assert _milliseconds(start) < PROMPT
        assert run["thread_state"] == 0
        run["stop"] = 0
        run.outputs[0][:] = 1
        assert run.enter() == Status.OK, "usable again"


@pytest.mark.usefixtures("alarm")
def test_a_signal_is_answered_while_other_python_threads_are_busy(forever_artifact: Artifact) -> None:
    done = False

    def burn() -> None:
        while not done:
            sum(range(1000))

    other = threading.Thread(target=burn)
    other.start()
    try:
        run = Run(forever_artifact)
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            run.enter()
        assert _milliseconds(start) < 400
    finally:
        done = True
        other.join()


def test_another_thread_can_stop_a_run(forever_artifact: Artifact) -> None:
    with Pool(Mapped(forever_artifact.image), 2) as pool:
        run = Run(forever_artifact, pool=pool)
        threading.Timer(0.05, lambda: run.__setitem__("stop", 1)).start()
        assert run.enter() == Status.STOPPED  # and the timer ran: the GIL was free


def test_only_a_poll_that_is_due_is_slow_and_only_on_the_calling_thread() -> None:
    artifact = codegen.build(chain(4, 1), AVX2, cache=None)
    run = Run(artifact, [np.zeros(4, np.float32)])
    poll = run.mapped("relume_poll", ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
    assert poll(ctypes.addressof(run.context), 0) == Status.OK
    assert run["next_poll"] != 0, "the first poll is a slow one"
    before = run["next_poll"]
    assert poll(ctypes.addressof(run.context), 0) == Status.OK
    assert run["next_poll"] == before, "the second one is not"
    run["next_poll"] = before + (1 << 40)
    assert poll(ctypes.addressof(run.context), 0) == Status.OK
    assert run["next_poll"] < before + (1 << 40), "a counter that went backwards is no reason never to poll again"
    run["next_poll"] = 0
    assert poll(ctypes.addressof(run.context), 1) == Status.OK
    assert run["next_poll"] == 0, "only the calling thread polls"
