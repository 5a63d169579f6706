"""Runs one kernel alone: no graph, no program, no runtime; operands are NumPy views, written in place."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import llvmlite.binding as llvm
import numpy as np

from relume.base import abi, dims
from relume.base.dims import Dim
from relume.base.dtypes import from_numpy
from relume.base.targets import AVX2, AVX512, Target
from relume.program.types import ConstReader, KernelDef, KernelSpec, OperandSpec, Param
from relume.runtime.memory import Block, round_up

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
llvm.initialize_native_asmparser()

CONST = "const"
"""An `in` operand that is a constant: its dims and strides stay known even with run-time extents."""

WIDE_ON_AVX2 = replace(AVX512, name="wide", cpu=AVX2.cpu, features=AVX2.features)
"""The AVX-512 schedule in instructions that an AVX2 machine can run."""

TARGETS = (AVX2, WIDE_ON_AVX2)

_POLL = "define i32 @relume_poll(ptr %ctx, i64 %thread) { ret i32 0 }"
_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
)

Operands = Sequence[tuple[str, np.ndarray]]


class KernelFailed(Exception):
    """A kernel returned a non-zero status."""

    def __init__(self, status: int, detail0: int, detail1: int) -> None:
        super().__init__(f"status {status}, details {detail0}, {detail1}")
        self.status, self.detail0, self.detail1 = status, detail0, detail1


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and what a call needs."""

    spec: KernelSpec
    extents: tuple[int, ...]
    tasks: int
    scratch: int
    text: str
    function: ctypes._CFuncPtr  # type: ignore[name-defined]

    def call(self, arrays: Sequence[np.ndarray], begin: int = 0, end: int | None = None) -> None:
        """Runs tasks begin..end-1 (all by default). Raises `KernelFailed`."""
        self.bind(arrays)(begin, self.tasks if end is None else end)

    def bind(self, arrays: Sequence[np.ndarray]) -> Callable[[int, int], None]:
        """`call` with the pointers made ready, for timing: (begin, end)."""
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        table = (ctypes.c_int64 * max(1, len(self.extents)))(*self.extents)
        context = (ctypes.c_int64 * (abi.SIZE // 8))()
        scratch = Block(max(1, self.scratch))
        context[abi.FIELD["scratch"] // 8], context[abi.FIELD["scratch_bytes"] // 8] = scratch.address, self.scratch
        fixed = [ctypes.addressof(block) for block in (context, pointers, table)]

        def run(begin: int, end: int) -> None:
            status = self.function(*fixed, begin, end, 0)
            if status:
                raise KernelFailed(status, *(context[abi.FIELD[name] // 8] for name in ("detail0", "detail1")))

        run.keep = (arrays, context, pointers, table, scratch)  # type: ignore[attr-defined]
        return run


def spec_of(
    kernel: KernelDef,
    operands: Operands,
    params: Mapping[str, Param],
    scalars: Sequence[int] = (),
    runtime_extents: bool = False,
) -> tuple[KernelSpec, tuple[int, ...]]:
    """The spec and the values of e0, e1 ...

    With run-time extents every extent, stride and scalar is a symbol, one per value, except 0, 1 and 16 (broadcasts,
    innermost axes, blocks) and all that belongs to a constant.
    """
    values: list[int] = []

    def slot(value: int, constant: bool = False) -> Dim:
        if not runtime_extents or constant or value in (0, 1, 16):
            return value
        if value not in values:
            values.append(value)
        return dims.symbol(f"e{values.index(value)}")

    specs = []
    for access, array in operands:
        constant = access == CONST
        specs.append(
            OperandSpec(
                "in" if constant else access,
                from_numpy(array.dtype),
                tuple(slot(extent, constant) for extent in array.shape),
                tuple(slot(step // array.itemsize, constant) for step in array.strides),
                constant,
            )
        )
    spec = KernelSpec(
        kernel.name, tuple(specs), tuple(sorted(params.items())), tuple(slot(scalar) for scalar in scalars)
    )
    return spec, tuple(values)


def emit(
    kernel: KernelDef,
    operands: Operands,
    params: Mapping[str, Param],
    scalars: Sequence[int] = (),
    target: Target = AVX2,
    runtime_extents: bool = False,
) -> tuple[KernelSpec, tuple[int, ...], str]:
    """The spec, the values of its extents, and the IR text of `@kernel`."""
    spec, extents = spec_of(kernel, operands, params, scalars, runtime_extents)
    constants = {index: array for index, (access, array) in enumerate(operands) if access == CONST}
    return spec, extents, kernel.emit(spec, target, ConstReader(constants), "kernel")


def machine_of(target: Target) -> llvm.TargetMachine:
    """LLVM's code generator for `target`, at the level that codegen uses."""
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=2, reloc="pic", codemodel="small"
    )


def _module(text: str, target: Target) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.link_in(llvm.parse_assembly(_POLL))
    module.triple = target.triple
    module.verify()
    return module


def assembly(text: str, target: Target) -> str:
    """The assembly of IR text."""
    return machine_of(target).emit_assembly(_module(text, target))


@functools.lru_cache(maxsize=512)
def _load(text: str, target: Target) -> tuple[llvm.ExecutionEngine, ctypes._CFuncPtr]:  # type: ignore[name-defined]
    engine = llvm.create_mcjit_compiler(_module(text, target), machine_of(target))
    engine.finalize_object()
    return engine, _SIGNATURE(engine.get_function_address("kernel"))


def compile_kernel(
    kernel: KernelDef,
    operands: Operands,
    params: Mapping[str, Param],
    scalars: Sequence[int] = (),
    target: Target = AVX2,
    runtime_extents: bool = False,
) -> Compiled:
    """Machine code for these operands' dtypes, extents and strides."""
    spec, extents, text = emit(kernel, operands, params, scalars, target, runtime_extents)
    _, function = _load(text, target)
    binding = {f"e{index}": value for index, value in enumerate(extents)}
    tasks, scratch = (dims.evaluate(dim, binding) for dim in (kernel.tasks(spec), kernel.scratch(spec)))
    return Compiled(spec, extents, tasks, round_up(scratch), text, function)


def run_kernel(
    kernel: KernelDef,
    operands: Operands,
    params: Mapping[str, Param],
    scalars: Sequence[int] = (),
    target: Target = AVX2,
    runtime_extents: bool = False,
    splits: int = 1,
) -> None:
    """Compiles and runs a kernel on `operands`: (in | out | inout | const, NumPy view), written in place.

    The tasks run in `splits` calls, the last ones first: any order must do. Raises `KernelFailed`.
    """
    compiled = compile_kernel(kernel, operands, params, scalars, target, runtime_extents)
    arrays = [array for _, array in operands]
    bounds = [compiled.tasks * part // splits for part in range(splits + 1)]
    for begin, end in reversed(list(itertools.pairwise(bounds))):
        compiled.call(arrays, begin, end)
