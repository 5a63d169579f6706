"""A native run ends on time, on Ctrl-C, and on any signal handler that raises; the executable stays usable."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import machine_code
import numpy as np
import pytest

from relume.base.errors import InputError, LimitError
from relume.runtime import Executable
from relume.runtime.context import DEADLINE, STOP

HERE = Path(__file__).parent
ON, OFF = np.ones(1, np.float32), np.zeros(1, np.float32)


def test_a_time_limit_ends_the_run_soon_after() -> None:
    exe = Executable(machine_code.spin(), threads=1)
    for limit in (0.05, 1e-9):
        late = []
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(LimitError, match="time limit"):
                exe.run({"x": ON}, time_limit=limit)
            late.append(time.monotonic() - start - limit)
            assert exe(OFF) == 0
        assert min(late) < 0.02  # The best of three: the machine may be busy with other things.


def test_a_run_within_its_limit_does_not_hear_of_it_and_neither_does_the_next() -> None:
    exe = Executable(machine_code.spin(), threads=1)
    for limit in (10, 0.001, math.inf, 1e300):
        assert exe.run({"x": OFF}, time_limit=limit)["y"] == 0
    time.sleep(0.002)
    assert [exe._contexts[0].frame[field] for field in (STOP, DEADLINE)] == [0, 0]


@pytest.mark.parametrize("limit", [0, -1, math.nan])
def test_a_limit_that_is_none(limit: float) -> None:
    with pytest.raises(InputError, match="positive"):
        Executable(machine_code.spin(), threads=1).run({"x": OFF}, time_limit=limit)


class Alarm(Exception):
    """What the handler below raises."""


def test_an_exception_of_a_signal_handler_comes_out_of_the_run() -> None:
    def handler(*_: object) -> None:
        raise Alarm("wake up")

    exe = Executable(machine_code.spin(), threads=1)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(Alarm, match="wake up"):
                exe(ON)
            assert exe(OFF) == 0 and len(exe._contexts) == 1
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_returns_does_not_end_the_run_and_may_run_the_model() -> None:
    exe = Executable(machine_code.spin(), threads=1)
    seen: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(float(exe(OFF)[0])))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        with pytest.raises(LimitError):
            exe.run({"x": ON}, time_limit=0.1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) >= 2 and set(seen) == {0.0}


def script(body: str) -> list[str]:
    """A command line that runs a piece of Python with the helpers of these tests."""
    head = f"import sys; sys.path.insert(0, {str(HERE)!r})\nimport machine_code, numpy as np\n"
    return [sys.executable, "-c", head + "from relume.runtime import Executable\n" + textwrap.dedent(body)]


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_ends_a_native_run_and_the_executable_runs_again(threads: int) -> None:
    child = subprocess.Popen(
        script(f"""
            exe = Executable(machine_code.spin(), threads={threads})
            for _ in range(3):
                try:
                    print("running", flush=True)
                    exe(np.ones(1, np.float32))
                except KeyboardInterrupt:
                    print("interrupted", exe(np.zeros(1, np.float32)), flush=True)
        """),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    late = []
    try:
        for _ in range(3):
            assert child.stdout.readline() == "running\n"
            time.sleep(0.1)
            start = time.monotonic()
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted [0.]\n"
            late.append(time.monotonic() - start)
        assert min(late) < 0.02
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.wait()


def test_other_python_threads_run_meanwhile() -> None:
    exe = Executable(machine_code.spin(), threads=1)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    with pytest.raises(LimitError):
        exe.run({"x": ON}, time_limit=0.2)
    done.set()
    ticker.join()
    assert ticks > 1000
