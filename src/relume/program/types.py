"""The program representation: buffers, instructions and their order, with no mathematics in it.

::

    Buffer   = name : dtype[elements] in a space         where bytes live: input, output, state, constant, arena ...
    View     = buffer + offset + dims + strides          what an instruction touches, in elements
    Operand  = in | out | inout view
    Instr    = kernel(operands; params)                  destination passing: an instruction returns nothing
    Program  = buffers, instructions in order, allocations of the arena, the names of what is bound at run time

A `KernelDef` says how a kernel touches its operands; `kernels/` fills it.
Extents, offsets and strides are `Dim`s over the symbols of the input shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Union

import numpy as np

from relume.base import dims
from relume.base.digests import of_text
from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.locations import Location
from relume.base.targets import Target


class Space(Enum):
    """Where a buffer's bytes come from. The first four are the four kinds of tensors."""

    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    CONSTANT = "constant"
    ARENA = "arena"
    COUNTER = "counter"


@dataclass(frozen=True)
class Buffer:
    """A run of elements. `index` is its slot in the context's table of that space (unused in the arena).

    `data` is set for constants only; it takes no part in equality beyond its digest, which is the name's business.
    """

    name: str
    space: Space
    dtype: DType
    elements: Dim
    index: int = 0
    data: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def bytes(self) -> Dim:
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class View:
    """A strided window on a buffer. `offset` and `strides` count elements of the buffer's dtype.

    `version` tells the contents of a state's buffer apart: how many instructions have written it before. A reader sees
    that version; a writer consumes it and makes the next one. It is 0 for all other buffers.
    """

    buffer: Buffer
    dims: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0
    version: int = 0

    @staticmethod
    def whole(buffer: Buffer, shape: Sequence[Dim], version: int = 0) -> View:
        """The buffer in C order under `shape`."""
        return View(buffer, tuple(shape), contiguous(shape), 0, version)

    def seen(self, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> View:
        """Another window on the same contents."""
        return View(self.buffer, tuple(shape), tuple(strides), offset, self.version)

    @property
    def is_contiguous(self) -> bool:
        return self.offset == 0 and self.strides == contiguous(self.dims)


def contiguous(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """C-order strides in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for dim in reversed(shape):
        strides.append(step)
        step = step * dim
    return tuple(reversed(strides))


IN, OUT, INOUT = "in", "out", "inout"


@dataclass(frozen=True)
class Operand:
    """How an instruction touches one view: `in`, `out` (every element is written, none is read) or `inout`."""

    access: str
    view: View


Param = Union[int, float, bool, str, DType, tuple["Param", ...]]


@dataclass(frozen=True)
class Instr:
    """One call of a kernel. `id` is what a non-zero status carries."""

    id: int
    kernel: KernelDef
    operands: tuple[Operand, ...]
    params: Mapping[str, Param] = field(default_factory=dict)
    location: Location | None = None
    scalars: tuple[Dim, ...] = ()
    """Further integers for the kernel, known now or at run time (a start, an extent that becomes data)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))

    def __hash__(self) -> int:
        return hash((self.id, self.kernel.name, self.operands))

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return tuple(operand.view.buffer for operand in self.operands if operand.access != OUT)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return tuple(operand.view.buffer for operand in self.operands if operand.access != IN)

    def specialise(self) -> tuple[KernelSpec, tuple[Dim, ...]]:
        """The spec that the key digests, and the run-time extents that fill its symbols e0, e1 ..."""
        extents: list[Dim] = []

        def slot(dim: Dim) -> Dim:
            if isinstance(dim, int):
                return dim
            if dim not in extents:
                extents.append(dim)
            return dims.symbol(f"e{extents.index(dim)}")

        specs = tuple(
            OperandSpec(
                operand.access,
                operand.view.buffer.dtype,
                tuple(slot(dim) for dim in operand.view.dims),
                tuple(slot(stride) for stride in operand.view.strides),
                operand.view.buffer.space is Space.CONSTANT,
            )
            for operand in self.operands
        )
        scalars = tuple(slot(scalar) for scalar in self.scalars)
        return KernelSpec(self.kernel.name, specs, tuple(sorted(self.params.items())), scalars), tuple(extents)


# --- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperandSpec:
    """One operand as code generation sees it. Run-time extents are the symbols e0, e1 ... of the spec."""

    access: str
    dtype: DType
    dims: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    constant: bool

    def __str__(self) -> str:
        shape = ",".join(map(str, self.dims))
        strides = ",".join(map(str, self.strides))
        return f"{self.access} {'const ' if self.constant else ''}{self.dtype}[{shape}]({strides})"


@dataclass(frozen=True)
class KernelSpec:
    """All that a kernel's code may depend on, but for the target and the constants that it asks to read."""

    kernel: str
    operands: tuple[OperandSpec, ...]
    params: tuple[tuple[str, Param], ...]
    scalars: tuple[Dim, ...] = ()

    def __getitem__(self, name: str) -> Param:
        return dict(self.params)[name]

    def __str__(self) -> str:
        params = "; ".join(f"{name}={value}" for name, value in self.params)
        scalars = ",".join(map(str, self.scalars))
        return f"{self.kernel}({'; '.join(map(str, self.operands))}){{{params}}}[{scalars}]"

    @property
    def extents(self) -> tuple[str, ...]:
        """The names e0, e1 ... in order."""
        names: set[str] = set()
        for group in (self.scalars, *((*operand.dims, *operand.strides) for operand in self.operands)):
            for dim in group:
                names |= dims.symbols(dim)
        return tuple(sorted(names, key=lambda name: int(name[1:])))


