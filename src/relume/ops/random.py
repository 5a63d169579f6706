"""Random numbers without a state: a function of a key and a position."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relume.base import dtypes
from relume.graph.opdef import NO_GRADIENT, NOT_YET, AttrDef, OpDef, Sample
from relume.graph.types import Attr, Tensor
from relume.ops import inference
from relume.ops.arithmetic import Resolved
from relume.ops.inference import infer_tensors

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox 4x32-10: four random 32-bit words for each counter of four 32-bit words.

    `counters` and the result are u64[.., 4] holding 32-bit words, least significant first; `key` is two 32-bit words.
    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = (counters[..., word] for word in range(4))
    k0, k1 = (np.uint64(word) for word in key)
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2  # 32 x 32 -> 64 bits: never more than a u64
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1)


@infer_tensors
def _infer_uniform(key: Tensor, *, attrs: Mapping[str, Attr]) -> Tensor:
    inference.want_dtype("key", key, dtypes.u64)
    inference.want_rank("key", key, 1)
    inference.want_dim("the extent of key", key.dims[0], 2)
    inference.number(attrs, "low")
    inference.number(attrs, "high")
    return Tensor(dtypes.f32, inference.dims_attr(attrs, "dims"))


def _uniform(key: np.ndarray, *, attrs: Resolved, regions: object) -> tuple[np.ndarray, ...]:
    shape: tuple[int, ...] = attrs["dims"]
    low, high = np.float32(attrs["low"]), np.float32(attrs["high"])
    size = int(np.prod(shape, dtype=np.int64))
    blocks = np.arange(-(-size // 4), dtype=np.uint64)
    stream = np.full(blocks.shape, key[1], dtype=np.uint64)
    counters = np.stack([blocks & _LOW, blocks >> _HALF, stream & _LOW, stream >> _HALF], axis=-1)
    words = philox(counters, (int(key[0] & _LOW), int(key[0] >> _HALF))).reshape(-1)[:size]
    unit = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)  # exact: 24 bits
    with np.errstate(all="ignore"):
        return ((low + unit * (high - low)).reshape(shape),)


random_uniform = OpDef(
    name="random_uniform",
    doc="f32 numbers, uniform on [low, high). Element i in C order is word i mod 4 of Philox 4x32-10 with key[0] as "
    "its key and the counter (i div 4) + 2**64 * key[1]; its upper 24 bits are a fraction u, and the element is low + "
    "u * (high - low), each step rounded to f32 (which may reach high). Equal keys give equal numbers.",
    operands=("key",),
    infer=_infer_uniform,
    reference=_uniform,
    samples=lambda: [
        Sample((np.array([1, 2], np.uint64),), {"dims": (7,), "low": 0.0, "high": 1.0}),
        Sample((np.array([2**64 - 1, 2**63], np.uint64),), {"dims": (2, 3, 5), "low": -2.0, "high": 3.0}),
        Sample((np.array([0, 0], np.uint64),), {"dims": (), "low": 0.0, "high": 1.0}),
        Sample((np.array([0, 0], np.uint64),), {"dims": (0, 4), "low": 0.0, "high": 1.0}),
        Sample((("u64", (3,)),), {"dims": (4,)}, error="extent of key"),
        Sample((("i64", (2,)),), {"dims": (4,)}, error="key cannot be i64"),
    ],
    attrs=(AttrDef("dims", "dims"), AttrDef("low", "float", 0.0), AttrDef("high", "float", 1.0)),
    gradient=NO_GRADIENT("a function of an integer key"),
    to_onnx=NOT_YET,
)

OPS = (random_uniform,)
