"""What kernels need for themselves comes with the context: the stack of whoever calls may be as small as it likes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import relume
from relume.runtime.context import Context

ATTENTION = """
func @main(%q : f32[1,2,8], %k : f32[1,8,T], %v : f32[1,T,8]) {
  %s = matmul(%q, %k)
  %p = softmax(%s, axis=2)
  %y = matmul(%p, %v)
  return %y
}
"""

WINOGRAD = """
func @main(%x : f32[1,256,12,12]) {
  %y = conv(%x, @w, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], groups=1)
  return %y
}
const @w : f32[256,256,3,3] = random(1)
"""

IN_A_SMALL_THREAD = """
import threading
import numpy as np
import relume
exe = relume.compile(relume.parse({text!r}), threads={threads}, cache=False)
inputs = [np.full(shape, 0.01, np.float32) for shape in {shapes}]
threading.stack_size(128 << 10)
results = []
thread = threading.Thread(target=lambda: results.append(exe(*inputs)))
thread.start()
thread.join()
assert np.isfinite(results[0]).all()
print("done")
"""


def _runs_in_a_small_thread(text: str, shapes: list[tuple[int, ...]], threads: int) -> tuple[bool, str]:
    script = IN_A_SMALL_THREAD.format(text=text, shapes=shapes, threads=threads)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.stdout == "done\n", done.stderr


def test_attention_over_very_many_columns_needs_no_stack() -> None:
    columns = 700_000  # A row of scores is 2.8 MB.
    done, why = _runs_in_a_small_thread(ATTENTION, [(1, 2, 8), (1, 8, columns), (1, columns, 8)], threads=2)
    assert done, why


def test_winograd_needs_no_stack() -> None:
    done, why = _runs_in_a_small_thread(WINOGRAD, [(1, 256, 12, 12)], threads=2)
    assert done, why


def test_each_thread_has_its_own_and_a_context_serves_any_executable() -> None:
    rng = np.random.default_rng(0)
    attention = relume.compile(relume.parse(ATTENTION), threads=2)
    winograd = relume.compile(relume.parse(WINOGRAD), threads=1)
    assert winograd.artifact.scratch != 0
    assert attention.artifact.scratch != 0
    context = Context()
    x = rng.standard_normal((1, 256, 12, 12)).astype(np.float32)
    alone = winograd(x)
    for columns in (3, 5_000, 17):
        q, k, v = (
            rng.standard_normal(shape).astype(np.float32) for shape in ((1, 2, 8), (1, 8, columns), (1, columns, 8))
        )
        mixed = attention.run({"q": q, "k": k, "v": v}, context=context)["y"]
        np.testing.assert_array_equal(mixed, attention(q, k, v))
        again = winograd.run({"x": x}, context=context)["y"]
        np.testing.assert_array_equal(again, alone)