class ConstReader:
    """How a kernel's emitter looks at constants: every question and its answer is logged, and becomes part of the key.

    `arrays` holds the constant behind each operand index.
    """

    def __init__(self, arrays: Mapping[int, np.ndarray]) -> None:
        self._arrays = arrays
        self.log: list[tuple[int, str, str]] = []

    def read(self, operand: int, predicate: str) -> str | None:
        """The answer to `predicate` (a key of `PREDICATES`) about the constant at `operand`; None if it is none."""
        if operand not in self._arrays:
            return None
        answer = PREDICATES[predicate](self._arrays[operand])
        self.log.append((operand, predicate, answer))
        return answer


def _splat(array: np.ndarray) -> str:
    flat = np.ascontiguousarray(array).reshape(-1)
    same = flat.size > 0 and bool((flat.view(np.uint8).reshape(flat.size, -1) == flat[:1].view(np.uint8)).all())
    return flat[:1].tobytes().hex() if same else ""


PREDICATES: dict[str, Callable[[np.ndarray], str]] = {
    "splat": _splat,  # the little-endian bytes (hex) of the one value that fills the constant, else ""
}

Reuse = Mapping[int, tuple[int, ...]]
"""For each `out` operand, by index: the `in` operands that it may (or must) share memory with."""


Border = tuple[tuple[int, int], ...]
"""The width of a border along each axis: before, after."""


def _none(spec: KernelSpec) -> Dim:
    return 0


def _nothing(spec: KernelSpec) -> Reuse:
    return {}


@dataclass(frozen=True, eq=False)
class KernelDef:
    """One kernel family: how it touches memory, and its code.

    `may_reuse` is a truth about access order: element i of the operand is read before element i of the result is
    written, and never again, by any task. It therefore belongs here and not to the op.
    """

    name: str
    doc: str
    emit: Callable[[KernelSpec, Target, ConstReader, str], str]
    """(spec, target, constants, symbol) -> LLVM IR text that defines
    `i32 symbol(ptr ctx, ptr operands, ptr extents, i64 begin, i64 end, i64 thread)`:
    runs tasks begin..end-1. `operands` is an array of pointers to the first element of each view, `extents` an array
    of i64. `thread` is 0 on the calling thread, which alone polls."""
    tasks: Callable[[KernelSpec], Dim]
    """How many independent tasks one call has, over e0, e1 ...; any split of them gives the same bits."""
    work: Callable[[KernelSpec], Dim]
    """Estimated floating-point operations (or elements moved) of a whole call, over e0, e1 ..."""
    scratch: Callable[[KernelSpec], Dim] = _none
    """Bytes that each thread needs to itself while the kernel runs, over e0, e1 ... (`Kernel.thread_memory`). What is
    small and known stands on the stack instead, of which nobody knows how large it is."""
    may_reuse: Callable[[KernelSpec], Reuse] = _nothing
    must_reuse: Callable[[KernelSpec], Reuse] = _nothing
    border: Callable[[Mapping[str, Param]], Border] | None = None
    """For a kernel that writes the border of its `inout` view alone, and leaves the inside as it is: how wide it is."""

    def __str__(self) -> str:
        return self.name


def symbol_of(spec: KernelSpec, digest: str) -> str:
    """A kernel's symbol: a readable prefix and a digest. The same in the program and in the object file."""
    return f"relume_{spec.kernel}_{digest[:16]}"


# --- programs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reused:
    """One in-place decision: result operand `result` of instruction `instr` sits on its operand `operand`."""

    instr: int
    result: int
    operand: int
    reason: str


@dataclass(frozen=True)
class Port:
    """What is bound at run time: an input, an output or a state, by name."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...]
    buffer: Buffer


@dataclass(frozen=True, eq=False)
class Program:
    """One compiled function before code.

    `instrs` run in order. `allocations` maps each arena buffer to its allocation: buffers that share one sit at the
    same offset (in place). `inputs` define the symbols: an input dim that is a bare symbol binds it.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...]
    buffers: tuple[Buffer, ...]
    instrs: tuple[Instr, ...]
    allocations: Mapping[str, str] = field(default_factory=dict)
    reused: tuple[Reused, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "allocations", MappingProxyType(dict(self.allocations)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        mine = (self.name, self.inputs, self.outputs, self.states, self.buffers, self.instrs, self.reused)
        theirs = (other.name, other.inputs, other.outputs, other.states, other.buffers, other.instrs, other.reused)
        return mine == theirs and dict(self.allocations) == dict(other.allocations)

    __hash__ = None  # type: ignore[assignment]

    @property
    def constants(self) -> tuple[Buffer, ...]:
        return tuple(buffer for buffer in self.buffers if buffer.space is Space.CONSTANT)

    @property
    def arena(self) -> tuple[Buffer, ...]:
        return tuple(buffer for buffer in self.buffers if buffer.space is Space.ARENA)


def digest_of(spec: KernelSpec, target: Target, versions: str) -> str:
    """The structural part of a kernel's key: candidates share it; logged constant reads and exact text decide."""
    return of_text(str(spec), target.name, target.cpu, target.feature_string, versions)
