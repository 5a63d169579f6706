"""Every family of translators against ONNX Runtime, with known extents and with symbolic ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx_cases import assert_agrees, assert_close, one_node, run, run_onnxruntime

from relume.frontends.onnx import load
from relume.frontends.onnx.calls import TRANSLATORS

_GENERATOR = np.random.default_rng(7)


def f32(*shape: int) -> np.ndarray:
    return _GENERATOR.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(f32(*shape)) + 0.1).astype(np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


U8 = np.arange(0, 240, 20, np.uint8).reshape(3, 4)


def ints(*shape: int) -> np.ndarray:
    return _GENERATOR.integers(-9, 9, shape).astype(np.int32)


def bools(*shape: int) -> np.ndarray:
    return _GENERATOR.integers(0, 2, shape).astype(bool)


SPECIALS = np.array([0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 80, -80, np.inf, -np.inf, np.nan], np.float32)


@dataclass(frozen=True)
class Case:
    op: str
    arrays: tuple[np.ndarray, ...]
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)
    attrs: Mapping[str, object] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    symbolic: bool = True
    """Whether the case also works where every extent of its inputs is a symbol."""

    def __str__(self) -> str:
        attrs = ",".join(f"{name}={value}" for name, value in self.attrs.items())
        shapes = ",".join(str(list(array.shape)) for array in self.arrays)
        held = ",".join(f"{place}:{array.tolist()}" for place, array in self.constants.items() if array.size < 9)
        return f"{self.op}-{self.opset}({shapes};{held};{attrs})".replace(" ", "")


def case(op: str, *arrays: np.ndarray, **rest: object) -> Case:
    known = {name: rest.pop(name) for name in ("constants", "opset", "outputs", "symbolic") if name in rest}
    return Case(op, arrays, attrs=rest, **known)  # type: ignore[arg-type]


UNARY = [
    *(case(op, SPECIALS) for op in ["Abs", "Ceil", "Exp", "Floor", "Neg", "Relu", "Sigmoid", "Sign", "Tanh"]),
    *(case(op, positive(3, 4)) for op in ["Erf", "Log", "Reciprocal", "Round", "Sqrt", "Softsign", "Softplus"]),
    *(
        case(op, f32(3, 4))
        for op in [
            "Erf",
            "Round",
            "Softplus",
            "Softsign",
            "HardSwish",
            "Elu",
            "Selu",
            "Celu",
            "LeakyRelu",
            "HardSigmoid",
        ]
    ),
    *(
        case(op, np.append(SPECIALS[:-2], np.float32(0.3)))
        for op in ["Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"]
    ),
    case("Not", bools(5)),
    case("BitwiseNot", ints(7), opset=18),
    case("IsNaN", SPECIALS),
    case("IsInf", SPECIALS),
    case("IsInf", SPECIALS, detect_negative=0),
    case("Identity", f32(2, 3)),
    case("Elu", f32(9), alpha=0.3),
    case("Selu", f32(9), alpha=1.2, gamma=0.9),
    case("LeakyRelu", f32(9), alpha=0.2),
    case("LeakyRelu", SPECIALS),
    case("HardSigmoid", f32(9), alpha=0.3, beta=0.4),
    case("ThresholdedRelu", f32(9), alpha=0.7),
    case("Shrink", f32(9), lambd=0.4, bias=0.1),
    case("Shrink", ints(9), lambd=3.0, bias=2.0),
    case("Shrink", np.arange(9, dtype=np.uint8), lambd=3.0, bias=2.0),
    case("Mish", f32(9), opset=18),
    case("Gelu", f32(9), opset=20),
    case("Gelu", f32(9), opset=20, approximate="tanh"),
    case("Clip", f32(3, 4), constants={1: np.float32(-0.5), 2: np.float32(0.5)}),
    case("Clip", f32(3, 4), constants={1: np.float32(0.1)}),
    case("Clip", f32(3, 4), opset=6, min=-0.5, max=0.25),
    case("Clip", SPECIALS[:-3], opset=6, min=-0.5),
    *(case("Cast", SPECIALS[:10], to=to) for to in (1, 6, 7, 9, 10, 11)),
    case("Cast", bools(4), to=1),
    case("CastLike", f32(3), i64(1, 2, 3)),
]

BROADCASTING = [
    *(
        case(op, f32(2, 3, 4), f32(3, 1))
        for op in ["Add", "Sub", "Mul", "Div", "Min", "Max", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
    ),
    *(case(op, ints(5, 4), ints(4)) for op in ["Add", "Sub", "Mul", "Max", "Min", "Equal", "Less"]),
    *(case(op, bools(2, 3), bools(3)) for op in ["And", "Or", "Xor", "Equal"]),
    case("Div", ints(40), np.array([3], np.int32)),
    case("Div", ints(40), np.array([-3], np.int32)),
    case("Pow", positive(3, 4), f32(4)),
    case("Pow", positive(3, 4), i64(2, 3, 0, 1)),
    case("Mod", ints(40), np.array([3], np.int32)),
    case("Mod", ints(40), np.array([-3], np.int32)),
    case("Mod", ints(40), np.array([3], np.int32), fmod=1),
    case("Mod", f32(5, 8), f32(8), fmod=1),
    *(case(f"Bitwise{kind}", ints(5, 4), ints(4), opset=18) for kind in ["And", "Or", "Xor"]),
    *(
        case("BitShift", np.array([1, 3, 200, 255], np.uint32), np.array([1, 0, 31, 7], np.uint32), direction=way)
        for way in ["LEFT", "RIGHT"]
    ),
    case("GreaterOrEqual", SPECIALS, SPECIALS[::-1].copy()),
    case("Where", bools(3, 1), f32(4), f32(2, 1, 1)),
    case("PRelu", f32(2, 3, 4), f32(3, 1)),
    *(case(op, f32(2, 3), f32(3), f32(1)) for op in ["Sum", "Mean", "Max", "Min"]),
    case("Sum", f32(2, 3)),
]

REDUCTIONS = [
    *(
        case(f"Reduce{kind}", positive(2, 3, 4), opset=opset, axes=[1, -1], keepdims=keep, symbolic=kind != "Prod")
        for kind in ["Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]
        for opset, keep in ((11, 0), (13, 1))
    ),
    *(
        case(f"Reduce{kind}", f32(2, 3, 5), opset=13)
        for kind in ["Mean", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp"]
    ),
    case("ReduceProd", f32(2, 3, 5), opset=13, symbolic=False),
    case("ReduceSum", f32(2, 3), opset=11, axes=[0]),
    case("ReduceSum", f32(2, 3), constants={1: i64(-1)}, opset=13, keepdims=0),
    case("ReduceSum", f32(2, 3), opset=13),
    case("ReduceSum", f32(2, 3), constants={1: np.zeros(0, np.int64)}, opset=13, noop_with_empty_axes=1),
    case("ReduceMax", f32(2, 3), constants={1: i64(0)}, opset=18),
    case("ReduceMean", ints(4, 5), opset=13, axes=[1]),
    case("ArgMax", f32(3, 4), axis=1),
    case("ArgMax", np.array([[1, 3, 3], [2, 2, 0]], np.float32), axis=-1, keepdims=0, select_last_index=1),
    case("ArgMin", np.array([[1, 3, 1], [2, 2, 2]], np.float32), axis=1),
    case("ArgMin", np.array([[1, -(2**31), 1]], np.int32), axis=1, symbolic=False),
    case("ArgMax", f32(3, 4), opset=11),
]

LINALG = [
    case("Einsum", f32(2, 3, 4), f32(2, 4, 5), equation="bij,bjk->bik"),
    case("Einsum", f32(2, 1, 3, 4), f32(1, 7, 4, 5), equation="...ij, ...jk -> ...ik"),
    case("Einsum", f32(4, 4), equation="ii->i"),
    case("Einsum", f32(2, 3, 4), f32(4, 5), f32(3, 6), equation="abc,cd,be->ade"),
    case("Einsum", f32(3), f32(4), equation="i,j"),
    case("MatMulInteger", U8, U8.T.copy(), opset=10),
    case("MatMulInteger", U8, U8.T.copy(), np.array(3, np.uint8), np.array(130, np.uint8), opset=10),
    case("ConvInteger", U8.reshape(1, 3, 2, 2), U8.reshape(1, 3, 2, 2), np.array(7, np.uint8), opset=10),
    case("MatMul", f32(3, 4), f32(4, 5)),
    case("MatMul", f32(4), f32(4, 5)),
    case("MatMul", f32(3, 4), f32(4)),
    case("MatMul", f32(4), f32(4)),
    case("MatMul", f32(2, 3, 4), f32(4)),
    case("MatMul", f32(4), f32(2, 4, 5)),
    case("MatMul", f32(2, 1, 3, 4), f32(3, 4, 2)),
    case("Gemm", f32(3, 4), f32(4, 5), f32(5)),
    case("Gemm", f32(4, 3), f32(5, 4), f32(3, 1), alpha=0.5, beta=2.0, transA=1, transB=1),
    case("Gemm", f32(3, 4), f32(4, 5)),
    case("Gemm", f32(3, 4), f32(4, 5), f32(1), opset=9),
]

CONVOLUTION = [
    case("Conv", f32(2, 3, 9, 8), constants={1: f32(4, 3, 3, 3), 2: f32(4)}, strides=[2, 1], pads=[1, 0, 2, 1]),
    case("Conv", f32(1, 4, 9, 8), constants={1: f32(6, 2, 3, 2)}, group=2, dilations=[2, 3]),
    case("Conv", f32(1, 4, 9), constants={1: f32(4, 1, 3)}, group=4),
    case("Conv", f32(1, 2, 5, 6, 4), constants={1: f32(3, 2, 2, 3, 2)}),
    *(
        case("Conv", f32(1, 2, height, 8), constants={1: f32(3, 2, 3, 4)}, auto_pad=mode, strides=strides)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
        for strides in ([1, 1], [2, 3])
        for height in (7, 8)
    ),
    case("Conv", f32(1, 2, 7, 8), f32(3, 2, 3, 4), symbolic=False),
]

TRANSPOSED = [
    case("ConvTranspose", f32(1, 2, 3, 4), constants={1: f32(2, 3, 3, 2)}, strides=[2, 3], pads=[1, 0, 2, 1]),
    case("ConvTranspose", f32(2, 4, 5), constants={1: f32(4, 3, 3), 2: f32(6)}, group=2, dilations=[2]),
    case("ConvTranspose", f32(1, 2, 3, 3), constants={1: f32(2, 1, 3, 3)}, strides=[2, 2], output_padding=[1, 1]),
    case("ConvTranspose", f32(1, 2, 3, 3), constants={1: f32(2, 1, 1, 1)}, pads=[1, 0, 0, 1]),
    case("ConvTranspose", f32(1, 4, 5), constants={1: f32(4, 3, 4), 2: f32(6)}, group=2, strides=[2], pads=[1, 2]),
    case("ConvTranspose", f32(1, 2, 3, 2), constants={1: f32(2, 3, 2, 4), 2: f32(3)}, strides=[2, 2]),
    case("ConvTranspose", f32(1, 1, 3), constants={1: f32(1, 1, 2), 2: f32(1)}, strides=[3], output_shape=[10]),
    case("ConvTranspose", np.float32([[[1, np.nan, 1]]]), constants={1: f32(1, 1, 2)}, strides=[3], pads=[1, 0]),
    *(
        case("ConvTranspose", f32(1, 2, 3, 4), constants={1: f32(2, 1, 3, 4)}, strides=[2, 2], auto_pad=mode)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case(
        "ConvTranspose",
        f32(1, 2, 3, 4),
        constants={1: f32(2, 1, 3, 3)},
        strides=[3, 2],
        output_shape=[10, 8],
        symbolic=False,
    ),
]

POOLING = [
    case("MaxPool", f32(1, 2, 9, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", f32(1, 2, 9), kernel_shape=[3], dilations=[2]),
    case("MaxPool", f32(1, 2, 10, 9), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", f32(1, 2, 8, 8), kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1, pads=[0, 0, 1, 1]),
    case("MaxPool", f32(1, 2, 8, 7), opset=8, kernel_shape=[2, 3]),
    case("LpPool", f32(1, 2, 9, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("LpPool", f32(1, 2, 9), kernel_shape=[3], p=1),
    case("LpPool", f32(1, 2, 9), kernel_shape=[3], p=3, opset=18, dilations=[2], ceil_mode=1),
    case("LpPool", f32(1, 2, 9, 7), kernel_shape=[3, 2], p=2, strides=[2, 2], auto_pad="SAME_UPPER"),
    case("GlobalLpPool", f32(2, 3, 4, 5)),
    case("GlobalLpPool", f32(2, 3, 4), p=1),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("AveragePool", f32(1, 2, 9, 8), kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    case("AveragePool", f32(1, 2, 10, 9), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=19),
    *(
        case(op, f32(1, 2, 7, 8), kernel_shape=[3, 2], auto_pad=mode, strides=strides)
        for op in ("MaxPool", "AveragePool")
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for strides in ([1, 1], [2, 3])
    ),
    case("GlobalAveragePool", f32(2, 3, 4, 5)),
    case("GlobalMaxPool", f32(2, 3, 7)),
]

NORMALIZATION = [
    case("BatchNormalization", f32(2, 3, 4, 5), f32(3), f32(3), f32(3), positive(3), epsilon=1e-3),
    case("BatchNormalization", f32(2, 3), f32(3), f32(3), f32(3), positive(3), opset=9),
    case("InstanceNormalization", f32(2, 3, 4, 5), f32(3), f32(3), epsilon=1e-3),
    case("LayerNormalization", f32(2, 3, 4), f32(4), f32(4)),
    case("LayerNormalization", f32(2, 3, 4), f32(3, 4), axis=1, epsilon=1e-3),
    case("LayerNormalization", f32(2, 3, 4), f32(4), f32(4), outputs=3),
    case("GroupNormalization", f32(2, 4, 3, 5), f32(4), f32(4), num_groups=2, opset=21),
    case("MeanVarianceNormalization", f32(2, 3, 4, 5)),
    case("LpNormalization", f32(3, 4), axis=0, p=1),
    case("LpNormalization", f32(3, 4)),
    case("LRN", f32(1, 7, 3, 3), size=3, alpha=0.1, beta=0.6, bias=1.5),
    *(
        case(op, f32(2, 3, 4), axis=axis, opset=op_set)
        for op in ("Softmax", "LogSoftmax")
        for axis in (1, -1)
        for op_set in (11, 13)
    ),
    case("Softmax", f32(2, 3, 4), opset=11),
    case("Hardmax", np.array([[1, 3, 3], [2, 0, 2]], np.float32), symbolic=False),
    case("Dropout", f32(2, 3)),
    case("Dropout", f32(2, 3), outputs=2),
]

MOVEMENT = [
    case("Reshape", f32(2, 3, 4), constants={1: i64(4, 6)}),
    case("Reshape", f32(2, 3, 4), constants={1: i64(0, -1)}),
    case("Reshape", f32(2, 3, 4), constants={1: i64(-1, 0, 2)}, symbolic=False),
    case("Reshape", f32(0, 3), constants={1: i64(3, 0)}, opset=14, allowzero=1),
    *(case("Flatten", f32(2, 3, 4), axis=axis) for axis in (0, 1, 2, 3, -1)),
    case("Transpose", f32(2, 3, 4)),
    case("Transpose", f32(2, 3, 4), perm=[1, 2, 0]),
    case("Squeeze", f32(1, 3, 1, 2), constants={1: i64(0, -2)}),
    case("Squeeze", f32(1, 3, 1, 2), opset=11, axes=[2]),
    case("Squeeze", f32(1, 3, 1, 2), symbolic=False),
    case("Unsqueeze", f32(3, 2), constants={1: i64(0, -1)}),
    case("Unsqueeze", f32(3, 2), opset=11, axes=[1]),
    case("Concat", f32(2, 3), f32(2, 1), f32(2, 2), axis=-1, symbolic=False),
    case("Concat", f32(2, 3), f32(4, 3), axis=0),
    case("Split", f32(2, 7), constants={1: i64(3, 0, 4)}, axis=1, outputs=3),
    case("Split", f32(2, 6), opset=11, axis=-1, split=[2, 4], outputs=2),
    case("Split", f32(2, 6), axis=1, outputs=3),
    case("Split", f32(2, 7), axis=1, outputs=3, opset=18, num_outputs=3),
    case("Slice", f32(7, 6), opset=9, starts=[1, -3], ends=[-1, 99], axes=[0, 1]),
    case("Slice", f32(7, 6), constants={1: i64(-2, 0), 2: i64(-(2**63), 2**63 - 1), 3: i64(1, 0), 4: i64(-2, 3)}),
    case("Slice", f32(7), constants={1: i64(5), 2: i64(2)}),
    case("Slice", f32(7), constants={1: i64(-99), 2: i64(99)}),
    case("Slice", f32(7), constants={1: i64(99), 2: i64(-99), 3: i64(0), 4: i64(-1)}),
    case("Pad", f32(2, 3), constants={1: i64(1, 0, 0, 2), 2: np.float32(1.5)}),
    case("Pad", f32(4, 5), constants={1: i64(-1, 1, -1, 0)}),
    case("Pad", f32(2, 3), opset=10, pads=[0, 1, 1, 0], value=2.5),
    case("Pad", f32(2, 3), constants={1: i64(1, 2), 2: np.float32(0), 3: i64(-1)}, opset=18),
    *(case("Pad", f32(4, 5), constants={1: i64(1, 3, 0, 2)}, mode=mode) for mode in ("reflect", "edge")),
    case("Pad", f32(4, 5), constants={1: i64(1, 3, 0, 2)}, mode="wrap", opset=19),
    case("Expand", f32(3, 1), constants={1: i64(2, 1, 4)}),
    case("Expand", f32(3, 4), constants={1: i64(1, 1)}),
    case("Tile", f32(2, 3), constants={1: i64(2, 3)}),
    case("Tile", f32(2, 3), constants={1: i64(1, 1)}),
    case("DepthToSpace", f32(1, 8, 2, 3), blocksize=2),
    case("DepthToSpace", f32(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", f32(1, 2, 4, 6), blocksize=2),
    case("Trilu", f32(2, 3, 4)),
    case("Trilu", f32(4, 3), constants={1: np.array(-1)}, upper=0),
    case("Trilu", f32(4, 3), np.array(1)),
    case("Pad", f32(4, 5), np.array(2.5, np.float32), constants={1: i64(1, 0, -1, 2)}),
]

INDEX = [
    case("Gather", f32(5, 3), i64(0, -1, 4)),
    case("Gather", f32(2, 5), constants={1: np.array(-2)}, axis=1),
    case("GatherElements", f32(3, 4), np.array([[0, -1], [2, 1]])),
    case("GatherElements", f32(3, 4), np.array([[0, -1, 3, 3, 3], [2, 1, 0, 0, 0]], np.int32), axis=1),
    case("GatherND", f32(2, 3, 4), np.array([[1, -1], [0, 2]]), symbolic=False),
    case("GatherND", f32(2, 3, 4), np.array([[[1, -1]], [[0, 3]]]), batch_dims=1, symbolic=False),
    case("Scatter", f32(3, 4), np.array([[1, 0, 2, -1]]), f32(1, 4), opset=9, axis=1),
    *(
        case(
            "ScatterElements",
            f32(3, 4),
            np.array([[1, 2, 2], [0, 0, 0]]),
            f32(2, 3),
            axis=axis,
            reduction=kind,
            opset=18,
        )
        for axis in (0, -1)
        for kind in ("none", "add", "mul", "max", "min")
        if kind != "none" or axis
    ),
    *(
        case("ScatterND", f32(3, 4), np.array([[1], [-2], [0]]), f32(3, 4), reduction=kind, opset=18)
        for kind in ("none", "add", "mul", "max", "min")
    ),
    case("ScatterND", f32(3, 4), np.array([[[1, 2], [0, -1]]]), f32(1, 2)),
    case("ReverseSequence", f32(5, 2, 3), i64(4, 1)),
    case("ReverseSequence", f32(2, 5), i64(5, 3), batch_axis=0, time_axis=1),
    case("CumSum", f32(3, 4), constants={1: np.array(-1)}),
    case("CumSum", f32(3, 4), constants={1: np.array(0)}, exclusive=1, reverse=1),
    case("CumSum", ints(3, 4), constants={1: np.array(1)}, reverse=1),
    case("TopK", f32(3, 8), constants={1: i64(3)}, outputs=2),
    case("TopK", ints(8, 3), constants={1: i64(2)}, outputs=2, axis=0, largest=0),
    case("EyeLike", f32(3, 4)),
    case("EyeLike", f32(3, 4), k=-1, dtype=7),
    case("AffineGrid", f32(2, 2, 3), constants={1: i64(2, 1, 3, 4)}, opset=20),
    case("NegativeLogLikelihoodLoss", f32(2, 3), i64(0, 2)),
    case("OneHot", i64(0, 2, -1, 7), constants={1: i64(3), 2: np.array([0.5, 2], np.float32)}),
    case("OneHot", i64(0, 2), constants={1: i64(3), 2: np.array([0, 1], np.float32)}, axis=0),
]

SHAPES = [
    case("Shape", f32(2, 3, 4)),
    case("Shape", f32(2, 3, 4), start=-2, end=2),
    case("Size", f32(2, 3, 4)),
]

RESIZE = [
    *(
        case(
            "Resize",
            f32(1, 2, 4, 5),
            constants={1: np.zeros(0, np.float32), 2: np.array([1, 1, 2, 1.6], np.float32)},
            mode=mode,
            coordinate_transformation_mode=coordinates,
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    case(
        "Resize",
        f32(1, 2, 4, 5),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        constants={1: np.zeros(0, np.float32), 2: np.array([1, 1, 2, 3], np.float32)},
    ),
    case(
        "Resize",
        f32(1, 2, 4, 5),
        mode="linear",
        constants={1: np.zeros(0, np.float32), 2: np.zeros(0, np.float32), 3: i64(1, 2, 3, 9)},
    ),
    case("Upsample", f32(1, 1, 4, 5), constants={1: np.array([1, 1, 2, 3], np.float32)}, opset=9),
    case("Upsample", f32(1, 1, 4, 5), mode="linear", scales=[1.0, 1.0, 2.0, 2.0], opset=7),
    *(
        case(
            "Resize",
            f32(1, 1, 9, 5),
            mode=mode,
            antialias=1,
            opset=18,
            symbolic=False,
            constants={1: np.zeros(0, np.float32), 2: np.array([1, 1, 0.4, 0.7], np.float32)},
        )
        for mode in ("linear", "cubic")
    ),
    *(
        case(
            "Resize",
            f32(1, 1, 9, 5),
            keep_aspect_ratio_policy=policy,
            axes=[2, 3],
            opset=18,
            constants={1: np.zeros(0, np.float32), 2: np.zeros(0, np.float32), 3: i64(6, 7)},
        )
        for policy in ("not_larger", "not_smaller")
    ),
    *(
        case(
            "Resize",
            f32(1, 1, 5, 5),
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            keep_aspect_ratio_policy=policy,
            axes=[2, 3],
            opset=18,
            constants={1: np.array([0.2, 0.1, 0.9, 0.7], np.float32), 2: np.zeros(0, np.float32), 3: i64(6, 7)},
        )
        for policy in ("not_larger", "not_smaller")
        for mode in ("nearest", "linear")
    ),
    case(
        "Resize",
        f32(1, 1, 4, 5),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=3.0,
        constants={
            1: np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 1.1], np.float32),
            2: np.zeros(0, np.float32),
            3: i64(1, 1, 3, 6),
        },
    ),
]

SAMPLING = [
    *(
        case("GridSample", f32(2, 3, 4, 5), f32(2, 3, 2, 2), mode=mode, padding_mode=padding, align_corners=corners)
        for mode, corners in (("bilinear", 0), ("nearest", 1), ("bicubic", 0))
        for padding in ("zeros", "border", "reflection")
    ),
    *(
        case(
            "RoiAlign", f32(2, 3, 7, 8), np.array([[0, 1, 4, 5], [2.5, -1, 9, 6.5]], np.float32), i64(1, 0),
            mode=mode, sampling_ratio=2, output_height=2, output_width=3, spatial_scale=0.8, opset=16,
            coordinate_transformation_mode=coordinates,
        )
        for mode, coordinates in (("avg", "half_pixel"), ("max", "output_half_pixel"))
    ),
    case(
        "Col2Im", f32(1, 8, 12), constants={1: i64(5, 6), 2: i64(2, 2)}, opset=18, pads=[0, 1, 1, 0],
        dilations=[2, 1], strides=[1, 2],
    ),
    case("Resize", f32(1, 1, 4, 5), constants={1: np.array([1, 1, 2, 2], np.float32)}, opset=10),
]  # fmt: skip

QUANT = [
    case("QuantizeLinear", f32(3, 4), constants={1: np.float32(0.05), 2: np.uint8(100)}),
    case("QuantizeLinear", f32(3, 4), constants={1: positive(4), 2: np.array([1, 2, 3, 4], np.int8)}, axis=1),
    case(
        "DequantizeLinear",
        _GENERATOR.integers(-128, 127, (3, 4)).astype(np.int8),
        constants={1: np.float32(0.05), 2: np.int8(3)},
    ),
    case("DequantizeLinear", _GENERATOR.integers(0, 255, (3, 4)).astype(np.uint8), constants={1: positive(3)}, axis=0),
]

TOO_NEW = {"CumProd", "TensorScatter"}
"""What the ONNX Runtime of the tests does not know: the conformance tests have them."""

FAMILIES = (
    *(UNARY, BROADCASTING, REDUCTIONS, LINALG, CONVOLUTION, TRANSPOSED, POOLING),
    *(NORMALIZATION, MOVEMENT, INDEX, SHAPES, RESIZE, SAMPLING, QUANT),
)
CASES = [entry for family in FAMILIES for entry in family]


def _made(entry: Case, symbolic: bool) -> tuple:
    return one_node(
        entry.op,
        entry.arrays,
        entry.constants,
        outputs=entry.outputs,
        opset=entry.opset,
        symbolic=symbolic,
        **entry.attrs,
    )


@pytest.mark.parametrize("entry", CASES, ids=str)
def test_a_node_computes_what_onnxruntime_computes(entry: Case) -> None:
    assert_agrees(*_made(entry, symbolic=False))


@pytest.mark.parametrize("entry", [entry for entry in CASES if entry.symbolic], ids=str)
def test_symbolic_extents_change_nothing(entry: Case) -> None:
    model, feeds = _made(entry, symbolic=True)
    assert_close(run(load(model), feeds), run_onnxruntime(model, feeds))


def test_every_translator_has_a_case_or_a_test_of_its_own() -> None:
    elsewhere = {"Constant", "ConstantOfShape", "Range", "NonZero", "If", "Loop"} | TOO_NEW
    elsewhere |= {"BitCast", "Swish"}  # ONNX Runtime does not have them; the backend tests do.
    covered = {entry.op for entry in CASES} | elsewhere
    assert {op for _, op in TRANSLATORS} - covered == set()
