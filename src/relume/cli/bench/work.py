"""How many multiply-adds a model is, and inputs for one where none were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relume.base import dims
from relume.base.dtypes import DType
from relume.cli.console import UsageError
from relume.graph.types import Function


def multiply_adds(fn: Function, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The multiply-adds of the convolutions and matrix products of one run, for inputs of these shapes.

    Of an imported function, before passes. A loop's body counts once; a transposed convolution counts as the
    convolution that it becomes.
    """
    binding = {
        name: extent
        for value in fn.inputs
        for dim, extent in zip(value.dims, shapes[value.name])
        if (name := dims.symbol_name(dim)) is not None
    }

    def size(extents: Sequence[dims.Dim]) -> int:
        return dims.evaluate(dims.product(extents), binding)

    total = 0
    for node in fn.graph.walk():
        if node.op.name not in ("conv", "matmul"):
            continue
        try:
            reduced = node.operands[1].dims[1:] if node.op.name == "conv" else node.operands[0].dims[-1:]
            total += size(node.results[0].dims) * size(reduced)
        except dims.UnboundSymbol:
            continue  # An extent that only a run decides.
    return total


def drawn(fn: Function, given: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The inputs: those given, the others drawn, always the same. Open extents are `extents`, or 1 for the first axis.

    Raises `UsageError` where an extent is not known.
    """
    known = dict(extents)
    for value in fn.inputs:
        if value.name in given:
            names = (dims.symbol_name(dim) for dim in value.dims)
            known.update((name, size) for name, size in zip(names, given[value.name].shape) if name is not None)
    rng = np.random.default_rng(0)
    arrays = {}
    for value in fn.inputs:
        shape = []
        for axis, dim in enumerate(value.dims):
            for name in sorted(dims.symbols(dim) - known.keys()):
                if axis:
                    raise UsageError(f"{name} of the input {value.name} is open: add --dim {name}=EXTENT, or --input")
                known[name] = 1
            shape.append(dims.evaluate(dim, known))
        arrays[value.name] = given[value.name] if value.name in given else _draw(rng, value.dtype, tuple(shape))
    return arrays


def _draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)  # Valid as indices, flags and masks.
