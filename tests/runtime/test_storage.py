"""Storages: what they are made of, who may use them at one time, and what an early end leaves."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import machine_code
import numpy as np
import pytest

from relume.base import dims, dtypes
from relume.base.errors import InputError, LimitError, RunError
from relume.runtime import Context, Executable, Storage, load_executable, save_executable
from relume.runtime.artifact import Port
from relume.runtime.lock import ReadWriteLock

F32 = np.float32
ONE = {"x": np.ones(1, F32)}


@pytest.fixture
def count() -> Executable:
    return Executable(machine_code.count(), threads=1)


def spin(written: tuple[str, ...], begun: bool = True) -> Executable:
    """Runs until it is stopped where x is not 0, with a state that it may write, and has begun to where `begun`."""
    image = machine_code.spin(writes=bool(written) and begun).image
    artifact = machine_code.artifact(image, states=machine_code.count().states, written=written)
    return Executable(artifact, threads=1)


def zero() -> Storage:
    return Storage({"w": np.zeros(1, F32)})


# --- what it is made of ---


def test_a_borrowed_array_is_written_in_place(count: Executable) -> None:
    mine = np.zeros(1, F32)
    storage = Storage.borrow({"w": mine})
    count.run(ONE, states=storage)
    count.run(ONE, states=storage)
    assert mine[0] == 2


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((4, 2), F32)[:, 0], "not C-contiguous"),
        (np.zeros(9, np.uint8)[1:].view(F32), "not aligned"),
        (np.zeros(2, ">f4"), "foreign byte order"),
        (np.broadcast_to(F32(0), (1,)), "read-only"),
        ([0.0], "list"),
    ],
)
def test_what_native_code_cannot_write_is_not_borrowed(array: np.ndarray, why: str) -> None:
    with pytest.raises(InputError, match=rf"'w' cannot live(.|\n)*{why}"):
        Storage.borrow({"w": array})


def test_a_mapped_file_keeps_what_runs_write(count: Executable, tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(np.full(3, 5, F32).tobytes())
    count.run(ONE, states=Storage.map({"w": (path, "float32", (1,))}))
    np.testing.assert_array_equal(np.fromfile(path, F32), [6, 5, 5])
    assert Storage.map({"w": (str(path), dtypes.f32, [3])}, writable=False)["w"][0] == 6


def test_a_sparse_file_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    path, rows = tmp_path / "table.bin", 1 << 34
    with path.open("wb") as file:
        file.truncate(rows * 4)
    storage = Storage.map({"table": (path, np.float32, (rows,))})
    assert storage.type_of("table") == (np.dtype(F32), (rows,))
    assert path.stat().st_blocks < 100


def test_a_file_mapped_to_be_read_is_not_written(count: Executable, tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(np.zeros(1, F32).tobytes())
    storage = Storage.map({"w": (path, F32, (1,))}, writable=False)
    with pytest.raises(InputError, match=r"writes the state 'w'(.|\n)*writable=True"):
        count.run(ONE, states=storage)
    with pytest.raises(InputError, match="read-only"):
        storage.reset({"w": np.ones(1, F32)})
    assert path.read_bytes() == bytes(4) and not storage.torn


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(7))
    with pytest.raises(InputError, match=r"too short(.|\n)*8 bytes(.|\n)*7 bytes"):
        Storage.map({"w": (path, F32, (2,))})
    assert path.stat().st_size == 7
    with pytest.raises(InputError, match="cannot be mapped"):
        Storage.map({"w": (tmp_path / "none", F32, (2,))})
    assert Storage.map({"w": (path, F32, (0, 3))})["w"].shape == (0, 3)


def test_zeros_for_every_state() -> None:
    ports = (Port("h", dtypes.f32, (dims.symbol("N"), 3)), Port("n", dtypes.i64, ()))
    storage = Storage.zeros(ports, {"N": 2})
    np.testing.assert_array_equal(storage["h"], np.zeros((2, 3), F32))
    assert storage["n"] == 0 and storage["n"].dtype == np.int64
    with pytest.raises(InputError, match=r"'h' are not known(.|\n)*size for N"):
        Storage.zeros(ports)


# --- fork and share ---


def test_a_fork_is_independent(count: Executable) -> None:
    storage = zero()
    count.run(ONE, states=storage)
    fork = storage.fork()
    count.run(ONE, states=fork)
    assert (storage["w"], fork["w"]) == (1, 2) and (storage.version, fork.version) == (1, 1)


def test_a_share_is_the_same_memory_under_another_name(count: Executable) -> None:
    storage = Storage({"weights": np.zeros(1, F32), "other": np.zeros(2)})
    share = storage.share({"w": "weights"})
    count.run(ONE, states=share)
    assert storage["weights"] == 1 and storage.version == share.version == 1 and list(share) == ["w"]
    assert storage.share(["other"])["other"].shape == (2,)
    with pytest.raises(InputError, match="no state 'nothing'"):
        storage.share(["nothing"])


def test_names_that_share_memory_share_it_in_a_fork(count: Executable) -> None:
    fork = zero().share({"w": "w", "v": "w"}).fork()
    count.run(ONE, states=fork)
    assert fork["v"] == fork["w"] == 1 and fork.overlaps == (("w", "v"),)


# --- who holds it ---


def test_runs_that_only_read_hold_a_storage_together() -> None:
    exe, storage, together = spin(()), zero(), threading.Barrier(4)

    def read() -> None:
        with storage.run(["w"], []):
            together.wait(10)  # Would break if one reader kept another out.
            with pytest.raises(LimitError):
                exe.run(ONE, 0.02, storage)
            together.wait(10)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(read) for _ in range(4)]:
            job.result(20)
    assert not storage.torn and storage.version == 0


def test_waiting_for_a_storage_ends_at_the_time_limit(count: Executable) -> None:
    storage = zero()
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        release, holding = threading.Event(), threading.Event()
        stack.callback(release.set)

        def hold() -> None:
            with storage.run(["w"], []):
                holding.set()
                release.wait(10)

        pool.submit(hold)
        assert holding.wait(10)
        assert storage["w"] == 0  # Reading is allowed.
        with pytest.raises(LimitError, match="before the storage was free"):
            count.run(ONE, time_limit=0.05, states=storage)
        assert storage["w"] == 0  # The writer that gave up keeps no reader out.
    count.run(ONE, states=storage)
    assert storage["w"] == 1


def test_a_waiting_writer_comes_before_new_readers() -> None:
    lock, order = ReadWriteLock(), []

    def enter(kind: Callable, name: str) -> None:
        with kind():
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with lock.reading():
            writer = pool.submit(enter, lock.writing, "writer")
            while not lock._waiting:
                time.sleep(0.001)
            reader = pool.submit(enter, lock.reading, "reader")
            time.sleep(0.05)
            assert order == []
            with lock.reading():  # Within a read: waiting would be for ever.
                order.append("inner")
        writer.result(10)
        reader.result(10)
    assert order == ["inner", "writer", "reader"]


def test_a_thread_never_waits_for_itself() -> None:
    lock = ReadWriteLock()
    with lock.reading(), pytest.raises(RunError, match="this thread has interrupted"), lock.writing():
        pass
    with lock.writing():
        for kind in (lock.reading, lock.writing):
            with pytest.raises(RunError, match="this thread has interrupted"), kind():
                pass
    with lock.writing(1 << 62):
        pass


def test_a_signal_handler_that_raises_anywhere_never_leaves_the_storage_held(count: Executable) -> None:
    class Stop(BaseException):
        pass

    live = False

    def handler(*_: object) -> None:
        if live:
            raise Stop

    storage, hits, until = zero(), 0, time.monotonic() + 1
    before = signal.signal(signal.SIGALRM, handler)
    try:
        while time.monotonic() < until:
            try:
                live = True
                # Again and again: the first may come while Python closes a generator, which swallows it.
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + hits % 7), 2e-3)
                while True:
                    count.run(ONE, states=storage)
            except Stop:
                live, hits = False, hits + 1
            except RunError:  # Torn by the run whose end was swallowed.
                live = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            storage.reset({"w": np.zeros(1, F32)})  # Needs the lock, and would say that this thread has it.
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 10


# --- an early end ---


def test_only_runs_that_write_can_tear() -> None:
    storage = zero()
    with pytest.raises(LimitError):
        spin(()).run(ONE, time_limit=0.01, states=storage)
    assert storage["w"] == 0 and not storage.torn
    with pytest.raises(LimitError):
        spin(("w",)).run(ONE, time_limit=0.01, states=storage)
    assert storage.torn
    for use in (lambda: storage["w"], storage.fork, lambda: spin(()).run({"x": np.zeros(1, F32)}, states=storage)):
        with pytest.raises(RunError, match="torn: a run that writes w ended early"):
            use()
    assert storage.share(["w"]).torn
    storage.share({"v": "w"}).reset({"v": np.ones(1, F32)})
    assert not storage.torn and storage["w"] == 1


def test_a_run_that_has_not_written_yet_tears_nothing_and_does_not_count() -> None:
    storage, exe = zero(), spin(("w",), begun=False)
    with pytest.raises(LimitError):
        exe.run(ONE, time_limit=0.01, states=storage)
    exe.run({"x": np.zeros(1, F32)}, states=storage)
    assert storage["w"] == 0 and not storage.torn and storage.version == 0


def test_a_context_forgets_what_the_run_before_has_written(count: Executable) -> None:
    storage, context = zero(), Context()
    count.run(ONE, states=storage, context=context)
    assert storage.version == 1
    with pytest.raises(LimitError):
        spin(("w",), begun=False).run(ONE, time_limit=0.01, states=storage, context=context)
    assert storage.version == 1 and not storage.torn


def test_what_the_run_does_not_write_stays_whole() -> None:
    storage = Storage({"w": np.zeros(1, F32), "other": np.ones(2, F32)})
    with pytest.raises(LimitError):
        spin(("w",)).run(ONE, time_limit=0.01, states=storage)
    assert storage.torn and not storage.share(["other"]).torn
    np.testing.assert_array_equal(storage["other"], [1, 1])


def test_an_error_before_native_code_begins_does_not_tear(count: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    from relume.runtime import context

    def refuse(*_: object) -> None:
        raise LimitError("there is not enough memory")

    storage = zero()
    monkeypatch.setattr(context.Context, "bind", refuse)
    with pytest.raises(LimitError):
        count.run(ONE, states=storage)
    assert storage["w"] == 0 and storage.version == 0


# --- artifacts on disk ---


def test_a_saved_executable_knows_what_it_writes(count: Executable, tmp_path: Path) -> None:
    for written in ((), ("w",)):
        path = tmp_path / "count.rlx"
        save_executable(replace(count.artifact, written=written), path)
        assert load_executable(path).artifact.written == written
