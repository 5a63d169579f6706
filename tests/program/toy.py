"""Kernel definitions without code, for tests of programs: only how they touch memory is real."""

from __future__ import annotations

from relume.kernels.halo import border
from relume.program.types import KernelDef, KernelSpec, Reuse


def _emit(*args: object) -> str:
    raise NotImplementedError("a toy kernel has no code")


def _one(spec: KernelSpec) -> int:
    return 1


def same_strides(spec: KernelSpec) -> Reuse:
    """Every result on every operand with its strides and element size: what an element-wise kernel allows."""
    return {
        index: tuple(
            other
            for other, operand in enumerate(spec.operands)
            if operand.access == "in"
            and operand.dtype.bytes == result.dtype.bytes
            and all(a == b for a, b, dim in zip(operand.strides, result.strides, result.dims) if dim != 1)
        )
        for index, result in enumerate(spec.operands)
        if result.access == "out"
    }


def _onto_first(spec: KernelSpec) -> Reuse:
    return {len(spec.operands) - 1: (0,)}


def kernel(name: str, **reuse: object) -> KernelDef:
    return KernelDef(name, "", _emit, _one, _one, **reuse)  # type: ignore[arg-type]


KERNELS = {
    "map": kernel("map", may_reuse=same_strides),
    "halo": kernel("halo", border=border),
    "scatter": kernel("scatter", must_reuse=_onto_first),
    **{
        name: kernel(name)
        for name in (
            "matmul_packed",
            "conv_blocked",
            "depthwise_blocked",
            "conv_plain",
            "window",
            "reduce",
            "argmax",
            "gather",
            "extents",
        )
    },
}
