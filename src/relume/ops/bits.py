"""Bit operations on integers, element by element: two's complement where the type is signed. Nothing is promoted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, InferError, OpDef, Sample
from relume.graph.types import Attr, Tensor
from relume.ops.arithmetic import Resolved, quietly
from relume.ops.elementwise import COMMUTATIVE, ELEMENTWISE, binary, unary
from relume.ops.inference import infer_tensors

_INTEGER = ("int", "uint")
_DISCRETE = NO_GRADIENT("integer valued")


def _shift_left(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    inside = (b >= 0) & (b < a.dtype.itemsize * 8)
    zero = a.dtype.type(0)
    return np.where(inside, np.left_shift(a, np.where(inside, b, zero)), zero)


def _shift_right(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    # What is left in the end: the sign bit everywhere, in two steps for want of one.
    ended = np.right_shift(np.right_shift(a, a.dtype.type(bits - 1)), a.dtype.type(1))
    return np.where(inside, np.right_shift(a, np.where(inside, b, a.dtype.type(0))), ended)


bit_and = binary(
    "bit_and", "Conjunction of each bit.", quietly(np.bitwise_and), "BitwiseAnd", _INTEGER, gradient=_DISCRETE,
    traits=COMMUTATIVE,
)  # fmt: skip
bit_or = binary(
    "bit_or", "Disjunction of each bit.", quietly(np.bitwise_or), "BitwiseOr", _INTEGER, gradient=_DISCRETE,
    traits=COMMUTATIVE,
)  # fmt: skip
bit_xor = binary(
    "bit_xor", "1 where the bits differ.", quietly(np.bitwise_xor), "BitwiseXor", _INTEGER, gradient=_DISCRETE,
    traits=COMMUTATIVE,
)  # fmt: skip
bit_not = unary("bit_not", "Negation of each bit.", quietly(np.bitwise_not), "BitwiseNot", _INTEGER, gradient=_DISCRETE)
shift_left = binary(
    "shift_left",
    "The bits of a moved up by b places; what leaves the type is lost. 0 where b is negative, or at least the width of "
    "the type.",
    quietly(_shift_left),
    NOT_YET,
    _INTEGER,
    gradient=_DISCRETE,
)
shift_right = binary(
    "shift_right",
    "The bits of a moved down by b places, the sign bit repeated (0 for an unsigned type). Where b is negative, or at "
    "least the width of the type, only that is left: -1 for a negative a, else 0.",
    quietly(_shift_right),
    NOT_YET,
    _INTEGER,
    gradient=_DISCRETE,
)


@infer_tensors
def _infer_bitcast(x: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    to = attrs["to"]
    if not isinstance(to, DType) or to.bytes != x.dtype.bytes:
        fitting = [dtype for dtype in dtypes.ALL if dtype.bytes == x.dtype.bytes]
        raise InferError("to must be an element type of the same size", ", ".join(map(str, fitting)), to)
    return Tensor(to, x.dims)


def _bitcast(x: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    to = attrs["to"]
    assert isinstance(to, DType)
    return (x.view(np.uint8) != 0 if to is dtypes.bool_ else x.view(to.numpy),)


_PATTERNS = np.array([0, 1, 2, -1, 2**31 - 1, -(2**31), 0x3F800000, 0x7FC00001, 0x7F800001, -(2**23)], np.int32)

bitcast = OpDef(
    name="bitcast",
    doc="The bits of x as another element type of the same size, NaNs with their payload. A bool is a byte of 0 or 1; "
    "as a bool, any byte but 0 is true.",
    operands=("x",),
    infer=_infer_bitcast,
    reference=_bitcast,
    samples=lambda: [
        Sample((_PATTERNS,), {"to": dtypes.f32}),
        Sample((_PATTERNS,), {"to": dtypes.u32}),
        Sample((("f32", (2, 3)),), {"to": dtypes.i32}),
        Sample((("f64", (3,)),), {"to": dtypes.i64}),
        Sample((("f16", (5,)),), {"to": dtypes.u16}),
        Sample((np.arange(-5, 5, dtype=np.int16),), {"to": dtypes.bf16}),
        Sample((("bool", (0, 3)),), {"to": dtypes.u8}),
        Sample((np.array([0, 1, 2, 255], np.uint8),), {"to": dtypes.bool_}),
        Sample((("f32", ()),), {"to": dtypes.f32}),
        Sample((("f32", (3,)),), {"to": dtypes.i64}, error="same size"),
        Sample((("f32", (3,)),), {"to": "i32"}, error="same size"),
    ],
    gradient=_DISCRETE,
    attrs=(AttrDef("to", "dtype"),),
    to_onnx=NOT_YET,
    traits=ELEMENTWISE,
)

OPS = (bit_and, bit_or, bit_xor, bit_not, shift_left, shift_right, bitcast)
