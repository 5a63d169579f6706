"""Runs a kernel in every way that must not matter, and gives the one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from harness import TARGETS, run_kernel

from relume.program.types import KernelDef, Param


def run_all(
    kernel: KernelDef,
    operands: Sequence[tuple[str, np.ndarray]],
    params: Mapping[str, Param],
    scalars: Sequence[int] = (),
) -> list[np.ndarray]:
    """The arrays written (copies, C order), after checking that they have the same bits for static and run-time
    extents, for every target, and for one and three splits of the tasks.

    `out` operands start with a pattern that no variant shares, so an element that is not written shows.
    """
    first: list[np.ndarray] | None = None
    for variant, (target, runtime, splits) in enumerate(
        (target, runtime, splits) for target in TARGETS for runtime in (False, True) for splits in (1, 3)
    ):
        fresh = [(access, _fresh(access, array, variant)) for access, array in operands]
        run_kernel(kernel, fresh, params, scalars, target=target, runtime_extents=runtime, splits=splits)
        written = [np.ascontiguousarray(array) for access, array in fresh if access in ("out", "inout")]
        if first is None:
            first = written
        for expected, got in zip(first, written):
            assert expected.tobytes() == got.tobytes(), (
                f"bits differ for {target.name}, {'run-time' if runtime else 'static'} extents, {splits} splits"
            )
    assert first is not None
    return first


def _fresh(access: str, array: np.ndarray, variant: int) -> np.ndarray:
    """A copy with the same strides around it for an array that the kernel writes; the array itself if it only reads."""
    if access not in ("out", "inout"):
        return array
    copy = like(array)
    if access == "out":
        copy.view(np.uint8 if array.dtype == bool else array.dtype).fill(variant + 1)
    else:
        copy[...] = array
    return copy


def like(array: np.ndarray) -> np.ndarray:
    """A new array with the dims and strides of `array` (which may not be negative)."""
    span = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides)) if array.size else 0
    memory = np.zeros(span // array.itemsize + 1, array.dtype)
    return np.lib.stride_tricks.as_strided(memory, array.shape, array.strides)
