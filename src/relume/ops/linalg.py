"""Products of matrices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dims
from relume.base.targets import BLOCK
from relume.graph.opdef import NOT_YET, AttrDef, Never, OpDef, Sample, Trait
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved, narrow, widen
from relume.ops.inference import NUMBER, infer_tensors

PACKED = Never("a layout inside the compiler; a model is exported before its operands are packed")


@infer_tensors
def _infer_matmul(a: Tensor, b: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    dtype = inference.want_same_dtype(a, b)
    inference.want_kind("a", a, NUMBER)
    inference.want_min_rank("a", a, 2)
    inference.want_min_rank("b", b, 2)
    inference.want_dim("the rows of b", b.dims[-2], a.dims[-1])
    return Tensor(dtype, (*inference.broadcast(a.dims[:-2], b.dims[:-2]), a.dims[-2], b.dims[-1]))


def _matmul(a: np.ndarray, b: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return (narrow(np.matmul(widen(a), widen(b)), a.dtype),)


matmul = OpDef(
    name="matmul",
    doc="y[.., i, j] = sum over k of a[.., i, k] * b[.., k, j]; leading axes broadcast. Integers wrap.",
    operands=("a", "b"),
    infer=_infer_matmul,
    reference=_matmul,
    samples=lambda: [
        Sample((("f32", (3, 4)), ("f32", (4, 5)))),
        Sample((("f32", (1, 1)), ("f32", (1, 1)))),
        Sample((("f32", (33, 70)), ("f32", (70, 41)))),
        Sample((("f32", (2, 3, 4)), ("f32", (2, 4, 5)))),
        Sample((("f32", (2, 3, 4)), ("f32", (4, 5)))),
        Sample((("f32", (2, 1, 3, 4)), ("f32", (3, 4, 2)))),
        Sample((("f32", (3, 0)), ("f32", (0, 5)))),
        Sample((("f32", (0, 3)), ("f32", (3, 5)))),
        Sample((("f64", (3, 4)), ("f64", (4, 2)))),
        Sample((("i32", (3, 4)), ("i32", (4, 2)))),
        Sample((("i8", (2, 1, 3, 5)), ("i8", (3, 5, 37)))),
        Sample((("u64", (3, 0)), ("u64", (0, 2)))),
        Sample((("bf16", (3, 4)), ("bf16", (4, 2))), tolerance=2e-2),
        Sample((("f32", (3, 4)), ("f32", (5, 4))), error="rows of b"),
        Sample((("f32", (4,)), ("f32", (4, 5))), error="rank"),
        Sample((("f32", (2, 3, 4)), ("f32", (3, 4, 5))), error="do not broadcast"),
        Sample((("f32", (3, 4)), ("f64", (4, 5))), error="element types differ"),
    ],
    to_onnx="MatMul",
    traits=frozenset({Trait.INEXACT}),
)


@infer_tensors
def _infer_matmul_packed(a: Tensor, bp: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    dtype = inference.want_same_dtype(a, bp)
    inference.want_kind("a", a, NUMBER)
    inference.want_min_rank("a", a, 2)
    inference.want_min_rank("bp", bp, 3)
    n = inference.dim_attr(attrs, "n")
    inference.want_dim("the lanes of bp", bp.dims[-1], BLOCK)
    inference.want_dim("the rows of bp", bp.dims[-2], a.dims[-1])
    inference.want_dim("the number of panels", bp.dims[-3], dims.ceildiv(n, BLOCK))
    return Tensor(dtype, (*inference.broadcast(a.dims[:-2], bp.dims[:-3]), a.dims[-2], n))


def _matmul_packed(a: np.ndarray, bp: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    panels = np.moveaxis(bp, -3, -2)  # [.., K, P, 16]
    b = panels.reshape(*panels.shape[:-2], panels.shape[-2] * BLOCK)[..., : attrs["n"]]
    return _matmul(a, b, attrs={}, regions=())


matmul_packed = OpDef(
    name="matmul_packed",
    doc="matmul(a, b) where bp holds b [.., K, n] in panels of 16 columns: bp[.., p, k, l] = b[.., k, 16 * p + l], "
    "and 0 where there is no such column.",
    operands=("a", "bp"),
    infer=_infer_matmul_packed,
    reference=_matmul_packed,
    samples=lambda: [
        Sample((("f32", (3, 4)), ("f32", (1, 4, 16))), {"n": 16}),
        Sample((("f32", (1, 7)), ("f32", (2, 7, 16))), {"n": 19}),
        Sample((("f32", (37, 20)), ("f32", (3, 20, 16))), {"n": 41}),
        Sample((("f32", (2, 5, 4)), ("f32", (2, 4, 16))), {"n": 32}),
        Sample((("f32", (2, 5, 4)), ("f32", (2, 1, 4, 16))), {"n": 3}),
        Sample((("f32", (5, 0)), ("f32", (1, 0, 16))), {"n": 3}),
        Sample((("f32", (3, 4)), ("f32", (1, 4, 8))), {"n": 8}, error="lanes"),
        Sample((("f32", (3, 4)), ("f32", (1, 5, 16))), {"n": 8}, error="rows of bp"),
        Sample((("f32", (3, 4)), ("f32", (1, 4, 16))), {"n": 17}, error="number of panels"),
    ],
    attrs=(AttrDef("n", "dim"),),
    gradient=NOT_YET,
    to_onnx=PACKED,
    traits=frozenset({Trait.INEXACT}),
)

OPS = (matmul, matmul_packed)
