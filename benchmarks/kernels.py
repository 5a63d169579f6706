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
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from tests.kernels.harness import Operands, compile_kernel

from relume.base.targets import parse
from relume.codegen import peak
from relume.kernels.conv import CONV_BLOCKED
from relume.kernels.conv_plain import CONV_PLAIN
from relume.kernels.depthwise import DEPTHWISE_BLOCKED
from relume.kernels.matmul import MATMUL_PACKED
from relume.kernels.winograd import CONV_WINOGRAD
from relume.program.types import KernelDef
from relume.runtime.image import MappedImage

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


def winograd(c: int, o: int, size: int, tile: int) -> Case:
    """The same, of a 3x3 window and stride 1, in Winograd's form; the operations are those of a direct convolution."""
    rng = np.random.default_rng(0)
    full = -(-size // tile) * tile + 2
    blocks = -(-o // 16)
    bias = np.broadcast_to(normal(rng, 1, blocks, 1, 1, 16), (1, blocks, size, size, 16))
    operands = [
        ("in", normal(rng, 1, -(-c // 16), full, full, 16)),
        ("const", normal(rng, blocks, (tile + 2) ** 2, c, 16)),
        ("const", bias),
        ("out", np.empty((1, blocks, size, size, 16), np.float32)),
    ]
    params = {"channels": c, "tile": tile, "body": BIAS_RELU, "outs": (3,)}
    return CONV_WINOGRAD, operands, params, 2.0 * blocks * 16 * c * 9 * size * size


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


RESNET50: dict[str, tuple[int, ...]] = {
    f"{c}->{o} {size}x{size} {k}x{k}" + (f" s{stride}" if stride > 1 else ""): (c, o, size, k, stride)
    for c, o, size, k, stride in (
        (3, 64, 112, 7, 2),
        *((64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1)),
        *((256, 128, 56, 1, 1), (256, 128, 28, 1, 2), (128, 128, 28, 3, 2), (128, 128, 28, 3, 1)),
        *((128, 512, 28, 1, 1), (512, 128, 28, 1, 1), (256, 512, 28, 1, 2)),
        *((512, 256, 28, 1, 1), (512, 256, 14, 1, 2), (256, 256, 14, 3, 2), (256, 256, 14, 3, 1)),
        *((256, 1024, 14, 1, 1), (1024, 256, 14, 1, 1), (512, 1024, 14, 1, 2)),
        *((1024, 512, 14, 1, 1), (1024, 512, 7, 1, 2), (512, 512, 7, 3, 2), (512, 512, 7, 3, 1)),
        *((512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1), (1024, 2048, 7, 1, 2)),
    )
}
"""The convolutions of ResNet-50, with the stride on the 1x1 as in the original and on the 3x3 as in later forms: input
and output channels, size of the output, window, stride."""

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
    **{f"conv {name}": partial(conv, *shape) for name, shape in RESNET50.items()},
    **{
        f"winograd {c}->{o} {size}x{size} F({tile},3)": partial(winograd, c, o, size, tile)
        for c, o, size in ((64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7), (16, 16, 80), (96, 24, 40))
        for tile in (4, 2)
    },
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


def measure(names: Iterable[str]) -> Iterator[tuple[str, float, float, float]]:
    """Name, floating-point operations a second, share of the peak and seconds of a call, of each case."""
    target = parse("host")
    image, multiply_adds = peak.peak(target)
    mapped = MappedImage(image)
    run_peak = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(mapped.address(peak.SYMBOL))
    for name in names:
        kernel, operands, params, work = CASES[name]()
        compiled = compile_kernel(kernel, operands, params, target=target)
        call = partial(compiled.bind([array for _, array in operands]), 0, compiled.tasks)
        timed(call, 1)
        repeat = max(1, int(SLICE / timed(call, 2)))
        shares, rates = [], []
        for _ in range(SLICES):
            before = timed(lambda: run_peak(5000), 1)
            seconds = timed(call, repeat)
            after = timed(lambda: run_peak(5000), 1)
            rates.append(work / seconds)
            shares.append(work / seconds / (2 * 2 * 5000 * multiply_adds / (before + after)))
        rate = float(np.percentile(rates, 70))
        yield name, rate, float(np.percentile(shares, 70)), work / rate
    del mapped


def main(names: list[str]) -> None:
    """Prints one row per case whose name contains one of `names`."""
    print(f"{parse('host').name}\n{'case':34}{'GFLOP/s':>9}{'of peak':>9}{'us':>10}")
    chosen = [name for name in CASES if not names or any(part in name for part in names)]
    for name, rate, share, seconds in measure(chosen):
        print(f"{name:34}{rate / 1e9:9.1f}{share:9.0%}{seconds * 1e6:10.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
