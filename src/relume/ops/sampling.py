"""Applies an op to one of its samples: what every test that derives from samples begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relume.base import dims
from relume.base.digests import of_text
from relume.base.dtypes import BY_NAME, DType, from_numpy
from relume.graph.builder import Builder
from relume.graph.opdef import OpDef, Sample
from relume.graph.text import parse_region
from relume.graph.types import Function, Module, State, Tensor, Type


def arrays_of(sample: Sample, seed: str = "") -> list[np.ndarray]:
    """The operands of a sample. What it leaves open is filled from a generator seeded by place, type and `seed`."""
    return [
        np.array(operand)
        if isinstance(operand, (np.ndarray, np.generic))
        else _draw(_generator(operand, f"{seed}/{index}"), BY_NAME[operand[0]], operand[1])
        for index, operand in enumerate(sample.operands)
    ]


def _generator(operand: object, place: str) -> np.random.Generator:
    return np.random.default_rng(int(of_text(str(operand), place), 16))


def _draw(generator: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.is_float:
        return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy)
    low, high = {"bool": (0, 2), "uint": (0, 20), "int": (-9, 10)}[dtype.kind]
    return np.asarray(generator.integers(low, high, shape)).astype(dtype.numpy)


def one_node(
    op: OpDef, sample: Sample, arrays: Sequence[np.ndarray], ops: Mapping[str, OpDef], symbolic: bool = False
) -> Module:
    """A module whose main function applies `op` once, as in the sample, to parameters of the arrays' types.

    An operand named `state` (only the first can be) becomes a state of the function. With `symbolic` each extent of
    each operand is a symbol of its own. Raises `InferError` where the op refuses the sample.
    """
    build = Builder()
    operands = [
        build.param(_type_of(op, index, array, symbolic), f"{_operand_name(op, index)}{index}")
        for index, array in enumerate(arrays)
    ]
    states = [value for value in operands if isinstance(value.type, State)]
    build.params[:] = [*operands[len(states) :], *states]
    attrs: dict[str, Any] = dict(sample.attrs)
    regions = [parse_region(text, ops) for text in sample.regions]
    results = build.emit(op, *operands, regions=regions, **attrs)
    outputs = [value for value in results if isinstance(value.type, Tensor)]
    versions = [value for value in results if isinstance(value.type, State)] or states
    names = tuple(f"y{index}" for index in range(len(outputs)))
    return Module({"main": Function("main", build.graph(*outputs, *versions), len(states), names)})


def _operand_name(op: OpDef, index: int) -> str:
    return op.operands[min(index, len(op.operands) - 1)].rstrip("?*") if op.operands else "x"


def _type_of(op: OpDef, index: int, array: np.ndarray, symbolic: bool) -> Type:
    shape = tuple(dims.symbol(f"d{index}_{axis}") if symbolic else extent for axis, extent in enumerate(array.shape))
    tensor = Tensor(from_numpy(array.dtype), shape)
    return State(tensor) if _operand_name(op, index) == "state" else tensor
