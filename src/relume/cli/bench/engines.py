"""The engines that a worker can run: how each is imported, loads a model on so many threads, and is called."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Run = Callable[[], Sequence[np.ndarray]]
"""One run on the inputs that it was made with."""


@dataclass(frozen=True)
class Job:
    """What a worker is to run. `program` is the model as a `torch.export` file; `cache` a folder for compiled code."""

    model: str
    threads: int
    program: str | None = None
    cache: str | None = None


@dataclass(frozen=True)
class Loaded:
    """A model that is ready, and what there is to say about it. `timed` gives the seconds of one of so many runs where
    the engine has a clock of its own."""

    run: Run
    facts: Mapping[str, Any]
    timed: Callable[[int], float] | None = None


@dataclass(frozen=True)
class Engine:
    """`imports` loads everything that does not depend on the model, so that it can be left out of times and memory."""

    name: str
    packages: tuple[str, ...]
    imports: Callable[[], object]
    load: Callable[[Job, Arrays], Loaded]

    def absent(self, job: Job) -> str | None:
        """Why it cannot run here, if it cannot."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        if self.name == "torch" and job.program is None:
            return "PyTorch reads no ONNX files: give the model as a torch.export program too (--torch FILE.pt2)"
        return None

    @property
    def version(self) -> str:
        """The version of its package; empty for a checkout that is not installed."""
        try:
            return importlib.metadata.version(self.packages[0])
        except importlib.metadata.PackageNotFoundError:
            return ""


# --- Relume ---------------------------------------------------------------------------------------------------------


def _import_relume() -> None:
    from relume import api  # noqa: F401
    from relume.frontends import onnx  # noqa: F401


def _load_relume(job: Job, inputs: Arrays) -> Loaded:
    from relume import api, codegen
    from relume.base import dims, intervals
    from relume.runtime.plan import bind_symbols, make_plan

    cache = codegen.Cache(Path(job.cache)) if job.cache is not None else True
    exe = api.compile(job.model, threads=job.threads, cache=cache)
    arrays = [inputs[port.name] for port in exe.inputs]
    shapes = [array.shape for array in arrays]
    artifact, binding = exe.artifact, bind_symbols(exe.inputs, shapes)
    sizes = [-(-dims.evaluate(one.bytes, binding) // 64) * 64 for one in artifact.allocations]
    first, last = ([getattr(one, end) for one in artifact.allocations] for end in ("first", "last"))
    facts = {
        "arena_bytes": make_plan(artifact, shapes).arena_bytes,
        "live_bytes": intervals.lower_bound(sizes, first, last),
        "llvm_calls": codegen.llvm_calls(),
    }
    single = len(exe.outputs) == 1

    def run() -> Sequence[np.ndarray]:
        outputs = exe(*arrays)
        return (outputs,) if single else outputs

    return Loaded(run, facts)


# --- its peers ------------------------------------------------------------------------------------------------------


def _import_onnxruntime() -> None:
    import onnxruntime  # noqa: F401


def _load_onnxruntime(job: Job, inputs: Arrays) -> Loaded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])
    given = dict(inputs)
    return Loaded(lambda: session.run(None, given), {})


def _import_openvino() -> None:
    import openvino  # noqa: F401


def _load_openvino(job: Job, inputs: Arrays) -> Loaded:
    import openvino

    # In float32 like everybody else: by itself it takes bfloat16 where the machine has it.
    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(job.threads),
        "ENABLE_CPU_PINNING": "NO",
    }
    compiled = openvino.Core().compile_model(job.model, "CPU", config)
    request = compiled.create_infer_request()
    asked = [port.get_any_name() for port in compiled.inputs]
    if unknown := [name for name in asked if name not in inputs]:
        raise ValueError(f"openvino asks for {', '.join(unknown)}, which the model does not declare as an input")
    arrays = [inputs[name] for name in asked]
    count = len(compiled.outputs)

    def run() -> Sequence[np.ndarray]:
        outputs = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [outputs[index] for index in range(count)]

    return Loaded(run, {})


def _import_torch() -> None:
    import torch.export  # noqa: F401


def _load_torch(job: Job, inputs: Arrays) -> Loaded:
    import torch

    torch.set_num_threads(job.threads)
    assert job.program is not None  # Else it is absent.
    network = torch.export.load(job.program).module()
    arrays = [torch.from_numpy(array) for array in inputs.values()]

    def run() -> Sequence[np.ndarray]:
        with torch.inference_mode():
            outputs = network(*arrays)
        return [out.numpy() for out in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]

    return Loaded(run, {"mode": "eager"})


# --- the machine itself ---------------------------------------------------------------------------------------------


def _import_peak() -> None:
    from relume.codegen import peak  # noqa: F401


def _load_peak(job: Job, inputs: Arrays) -> Loaded:
    """One run is so many multiply-adds in registers on each thread, each on a processor of its own."""
    import ctypes

    from relume.base import targets
    from relume.codegen import peak
    from relume.runtime.image import MappedImage

    image, work = peak.peak(targets.parse("host"))
    mapped = MappedImage(image)
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(mapped.address(peak.SYMBOL))
    cpus, trips = sorted(os.sched_getaffinity(0)), 20_000

    def timed(count: int) -> float:
        """The seconds that the slowest thread was on a processor: whether they all were at once does not matter."""
        seconds = [0.0] * job.threads

        def work_on(index: int) -> None:
            os.sched_setaffinity(0, {cpus[index % len(cpus)]})
            start = time.thread_time()
            call(trips * count)
            seconds[index] = (time.thread_time() - start) / count

        threads = [threading.Thread(target=work_on, args=(index,)) for index in range(job.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mapped is not None  # It is alive as long as this function.
        return max(seconds)

    def run() -> Sequence[np.ndarray]:
        call(trips)
        return ()

    return Loaded(run, {"multiply_adds": trips * work * job.threads}, timed)


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("relume", ("relume",), _import_relume, _load_relume),
        Engine("onnxruntime", ("onnxruntime",), _import_onnxruntime, _load_onnxruntime),
        Engine("openvino", ("openvino",), _import_openvino, _load_openvino),
        Engine("torch", ("torch",), _import_torch, _load_torch),
        Engine("peak", ("llvmlite",), _import_peak, _load_peak),
    )
}
PEERS = ("onnxruntime", "openvino", "torch")
