"""Ops under element types and attributes that nobody wrote a sample for."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from relume.base import dims, dtypes
from relume.base.dtypes import DType
from relume.graph.opdef import InferError, OpDef, Sample
from relume.graph.types import Attr
from relume.ops import OPS
from relume.ops.sampling import arrays_of, one_node
from relume.reference import evaluate

NONSENSE: tuple[Attr, ...] = (
    1.5, float("nan"), True, "text", -1, 10**30, dims.symbol("N"), dtypes.f32, (), (1,), (1.5,), ((1,),),
)  # fmt: skip

every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def computed(op: OpDef) -> list[Sample]:
    return [sample for sample in op.samples() if sample.error is None and not sample.regions]


def retyped(sample: Sample, dtype: DType) -> Sample:
    """The sample with `dtype` wherever it has f32."""

    def change(operand: object) -> object:
        if isinstance(operand, tuple):
            return (dtype.name if operand[0] == "f32" else operand[0], operand[1])
        fits = isinstance(operand, np.ndarray) and operand.dtype == np.float32 and np.isfinite(operand).all()
        with np.errstate(all="ignore"):
            return operand.astype(dtype.numpy) if fits else operand  # type: ignore[attr-defined]

    return Sample(tuple(map(change, sample.operands)), sample.attrs)


@every_op
def test_a_reference_computes_every_element_type_that_infer_accepts_without_a_warning(op: OpDef) -> None:
    for sample in computed(op)[:8]:
        for dtype in dtypes.ALL:
            changed = retyped(sample, dtype)
            arrays = arrays_of(changed)
            try:
                fn = one_node(op, changed, arrays, OPS).main
            except InferError:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                evaluate(fn, arrays[fn.state_count :], arrays[: fn.state_count])


@every_op
def test_nonsense_in_an_attribute_is_refused_or_harmless(op: OpDef) -> None:
    """Whatever gets past `infer` has a result of the type that it gave; nothing else than `InferError` is raised."""
    for sample in computed(op)[:3]:
        arrays = arrays_of(sample)
        for attr in op.attrs:
            for value in NONSENSE:
                changed = Sample(sample.operands, {**sample.attrs, attr.name: value})
                try:
                    fn = one_node(op, changed, arrays, OPS).main
                except InferError:
                    continue
                if all(isinstance(dim, int) and dim < 1000 for result in fn.graph.results for dim in result.dims):
                    evaluate(fn, arrays[fn.state_count :], arrays[: fn.state_count])
