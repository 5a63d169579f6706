"""What a compiled function is, once the compiler is gone: code, constants, and the tables to run it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from relume.base.dims import Dim
from relume.base.dtypes import DType
from relume.base.requirements import Requirement


@dataclass(frozen=True, repr=False)
class Port:
    """An input, output or state: its name, element type and extents over the symbols of the inputs.

    An input dim that is a bare symbol binds that symbol; any other input dim is checked against the binding.
    """

    name: str
    dtype: DType
    dims: tuple[Dim, ...]

    @property
    def type(self) -> str:
        """The type as a graph prints it: `f32[N,3]`."""
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True)
class Allocation:
    """A piece of the arena: its size, and the first and last instruction (by position) between which it is live."""

    name: str
    bytes: Dim
    first: int
    last: int


@dataclass(frozen=True)
class Image:
    """Linked, position-independent machine code: one run of bytes to be mapped, and then made executable.

    `exports` gives the byte offset of each global function. `slots` are 8-byte places to be filled with the
    addresses of symbols from outside (all in `base.abi.SYMBOLS`) before the pages are sealed.
    """

    code: bytes
    exports: Mapping[str, int]
    slots: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Artifact:
    """One compiled function."""

    name: str
    target: str
    image: Image
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[Port, ...]
    constants: tuple[np.ndarray, ...]
    dims: tuple[Dim, ...]
    """The run-time extents, in the order of the context's `dims` table."""
    allocations: tuple[Allocation, ...]
    offsets: tuple[int, ...] | None
    """Byte offset of each allocation where all sizes are static (they are baked into the code); else None, and the
    runtime plans when it first meets a shape."""
    instructions: Mapping[int, str]
    """The place in the user's model of each instruction id, for `RunError`."""
    extents: tuple[Dim, ...] = ()
    """Every extent of a view that is known only at run time. The runtime refuses inputs that make one negative: an
    intermediate tensor that cannot exist (`dims` does not tell, for it also holds strides and offsets)."""
    requirements: tuple[Requirement, ...] = ()
    """What the extents must fulfil for the function to mean anything. The runtime refuses inputs that break one."""
    written: tuple[str, ...] = ()
    """The names of the states that a run writes, in the order of `states`. The others are only read."""
    scratch: Dim = 0
    """Bytes that each thread needs to itself during a run."""
    derived: Artifact | None = None
    """What computes, from some of the states and no inputs, what depends on nothing else: packed weights and the like.
    Its outputs are, behind `inputs`, further inputs of the code. The runtime keeps them until a state is written."""
