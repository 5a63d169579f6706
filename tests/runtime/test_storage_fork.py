"""After `os.fork` the child has one thread: whatever others held is let go, and what they were writing is torn."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def child_of(body: str, check: str, *, setup: str = "storage = Storage({'w': np.zeros(1, np.float32)})") -> None:
    """In a process of its own: another thread runs `body`, sets `ready`, and waits; then a fork runs `check`."""
    source = textwrap.dedent("""
        import os, sys, threading, time
        sys.path.insert(0, HERE)
        import machine_code, numpy as np
        from dataclasses import replace
        from relume.base.errors import LimitError, RunError
        from relume.runtime import Executable, Storage

        def torn(use):
            try:
                use()
            except RunError as error:
                return "torn" in str(error)
            return False

        count = Executable(machine_code.count(), threads=1)
        long = replace(machine_code.count(), image=machine_code.spin(writes=True).image)
        reading, writing = (Executable(replace(long, written=names), threads=1) for names in ((), ("w",)))
        one = {"x": np.ones(1, np.float32)}
        ready, release = threading.Event(), threading.Event()
        SETUP

        def other():
            BODY

        thread = threading.Thread(target=other)
        thread.start()
        assert ready.wait(10)
        time.sleep(0.05)
        pid = os.fork()
        if not pid:
            try:
                CHECK
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        for _ in range(200):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(pid, 9)
            status = "the child hangs"
        release.set()
        thread.join(20)
        assert status == 0, status
    """)
    for name, text, indent in (("SETUP", setup, 0), ("BODY", body, 4), ("CHECK", check, 8)):
        lines = textwrap.dedent(text).strip().replace("\n", "\n" + " " * indent)
        source = source.replace(name, lines)
    done = subprocess.run(
        [sys.executable, "-c", source.replace("HERE", repr(str(HERE)))], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr


RUN = """
ready.set()
try:
    {exe}.run(one, time_limit=1, states=storage)
except LimitError:
    pass
"""
LOCK = """
from relume.runtime.lock import ReadWriteLock
lock = ReadWriteLock()
os.register_at_fork(after_in_child=lock.forget_others)
"""
WHOLE = "assert not storage.torn; count.run(one, states=storage); assert storage['w'] == 1"
TORN = """
assert storage.torn and torn(lambda: storage["w"]) and torn(lambda: count.run(one, states=storage))
storage.reset({"w": np.zeros(1, np.float32)})
count.run(one, states=storage)
assert storage["w"] == 1 and storage.fork()["w"] == 1
"""


def test_a_reader_in_another_thread_is_let_go() -> None:
    child_of(RUN.format(exe="reading"), WHOLE)


def test_what_a_writer_in_another_thread_has_begun_is_torn() -> None:
    child_of(RUN.format(exe="writing"), TORN)


def test_it_is_torn_under_every_name_and_in_a_mapped_file_too(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(4))
    setup = f"storage = Storage.map({{'w': ({str(path)!r}, 'f32', (1,)), 'v': ({str(path)!r}, 'f32', (1,))}})"
    check = "assert all(torn(lambda: storage[name]) for name in 'vw') and storage.share(['v']).torn"
    child_of(RUN.format(exe="writing"), check, setup=setup)


@pytest.mark.parametrize("inside", ["reading()", "writing()"])
def test_who_waited_is_forgotten(inside: str) -> None:
    """A writer that waits keeps readers out: it does not exist in the child."""
    body = f"""
    with lock.{inside}:
        waiter = threading.Thread(target=lambda: lock.writing().__enter__(), daemon=True)
        waiter.start()
        time.sleep(0.1)
        ready.set()
        release.wait(20)
    """
    check = """
    with lock.reading():
        pass
    with lock.writing():
        pass
    """
    child_of(body, check, setup=LOCK)


def test_the_lock_inside_the_lock_may_be_held_too() -> None:
    body = """
    with storage._guard.lock._changed:
        ready.set()
        release.wait(20)
    """
    child_of(body, WHOLE)


def test_what_the_forking_thread_holds_it_keeps() -> None:
    check = """
    with storage._guard.lock.reading():
        pass
    """
    inside = """
    with storage._guard.lock.reading():
        pid = os.fork()
        if not pid:
            assert len(storage._guard.lock._readers) == 1
            assert not storage.torn
        else:
            assert os.waitpid(pid, 0)[1] == 0
    if not pid:
        count.run(one, states=storage)
        os._exit(0 if storage["w"] == 1 else 1)
    ready.set()
    """
    child_of(inside, check)


def test_a_run_imports_nothing() -> None:
    """Python's locks of modules that other threads import at the time of a fork stay locked in the child for ever."""
    check = """
    before = set(sys.modules)
    storage = Storage({"w": [np.float32(0)]}).share({"w": "w"}).fork()
    count.run({"x": [np.float32(1)]}, states=storage)
    Storage.borrow({"w": np.zeros(1, np.float32)}).reset({"w": np.ones(1, np.float32)})
    assert not set(sys.modules) - before, set(sys.modules) - before
    """
    child_of("ready.set()", check)
