"""Single-core rates of the heavy kernels, as a share of the machine's measured FMA peak.

    python -m benchmarks.kernels [NAME...]

A slice of pure FMAs runs right before and after every kernel slice, so that a change of clock or a busy neighbour hits
both; the share is the 70th percentile of kernel rate over peak rate. A percentile, because a slice that was
interrupted says nothing about the code.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial

import llvmlite.binding as llvm
import numpy as np
from tests.kernels.harness import Operands, compile_kernel, machine_of

from relume.base.targets import Target, parse
from relume.kernels.conv import CONV_BLOCKED
from relume.kernels.conv_plain import CONV_PLAIN
from relume.kernels.depthwise import DEPTHWISE_BLOCKED
from relume.kernels.ir import Function
from relume.kernels.matmul import MATMUL_PACKED
from relume.program.types import KernelDef

SLICE = 2e-3
"""Seconds of one slice of kernel calls."""
SLICES = 25

BIAS_GELU = (
    ("add", (0, 1), (), "f32"),
    ("constant", (), (("value", 0.7071067811865476),), "f32"),
    ("mul", (2, 3), (), "f32"),
    ("erf", (4,), (), "f32"),
    ("mul", (2, 5), (), "f32"),
    ("add", (6, 2), (), "f32"),
)
BIAS_RELU = (("add", (0, 1), (), "f32"), ("relu", (2,), (), "f32"))

Case = tuple[KernelDef, Operands, dict, float]
"""Kernel, operands, params, floating-point operations."""


def peak_code(target: Target) -> tuple[llvm.ExecutionEngine, Callable[[int], int], int]:
    """Independent chains of FMA in registers, and the operations of one trip."""
    lanes = target.vector_bits // 32
    kind = f"<{lanes} x float>"
    f = Function("peak", [("i64", "trips")], result="i32")
    chains = 12
    factor = f.load(kind, f.scratch(kind), 64)
    with f.loop(0, f.params[0], carry=[factor] * chains) as loop:
        sums = loop.carried
        for _ in range(8):
            sums = [f.fma(factor, value, value) for value in sums]
        loop.next = sums
    total = loop.results[0]
    for value in loop.results[1:]:
        total = f.binary("fadd", total, value)
    f.ret(f.convert("fptosi", f.extract(total, 0), "i32"))
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f.text()), machine_of(target))
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(engine.get_function_address("peak"))
    return engine, call, chains * 8 * lanes * 2


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32."""
    return rng.standard_normal(shape).astype(np.float32)


