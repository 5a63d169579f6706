"""The worker threads: one pool for the process, which a forked child does without until it starts its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def in_a_fresh_process(body: str) -> str:
    """Runs a piece of Python where no pool has been started, and gives what it prints."""
    head = textwrap.dedent(f"""
        import os, sys, threading, time
        sys.path.insert(0, {str(HERE)!r})
        import machine_code, numpy as np
        from relume.runtime import Executable, context
        from relume.runtime.pool import POOL

        x = np.arange(100_000, dtype=np.float32).reshape(100, 1000)

        def tasks():
            return len(os.listdir("/proc/self/task"))

        def check(exe):
            for _ in range(20):
                assert (exe(x) == x * 3).all()
    """)
    command = [sys.executable, "-c", head + textwrap.dedent(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_starts_with_the_first_run_that_wants_it_and_grows_to_the_largest_request() -> None:
    out = in_a_fresh_process("""
        before = tasks()
        serial, two, three, also_two = (Executable(machine_code.affine(), threads=n) for n in (1, 2, 3, 2))
        print(tasks() - before)
        check(serial)
        print(tasks() - before, POOL.threads)
        check(two)
        print(tasks() - before, POOL.threads)
        check(also_two)
        print(tasks() - before, POOL.threads)
        check(three)
        print(POOL.threads)
        check(two)
        check(serial)
        pools = [exe._contexts[0].frame[context.POOL] for exe in (two, three, serial)]
        print(pools[0] == pools[1] != 0, pools[2])
    """)
    assert out == "0\n0 1\n1 2\n1 2\n3\nTrue 0\n"


def test_the_pool_outlives_the_executable_that_started_it() -> None:
    out = in_a_fresh_process("""
        import gc
        first = Executable(machine_code.affine(), threads=2)
        second = Executable(machine_code.affine(), threads=2)
        check(first)
        del first
        gc.collect()
        check(second)
        print("ok")
    """)
    assert out == "ok\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_runs_and_the_parent_goes_on() -> None:
    out = in_a_fresh_process("""
        exe = Executable(machine_code.affine(), threads=2)
        check(exe)
        pid = os.fork()
        if not pid:
            alone = tasks()
            check(exe)
            os._exit(0 if (alone, tasks(), POOL.threads) == (1, 2, 2) else 1)
        check(exe)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert out == "0\n"


def test_fork_while_other_threads_are_in_the_middle_of_runs() -> None:
    out = in_a_fresh_process("""
        exe = Executable(machine_code.affine(), threads=2)
        stop = threading.Event()

        def loop():
            while not stop.is_set():
                exe(x[: np.random.randint(100)])

        threads = [threading.Thread(target=loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(5):
            time.sleep(0.01)
            pid = os.fork()
            if not pid:
                check(exe)
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.set()
        for thread in threads:
            thread.join()
        check(exe)
        print(codes == [0] * 5)
    """)
    assert out == "True\n"


def test_child_and_parent_have_memory_of_their_own() -> None:
    out = in_a_fresh_process("""
        from relume.runtime import Storage
        exe, storage = Executable(machine_code.count(), threads=1), Storage({"w": np.zeros(1, np.float32)})
        one = np.ones(1, np.float32)
        pid = os.fork()
        if not pid:
            exe.run({"x": one}, states=storage)
            os._exit(int(storage["w"][0]))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), storage["w"][0])
    """)
    assert out == "1 0.0\n"


def test_the_runtime_needs_neither_the_compiler_nor_the_rest_of_relume() -> None:
    code = (
        "import sys, relume.runtime\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('llvmlite', 'onnx')"
        " or name.startswith('relume.') and name.split('.')[1] not in ('base', 'runtime')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
