"""A native run that would take minutes ends when it is told to, and the executable stays usable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import relume
from relume.runtime import Executable

SIZE, STEPS = 3072, 500
"""500 matmuls of 3072 cubed: 29 TFLOP, minutes on two cores."""

LATE = 0.05
"""Seconds past the limit. The machine may be busy, so the best of a few tries counts: noise only adds."""


def long_model(size: int = SIZE, steps: int = STEPS) -> relume.Module:
    lines = [f"func @main(%x0 : f32[{size},{size}]) {{"]
    lines += [f"  %x{step + 1} = matmul(%x{step}, @w)" for step in range(steps)]
    return relume.parse(
        "\n".join([*lines, f'  return %x{steps} as "y"', "}", f"const @w : f32[{size},{size}] = random(1)"])
    )


@pytest.fixture(scope="module")
def exe() -> Executable:
    return relume.compile(long_model())


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.full((SIZE, SIZE), 1e-3, np.float32)


def test_a_time_limit_ends_a_run_of_minutes(exe: Executable, x: np.ndarray) -> None:
    late = []
    for _ in range(5):
        start = time.perf_counter()
        with pytest.raises(relume.LimitError, match="limit"):
            exe.run({"x0": x}, time_limit=1)
        late.append(time.perf_counter() - start - 1)
        if late[-1] < LATE:
            break
    assert 0 <= min(late) < LATE


def test_the_executable_is_usable_after_a_time_limit() -> None:
    small = relume.compile(long_model(512, 100))
    x = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    before = small(x)
    with pytest.raises(relume.LimitError):
        small.run({"x0": x}, time_limit=0.01)
    assert small(x).tobytes() == before.tobytes()


PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import relume
from test_interrupt import SIZE, long_model

exe = relume.compile(long_model())
x = np.full((SIZE, SIZE), 1e-3, np.float32)
sent = []
def interrupt():
    time.sleep(1.0)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
late = []
for _ in range(3):
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        exe(x)
        sys.exit("the run was not interrupted")
    except KeyboardInterrupt:
        late.append(time.perf_counter() - sent[-1])
    thread.join()
small = relume.compile(long_model(64, 3))
assert np.isfinite(small(x[:64, :64])).all()
try:
    exe.run({"x0": x}, time_limit=0.1)
except relume.LimitError:
    print(min(late))
"""


def test_ctrl_c_ends_a_run_of_minutes() -> None:
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < LATE


def test_a_signal_handler_that_returns_does_not_end_the_run() -> None:
    """A handler runs in the middle of a native run, and only an exception out of it ends the run."""
    exe = relume.compile(long_model(512, 400))
    x = np.full((512, 512), 1e-3, np.float32)
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        y = exe(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert y.shape == (512, 512)
    assert len(seen) > 3
