"""When two instructions may share one function, and when code from the cache may stand for code from LLVM.

A key has two parts. The *structure* is everything that a kernel's emitter is given, as exact text. The *reads* are the
questions that it asked about constants, with the answers. A candidate with the same structure is taken if replaying
its questions on the constants at hand gives the same answers: then the emitter, which is deterministic, would ask
these same questions and write the same code. Digests only find candidates; equality of the texts decides.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

import relume.base
import relume.codegen
import relume.kernels
import relume.program
from relume.base import abi, digests
from relume.base.targets import Target
from relume.program.types import (
    IN,
    PREDICATES,
    ConstReader,
    Instr,
    KernelDef,
    KernelSpec,
    Space,
    View,
    digest_of,
    symbol_of,
)


@dataclass(frozen=True)
class Read:
    """One question about a constant and its answer. `call` is the position of the instruction (0 for one kernel)."""

    call: int
    operand: int
    predicate: str
    answer: str


@dataclass(frozen=True)
class Kernel:
    """A request for one kernel's code."""

    definition: KernelDef
    spec: KernelSpec
    target: Target
    constants: Mapping[int, np.ndarray]

    @functools.cached_property
    def structure(self) -> str:
        """Everything that the code depends on except for the constants' values. Exact: unequal requests differ."""
        operands = tuple(
            (operand.access, operand.constant, operand.dtype.name, _texts(operand.dims), _texts(operand.strides))
            for operand in self.spec.operands
        )
        exact = (self.spec.kernel, operands, self.spec.params, _texts(self.spec.scalars))
        return f"{exact!r}\n{target_text(self.target)}\n{provider(self.definition)}\n{versions()}"

    @property
    def digest(self) -> str:
        """Finds candidates."""
        return digest_of(self.spec, self.target, versions())

    def answer(self, read: Read) -> str | None:
        """The answer to a logged question here; None where there is no such constant, or no such question any more."""
        if read.operand not in self.constants or read.predicate not in PREDICATES:
            return None
        return PREDICATES[read.predicate](self.constants[read.operand])

    def emit(self, symbol: str) -> tuple[str, tuple[Read, ...]]:
        """The kernel's IR under `symbol`, and what it read."""
        reader = ConstReader(self.constants)
        text = self.definition.emit(self.spec, self.target, reader, symbol)
        return text, tuple(Read(0, *entry) for entry in reader.log)

    def symbol(self, reads: tuple[Read, ...]) -> str:
        """The symbol for code that was emitted with these reads."""
        return symbol_of(self.spec, digests.of_text(self.structure, repr(reads)))


def kernel_of(instr: Instr, spec: KernelSpec, target: Target) -> Kernel:
    """The request for the kernel of one instruction (`spec` is what `instr.specialise()` gives)."""
    constants: dict[int, np.ndarray] = {}
    for index, operand in enumerate(instr.operands):
        if operand.access == IN and operand.view.buffer.space is Space.CONSTANT:
            array = _viewed(operand.view)
            if array is not None:
                constants[index] = array
    return Kernel(instr.kernel, spec, target, constants)


def _viewed(view: View) -> np.ndarray | None:
    """What a view shows of its constant; a broadcast axis counts once. None where an extent is not known now."""
    data = view.buffer.data
    shape = tuple(1 if stride == 0 else dim for dim, stride in zip(view.dims, view.strides))
    known = [dim for dim in (*shape, *view.strides, view.offset) if isinstance(dim, int)]
    if data is None or len(known) != len(shape) + len(view.strides) + 1:
        return None
    flat = np.ascontiguousarray(data).reshape(-1)
    offset, size = known[-1], flat.itemsize
    steps = tuple(stride * size for stride in known[len(shape) : -1])
    return np.lib.stride_tricks.as_strided(flat[offset:], tuple(known[: len(shape)]), steps, writeable=False)


def _texts(dims: tuple[object, ...]) -> tuple[str, ...]:
    return tuple(map(str, dims))


def target_text(target: Target) -> str:
    """Everything about a target that code can depend on."""
    return repr((target.name, target.triple, target.cpu, target.feature_string, target.vector_bits, target.registers))


@functools.cache
def versions() -> str:
    """The versions of everything that has a say in the code: the ABI, LLVM's door, and Relume's own sources."""
    sources = [path for room in (relume.base, relume.codegen, relume.kernels, relume.program) for path in _files(room)]
    return (
        f"abi {abi.VERSION}; llvmlite {_version('llvmlite')}; relume {_version('relume')}; sources {_digest(sources)}"
    )


@functools.cache
def provider(definition: KernelDef) -> str:
    """Who emits a kernel: the function's place, and the digest of its file where that is not one of Relume's own."""
    emit = definition.emit
    module = getattr(emit, "__module__", "") or ""
    place = f"{module}:{getattr(emit, '__qualname__', type(emit).__qualname__)}"
    if module.startswith("relume.kernels."):
        return place
    file = getattr(sys.modules.get(module), "__file__", None)
    return f"{place} {_digest([Path(file)]) if file else 'no file'}"


def _files(room: ModuleType) -> list[Path]:
    (folder,) = room.__path__
    return sorted(Path(folder).rglob("*.py"))


def _digest(files: list[Path]) -> str:
    state = hashlib.blake2b(digest_size=digests.LENGTH)
    for file in files:
        content = file.read_bytes()
        state.update(f"{file.name} {len(content)}\n".encode())
        state.update(content)
    return state.hexdigest()


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