def matmul(m: int, k: int, n: int, gelu: bool = False) -> Case:
    """A product, alone or with bias and GELU."""
    rng = np.random.default_rng(0)
    operands = [("in", normal(rng, m, k)), ("const", normal(rng, -(-n // 16), k, 16))]
    if gelu:
        operands.append(("const", np.broadcast_to(normal(rng, n), (m, n))))
    operands.append(("out", np.empty((m, n), np.float32)))
    return MATMUL_PACKED, operands, {"body": BIAS_GELU if gelu else (), "outs": (7 if gelu else 0,)}, 2.0 * m * k * n


def conv(c: int, o: int, size: int, kernel: int, stride: int = 1) -> Case:
    """A blocked convolution of a square image with bias and ReLU; `size` is the output's."""
    rng = np.random.default_rng(0)
    full = (size - 1) * stride + kernel
    blocks = -(-o // 16)
    bias = np.broadcast_to(normal(rng, 1, blocks, 1, 1, 16), (1, blocks, size, size, 16))
    operands = [
        ("in", normal(rng, 1, -(-c // 16), full, full, 16)),
        ("const", normal(rng, blocks, c, kernel, kernel, 16)),
        ("const", bias),
        ("out", np.empty((1, blocks, size, size, 16), np.float32)),
    ]
    params = {"strides": (stride, stride), "dilations": (1, 1), "channels": c, "body": BIAS_RELU, "outs": (3,)}
    return CONV_BLOCKED, operands, params, 2.0 * blocks * 16 * c * kernel * kernel * size * size


def depthwise(c: int, size: int, kernel: int, stride: int = 1) -> Case:
    """A blocked depthwise convolution of a square image."""
    rng = np.random.default_rng(0)
    full = (size - 1) * stride + kernel
    operands = [
        ("in", normal(rng, 1, c // 16, full, full, 16)),
        ("const", normal(rng, c // 16, kernel, kernel, 16)),
        ("out", np.empty((1, c // 16, size, size, 16), np.float32)),
    ]
    params = {"strides": (stride, stride), "dilations": (1, 1), "body": (), "outs": (0,)}
    return DEPTHWISE_BLOCKED, operands, params, 2.0 * c * kernel * kernel * size * size


def plain(c: int, o: int, size: int, kernel: int, groups: int = 1) -> Case:
    """A plain convolution of a square image, padded to keep its size."""
    rng = np.random.default_rng(0)
    operands = [
        ("in", normal(rng, 1, c, size, size)),
        ("const", normal(rng, o, c // groups, kernel, kernel)),
        ("out", np.empty((1, o, size, size), np.float32)),
    ]
    pads = (kernel // 2,) * 4
    params = {"strides": (1, 1), "dilations": (1, 1), "pads": pads, "groups": groups, "body": (), "outs": (0,)}
    return CONV_PLAIN, operands, params, 2.0 * o * (c // groups) * kernel * kernel * size * size


CASES: dict[str, Callable[[], Case]] = {
    "matmul 64^3": lambda: matmul(64, 64, 64),
    "matmul 256^3": lambda: matmul(256, 256, 256),
    "matmul 512^3": lambda: matmul(512, 512, 512),
    "matmul 1024^3": lambda: matmul(1024, 1024, 1024),
    "matmul 1000x3000x1000": lambda: matmul(1000, 3000, 1000),
    "matmul 128x384x1536": lambda: matmul(128, 384, 1536),
    "matmul 50x512x2048": lambda: matmul(50, 512, 2048),
    "matmul 128x768x3072 +bias+gelu": lambda: matmul(128, 768, 3072, gelu=True),
    "matmul 16x768x3072 +bias+gelu": lambda: matmul(16, 768, 3072, gelu=True),
    "matmul 1x1024x1024": lambda: matmul(1, 1024, 1024),
    "matmul 1x4096x4096": lambda: matmul(1, 4096, 4096),
    "conv 64->64 56x56 3x3": lambda: conv(64, 64, 56, 3),
    "conv 128->128 28x28 3x3": lambda: conv(128, 128, 28, 3),
    "conv 256->256 14x14 3x3": lambda: conv(256, 256, 14, 3),
    "conv 512->512 7x7 3x3": lambda: conv(512, 512, 7, 3),
    "conv 64->256 56x56 1x1": lambda: conv(64, 256, 56, 1),
    "conv 512->128 28x28 1x1": lambda: conv(512, 128, 28, 1),
    "conv 1024->256 14x14 1x1": lambda: conv(1024, 256, 14, 1),
    "conv 128->128 28x28 3x3 s2": lambda: conv(128, 128, 28, 3, 2),
    "conv 3->64 112x112 7x7 s2": lambda: conv(3, 64, 112, 7, 2),
    "depthwise 32 112x112 3x3": lambda: depthwise(32, 112, 3),
    "depthwise 144 56x56 3x3": lambda: depthwise(144, 56, 3),
    "depthwise 384 14x14 3x3": lambda: depthwise(384, 14, 3),
    "depthwise 960 7x7 3x3": lambda: depthwise(960, 7, 3),
    "plain 64->64 56x56 3x3": lambda: plain(64, 64, 56, 3),
    "plain 128->128 28x28 3x3 g32": lambda: plain(128, 128, 28, 3, 32),
}


def timed(call: Callable[[], object], repeat: int) -> float:
    """Seconds of processor time of one call, over `repeat` of them: what others do on the core is left out."""
    start = time.thread_time()
    for _ in range(repeat):
        call()
    return (time.thread_time() - start) / repeat


def main(names: list[str]) -> None:
    """Prints one row per case whose name contains one of `names`."""
    target = parse("host")
    engine, peak, flops = peak_code(target)
    print(f"{target.name}\n{'case':34}{'GFLOP/s':>9}{'of peak':>9}{'us':>10}")
    for name, case in CASES.items():
        if names and not any(part in name for part in names):
            continue
        kernel, operands, params, work = case()
        compiled = compile_kernel(kernel, operands, params, target=target)
        call = partial(compiled.bind([array for _, array in operands]), 0, compiled.tasks)
        timed(call, 1)
        repeat = max(1, int(SLICE / timed(call, 2)))
        shares, rates = [], []
        for _ in range(SLICES):
            before = timed(lambda: peak(5000), 1)
            seconds = timed(call, repeat)
            after = timed(lambda: peak(5000), 1)
            rates.append(work / seconds)
            shares.append(work / seconds / (2 * 5000 * flops / (before + after)))
        rate = float(np.percentile(rates, 70))
        print(f"{name:34}{rate / 1e9:9.1f}{np.percentile(shares, 70):9.0%}{work / rate * 1e6:10.1f}", flush=True)
    del engine


if __name__ == "__main__":
    main(sys.argv[1:])
