"""Elements in registers, and on their way from and to memory.

Registers hold an element type as LLVM has it (`i32`, `<16 x float>`), with two conventions:

- a bool is an `i1` (`<16 x i1>`) in registers and a byte 0 or 1 in memory: `load` and `store` convert;
- f16 and bf16 are their 16 bits (`i16`) in registers: they are moved as they are, and widened to compute.
"""

from __future__ import annotations

import math
import struct

from relume.base import dtypes
from relume.base.dtypes import DType
from relume.kernels.ir import Function, Reg, element, lanes, llvm_type, vector

NARROW = (dtypes.f16, dtypes.bf16)
"""Floats that no arithmetic is done in."""


def register_type(dtype: DType, count: int = 1) -> str:
    """The type of `count` lanes of `dtype` in a register."""
    kind = "i1" if dtype.kind == "bool" else "i16" if dtype in NARROW else llvm_type(dtype)
    return vector(kind, count)


def load(f: Function, dtype: DType, address: Reg, count: int = 1) -> Reg:
    """`count` consecutive elements from memory."""
    if dtype.kind != "bool":
        return f.load(register_type(dtype, count), address, dtype.bytes)
    raw = f.load(vector("i8", count), address, 1)
    return f.icompare("ne", raw, f.int_constant(0, raw.type))


def store(f: Function, dtype: DType, value: Reg, address: Reg) -> None:
    """Writes all lanes of `value` to consecutive elements."""
    if dtype.kind == "bool":
        value = f.convert("zext", value, vector("i8", lanes(value.type)))
    f.store(value, address, dtype.bytes)


def constant(f: Function, value: object, dtype: DType, count: int = 1) -> Reg:
    """`value` (int, float or bool) in all of `count` lanes. Integers wrap to the type."""
    type_ = register_type(dtype, count)
    if dtype.is_float and dtype not in NARROW:
        return f.constant(float(value), type_)  # type: ignore[arg-type]
    return constant_of_bytes(f, dtype.numpy.type(value).tobytes(), dtype, count)


def constant_of_bytes(f: Function, raw: bytes, dtype: DType, count: int = 1) -> Reg:
    """The one element whose little-endian bytes are `raw`, in all of `count` lanes, a NaN with its payload."""
    type_ = register_type(dtype, count)
    if dtype.kind == "bool":
        return f.int_constant(int(raw != b"\0"), type_)
    bits = int.from_bytes(raw, "little")
    if not dtype.is_float or dtype in NARROW:
        return f.int_constant(bits, type_)
    if dtype is dtypes.f32:
        value = struct.unpack("<f", raw)[0]
        if value == value:
            return f.constant(value, type_)
        # LLVM writes a float in the bits of a double; widening a NaN by arithmetic would make it quiet.
        bits = (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
    text = f"0x{bits:016X}"
    return Reg(text if count == 1 else f"<{', '.join([f'{element(type_)} {text}'] * count)}>", type_)


def is_number(value: Reg) -> bool:
    """Whether a float register is a constant, equal in all lanes, and no NaN."""
    if value == "zeroinitializer":
        return True
    text = value.rpartition(" ")[2].rstrip(">")
    if not text.startswith("0x"):
        return False
    return not math.isnan(struct.unpack(">d", bytes.fromhex(text[2:].zfill(16)))[0])
