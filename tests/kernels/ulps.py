"""How far element-wise functions are from the real ones, in units in the last place, over all exponents of a type.

A function is an ONNX operator, imported and turned into one body of the `map` kernel: so it is measured as models get
it, whether it is one op or several. The yardstick is NumPy's long double (64 bits of significand), or float64 for erf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from harness import AVX2, WIDE_ON_AVX2, compile_kernel, run_kernel
from onnx import TensorProto, helper

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.base.targets import Target
from relume.frontends.onnx import load
from relume.graph.types import Constant, Function, Value
from relume.kernels.elementwise import Step
from relume.kernels.map import MAP
from relume.passes.decompose import decompose

Wide = np.longdouble
_ELEM_TYPES = {
    dtypes.f32: TensorProto.FLOAT,
    dtypes.f64: TensorProto.DOUBLE,
    dtypes.f16: TensorProto.FLOAT16,
    dtypes.bf16: TensorProto.BFLOAT16,
}


@dataclass(frozen=True)
class Measured:
    """An ONNX operator and what it computes, on long doubles. Constants in it are those of the operator."""

    op: str
    exact: Callable[..., np.ndarray]
    operands: int = 1
    attrs: Mapping[str, object] = field(default_factory=dict)
    bound: float = 4.0
    """In units of f32 and f64."""
    dtypes: tuple[DType, ...] = (dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16)

    def __str__(self) -> str:
        return self.op


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(Wide)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ordinary = np.isfinite(x) & np.isfinite(y)  # glibc's powl(-inf, -2^63) is inf.
    return np.where(ordinary, np.power(x, y), np.power(x.astype(np.float64), y.astype(np.float64)))


FUNCTIONS = (
    Measured("Sin", np.sin, bound=1),
    Measured("Cos", np.cos, bound=1),
    Measured("Tan", np.tan),
    Measured("Asin", np.arcsin),
    Measured("Acos", np.arccos),
    Measured("Atan", np.arctan),
    Measured("Sinh", np.sinh),
    Measured("Cosh", np.cosh),
    Measured("Tanh", np.tanh),
    Measured("Asinh", np.arcsinh),
    Measured("Acosh", np.arccosh),
    Measured("Atanh", np.arctanh),
    Measured("Exp", np.exp, bound=1),
    Measured("Log", np.log, bound=1),
    Measured("Sqrt", np.sqrt, bound=0.5),
    Measured("Reciprocal", lambda x: 1 / x, bound=0.5),
    Measured("Erf", _erf),
    Measured("Sigmoid", _sigmoid),
    Measured("Softplus", _softplus),
    Measured("Softsign", lambda x: np.where(np.isinf(x), np.nan, x / (1 + np.abs(x)))),
    Measured("Elu", lambda x: np.where(x < 0, np.expm1(x), x)),
    Measured("Celu", lambda x: np.where(x < 0, np.expm1(x), x), dtypes=(dtypes.f32,)),
    Measured("Mish", lambda x: x * np.tanh(_softplus(x))),
    Measured("Swish", lambda x: x * _sigmoid(x)),
    Measured("Pow", _power, operands=2, bound=2),
    Measured("Mod", np.fmod, operands=2, attrs={"fmod": 1}, bound=0),
)
"""Every element-wise function of ONNX but those that round at most once, and the piecewise linear ones. Gelu, whose
negative tail cancels, has an absolute bound only."""


def body_of(function: Measured, dtype: DType) -> tuple[Step, ...]:
    """The steps that the operator becomes."""
    names = [f"x{index}" for index in range(function.operands)]
    node = helper.make_node(function.op, names, ["y"], **function.attrs)
    kind = _ELEM_TYPES[dtype]
    inputs = [helper.make_tensor_value_info(name, kind, [16]) for name in names]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, [16])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=10)
    return _steps(load(model).main)


def _steps(fn: Function) -> tuple[Step, ...]:
    graph = decompose(fn.graph)
    numbers: dict[Value, int] = {value: index for index, value in enumerate(graph.params)}
    steps: list[Step] = []

    def append(step: Step) -> int:
        steps.append(step)
        return len(graph.params) + len(steps) - 1

    for node in graph.nodes:
        for value in node.operands:
            if isinstance(value, Constant) and value not in numbers:
                item = value.data.reshape(-1)[0]
                numbers[value] = append(("constant", (), (("value", float(item)),), value.dtype.name))
        arguments = tuple(numbers[value] for value in node.operands)
        numbers[node.result] = append((node.op.name, arguments, tuple(node.attrs.items()), node.result.dtype.name))
    assert numbers[graph.results[0]] == len(graph.params) + len(steps) - 1
    return tuple(steps)


def samples(dtype: DType, per_exponent: int, seed: int = 0) -> np.ndarray:
    """Every exponent of both signs (subnormals, infinities and NaNs among them) with the first, the last and random
    significands; the stretches where functions bend; multiples of pi/2. A short float: all there are."""
    if dtype.bytes == 2:
        return np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    rng = np.random.default_rng(seed)
    fraction, bits = np.finfo(dtype.numpy).nmant, dtype.bytes * 8
    exponents = np.arange(2 ** (bits - fraction), dtype=np.uint64).repeat(per_exponent)
    significands = rng.integers(0, 2**fraction, exponents.size, dtype=np.uint64)
    significands[::per_exponent] = 0
    significands[1::per_exponent] = 2**fraction - 1
    every = (exponents << np.uint64(fraction)) | significands
    every = every.astype(np.uint32 if bits == 32 else np.uint64).view(dtype.numpy)
    count = 20 * per_exponent
    quarters = np.arange(-count, count) * (np.pi / 2)
    stretches = [rng.uniform(-size, size, count) for size in (1.5, 12.0, 120.0, 800.0)]
    found = np.concatenate([every, *(part.astype(dtype.numpy) for part in (quarters, *stretches))])
    return np.resize(found, -(-found.size // 64) * 64)


def operands_of(function: Measured, dtype: DType, per_exponent: int) -> list[np.ndarray]:
    """Samples for each operand: of two, in pairs of any magnitudes, and in pairs of like magnitude."""
    x = samples(dtype, per_exponent)
    if function.operands == 1:
        return [x]
    rng = np.random.default_rng(1)
    base = rng.uniform(0.5, 2.0, x.size).astype(dtype.numpy)
    power = rng.uniform(-1000.0, 1000.0, x.size).astype(dtype.numpy)
    return [np.concatenate([x, base, x]), np.concatenate([rng.permutation(x), power, np.roll(x, 7)])]


def run(body: tuple[Step, ...], arrays: list[np.ndarray], target: Target = AVX2) -> np.ndarray:
    """The body on flat arrays."""
    out = np.empty_like(arrays[0])
    params = {"body": body, "outs": (len(arrays) + len(body) - 1,)}
    run_kernel(MAP, [*(("in", array) for array in arrays), ("out", out)], params, target=target)
    return out


def errors(got: np.ndarray, want: np.ndarray, dtype: DType) -> np.ndarray:
    """Distance in the spacing of `dtype` at the exact value; 0 where that is rounded correctly; infinite where only one
    side is a NaN, an infinity or a zero of that sign."""
    with np.errstate(all="ignore"):
        if dtype is dtypes.bf16:
            rounded = want.astype(np.float32).astype(dtype.numpy)
            size = np.maximum(np.abs(want.astype(np.float64)), 2.0**-126)
            spacing = np.exp2(np.floor(np.log2(size)) - 7)
        else:
            rounded = want.astype(dtype.numpy)
            spacing = np.spacing(np.abs(rounded)).astype(Wide)
        numbers, wanted = got.astype(np.float64), rounded.astype(np.float64)
        same = (numbers == wanted) & (np.signbit(numbers) == np.signbit(wanted)) | np.isnan(numbers) & np.isnan(wanted)
        distance = np.abs(got.astype(Wide) - want) / spacing
        both = np.isfinite(numbers) & np.isfinite(wanted) & ~((numbers == 0) & (wanted == 0))
        return np.where(same, 0.0, np.where(both, distance, np.inf)).astype(np.float64)


@dataclass(frozen=True)
class Result:
    """The largest error and where it is; `equal_bits`: whether the AVX-512 schedule gives the same."""

    count: int
    ulp: float
    at: tuple[float, ...]
    equal_bits: bool


def measure(function: Measured, dtype: DType, per_exponent: int) -> Result:
    """Runs `function` on samples of `dtype` with the schedules of both targets."""
    body, arrays = body_of(function, dtype), operands_of(function, dtype, per_exponent)
    with np.errstate(all="ignore"):
        want = function.exact(*(array.astype(Wide) for array in arrays))
    got = run(body, arrays)
    wide = run(body, arrays, WIDE_ON_AVX2)
    error = errors(got, want, dtype)
    worst = int(error.argmax())
    place = tuple(float(array[worst]) for array in arrays)
    return Result(got.size, float(error[worst]), place, got.tobytes() == wide.tobytes())


def timed(function: Measured, dtype: DType, clock: Callable[[Callable[[], None]], float]) -> float:
    """Seconds per element on 4,096 numbers of [0.1, 10] in cache; `clock` gives the time of one call."""
    rng = np.random.default_rng(2)
    arrays = [rng.uniform(0.1, 10.0, 4096).astype(dtype.numpy) for _ in range(function.operands)]
    body, out = body_of(function, dtype), np.empty(4096, dtype.numpy)
    params = {"body": body, "outs": (len(arrays) + len(body) - 1,)}
    compiled = compile_kernel(MAP, [*(("in", array) for array in arrays), ("out", out)], params)
    call = compiled.bind([*arrays, out])
    return clock(lambda: call(0, compiled.tasks)) / 4096
