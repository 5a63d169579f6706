"""What a call and a start cost: per-call overhead of a ten-node model, cold compile, compile from the cache.

    python -m benchmarks.calls

Prints medians with the spread from the 10th to the 90th percentile. Where onnxruntime is installed its call is measured
in turn with ours, and the ratio is theirs over ours.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import relume

ROUNDS, CALLS = 60, 2000

START = """
import sys, time
import relume
from pathlib import Path
from relume import api, codegen
from relume.frontends import onnx  # imports count apart
cache = codegen.Cache(Path(sys.argv[1]))
model = Path(relume.__file__).parent / "demo" / "digits.onnx"
start = time.perf_counter()
exe = relume.compile(model, cache=cache)
print(time.perf_counter() - start, codegen.llvm_calls())
"""


def ten_nodes() -> onnx.ModelProto:
    """Ten matmuls of a 4x4: next to no arithmetic, all overhead."""
    nodes = [helper.make_node("MatMul", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(10)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in ("v0", "v10")]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "ten", info[:1], info[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def per_call(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def shown(seconds: list[float], unit: float) -> str:
    low, *_, high = statistics.quantiles(seconds, n=10)
    return f"{statistics.median(seconds) / unit:8.2f}  ({low / unit:.2f} to {high / unit:.2f})"


def main() -> None:
    model = ten_nodes()
    exe = relume.compile(model, threads=1)
    x = np.ones((4, 4), np.float32)
    calls: dict[str, Callable[[], object]] = {"relume": lambda: exe(x)}
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        calls["onnxruntime"] = lambda: session.run(None, {"v0": x})
    except ImportError:
        print("onnxruntime is not installed: no comparison")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(per_call(call))
    print("one call of a ten-node model, us:")
    for name, seconds in times.items():
        print(f"  {name:12}{shown(seconds, 1e-6)}")
    if len(times) > 1:
        ratios = [theirs / ours for ours, theirs in zip(times["relume"], times["onnxruntime"])]
        print(f"  ratio       {shown(ratios, 1)}")

    cold, warm = [], []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            for kept in (cold, warm):
                done = subprocess.run(
                    [sys.executable, "-c", START, folder], capture_output=True, text=True, check=True
                )
                seconds, llvm = done.stdout.split()
                assert (int(llvm) == 0) == (kept is warm), "a warm compile calls LLVM never, a cold one does"
                kept.append(float(seconds))
    print("compiling the digits network after imports, ms:")
    print(f"  cold        {shown(cold, 1e-3)}")
    print(f"  from cache  {shown(warm, 1e-3)}")


if __name__ == "__main__":
    main()
