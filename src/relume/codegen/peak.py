"""The machine's peak, as code: independent chains of fused multiply-adds in registers, and nothing else."""

from __future__ import annotations

from relume.base.targets import Target
from relume.kernels.ir import Function
from relume.runtime.artifact import Image

SYMBOL = "relume_peak"
CHAINS, UNROLLED = 12, 8
"""More chains than latency times units of any core so far, fewer than there are registers."""


def peak(target: Target) -> tuple[Image, int]:
    """`i32 relume_peak(i64 trips)`, and the float32 multiply-adds of one trip. Needs LLVM: it is not cached."""
    from relume.codegen import link, llvm

    lanes = target.vector_bits // 32
    kind = f"<{lanes} x float>"
    f = Function(SYMBOL, [("i64", "trips")], attributes="nounwind")
    half = f.constant(0.5, kind)
    # x / 2 + 1 / 2 goes to 1 from anywhere: nothing overflows, and no two chains are the same computation.
    starts = [f.constant(1 + 2.0**-chain, kind) for chain in range(1, CHAINS + 1)]
    with f.loop(0, f.params[0], carry=starts) as loop:
        sums = loop.carried
        for _ in range(UNROLLED):
            sums = [f.fma(half, value, half) for value in sums]
        loop.next = sums
    total = loop.results[0]
    for value in loop.results[1:]:
        total = f.binary("fadd", total, value)
    f.ret(f.convert("fptosi", f.extract(total, 0), "i32"))
    return link.link([(SYMBOL, llvm.compile_ir(f.text(), target, name=SYMBOL))]), CHAINS * UNROLLED * lanes
