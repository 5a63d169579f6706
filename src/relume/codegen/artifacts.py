"""From a program to an artifact: schedule, keys, the cache, LLVM where the cache has nothing, the linker.

Three layers, each exact: the linked image of a whole program; the object of each kernel; the objects of the driver and
of the support code, keyed by their text. A program that was built before takes the first and emits nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from relume.base import digests
from relume.base.errors import CompileError
from relume.base.targets import Target
from relume.codegen import calls, driver, link, support
from relume.codegen.cache import Cache, Entry, replays
from relume.codegen.keys import Kernel, Read, kernel_of, target_text, versions
from relume.program import types
from relume.program.types import Program
from relume.runtime.artifact import Artifact, Image, Port

_PLACEHOLDER = "relume_kernel_not_named_yet"
"""Emitters get it for a symbol: the true one depends on what they read."""

_DRIVER, _SUPPORT = "driver", "support"

_Compile = Callable[[str, str], bytes]
"""(IR text, the module's name) -> what is kept of it."""


def _opt(name: str) -> int:
    """LLVM's level for a module. The driver is straight-line code that LLVM is quadratic in from level 1 on."""
    return 0 if name == _DRIVER else 2


def build(program: Program, target: Target, *, cache: Cache | None, traced: bool = False) -> Artifact:
    """Machine code for a program that is scheduled, planned and verified.

    `cache` None: nothing is read from disk or kept there. With `traced` the driver notes when each instruction ends
    (`runtime.trace` reads it); the kernels are the same. Raises `CompileError` where a kernel cannot be compiled or
    linked for `target`.
    """
    schedule = calls.schedule(program)
    kernels = [kernel_of(instr, spec, target) for instr, spec in zip(program.instrs, schedule.specs)]
    return Artifact(
        name=program.name,
        target=target.name,
        image=_image(schedule, kernels, target, cache, traced),
        inputs=_ports(program.inputs),
        outputs=_ports(program.outputs),
        states=_ports(program.states),
        constants=_constants(program),
        dims=schedule.dims,
        allocations=schedule.allocations,
        offsets=schedule.offsets,
        instructions={
            instr.id: str(instr.location) if instr.location else f"{instr.kernel} #{instr.id}"
            for instr in program.instrs
        },
        extents=schedule.extents,
        scratch=schedule.scratch,
        written=_written(program),
    )


def emit_llvm(program: Program, target: Target) -> str:
    """The LLVM IR of a program, one module after the other: the driver, each kernel once, the support code."""
    return _dump(program, target, lambda text, name: text)


def emit_assembly(program: Program, target: Target) -> str:
    """The assembly of a program, one module after the other. Raises as `build` does."""
    from relume.codegen import llvm

    return _dump(program, target, lambda text, name: llvm.assembly(text, target, _opt(name), name=name))


def llvm_calls() -> int:
    """How often LLVM has generated code in this process. Does not load it."""
    llvm = sys.modules.get("relume.codegen.llvm")
    return 0 if llvm is None else llvm.calls


def _dump(program: Program, target: Target, form: Callable[[str, str], str]) -> str:
    schedule = calls.schedule(program)
    shelf = Kernels(None, lambda text, name: text.encode())
    symbols = [shelf.take(kernel_of(i, spec, target)).symbol for i, spec in zip(program.instrs, schedule.specs)]
    modules = [(_DRIVER, driver.emit(schedule, symbols)), *((name, text.decode()) for name, text in shelf.objects)]
    modules.append((_SUPPORT, support.emit(target)))
    return "\n".join(f"; ---- {name} ----\n{form(text, name)}" for name, text in modules)


# --- one image ------------------------------------------------------------------------------------------------------


def _image(schedule: calls.Schedule, kernels: list[Kernel], target: Target, cache: Cache | None, traced: bool) -> Image:
    key = _image_key(schedule, kernels, target, traced)
    digest = digests.of_text(key)
    if cache is not None:
        found = cache.find(digest, key, lambda read: _answer(kernels, read))
        if found is not None:
            try:
                return _unpack(found.payload)
            except (ValueError, KeyError, TypeError) as error:
                cache.discard(digest, found, str(error))

    def compiled(text: str, name: str) -> bytes:
        from relume.codegen import llvm  # Only here: a compile from the cache does not load LLVM.

        return llvm.compile_ir(text, target, _opt(name), name=name)

    shelf = Kernels(cache, compiled)
    made = [shelf.take(kernel) for kernel in kernels]
    symbols = [kernel.symbol for kernel in made]
    modules = [(_DRIVER, driver.emit(schedule, symbols, traced=traced)), (_SUPPORT, support.emit(target))]
    common = [(name, _object(text, name, target, cache, compiled)) for name, text in modules]
    image = link.link([*common, *shelf.objects])
    if cache is not None:
        reads = tuple(replace(read, call=place) for place, kernel in enumerate(made) for read in kernel.reads)
        cache.store(digest, Entry(key, reads, _pack(image)))
    return image


def _image_key(schedule: calls.Schedule, kernels: list[Kernel], target: Target, traced: bool) -> str:
    """Everything that the image depends on but for the constants that are read, as exact text."""
    structures: dict[str, int] = {}
    which = [structures.setdefault(kernel.structure, len(structures)) for kernel in kernels]
    what = (which, schedule.calls, schedule.offsets)
    return "\n".join([f"{'traced ' if traced else ''}image {what!r}", target_text(target), versions(), *structures])


def _answer(kernels: list[Kernel], read: Read) -> str | None:
    return kernels[read.call].answer(read) if 0 <= read.call < len(kernels) else None


def _object(text: str, name: str, target: Target, cache: Cache | None, compiled: _Compile) -> bytes:
    """The object of IR text, from the cache or from LLVM."""
    if cache is None:
        return compiled(text, name)
    key = f"object {name}\n{target_text(target)}\n{versions()}\n{text}"
    digest = digests.of_text(key)
    found = cache.find(digest, key, lambda read: None)
    if found is not None:
        return found.payload
    payload = compiled(text, name)
    cache.store(digest, Entry(key, (), payload))
    return payload


# --- kernels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """One kernel's code in this build."""

    reads: tuple[Read, ...]
    symbol: str


@dataclass
class Kernels:
    """The kernels of one build: each key once, by exact comparison. `objects` holds (symbol, what `compiled` gave).

    `compiled` takes IR text and a name. `cache` as in `build`.
    """

    cache: Cache | None
    compiled: _Compile
    objects: list[tuple[str, bytes]] = field(default_factory=list)
    _made: dict[str, list[Made]] = field(default_factory=dict)

    def take(self, kernel: Kernel) -> Made:
        """The kernel's code, which is made if no equal one is there."""
        made = self._find(kernel)
        if made is None:
            made = self._make(kernel)
            self._made.setdefault(kernel.structure, []).append(made)
        return made

    def _find(self, kernel: Kernel) -> Made | None:
        candidates = self._made.get(kernel.structure, ())
        return next((made for made in candidates if replays(made.reads, kernel.answer)), None)

    def _make(self, kernel: Kernel) -> Made:
        found = self.cache.find(kernel.digest, kernel.structure, kernel.answer) if self.cache is not None else None
        if found is not None:
            symbol = kernel.symbol(found.reads)
            if not self._taken(symbol):
                self.objects.append((symbol, found.payload))
                return Made(found.reads, symbol)
        text, reads = kernel.emit(_PLACEHOLDER)
        symbol = kernel.symbol(reads)
        # Two keys with one digest: the second gets a name of its own, which is not for the cache.
        alone = not self._taken(symbol)
        while self._taken(symbol):
            symbol += "_"
        payload = self.compiled(text.replace(_PLACEHOLDER, symbol), symbol)
        if self.cache is not None and alone:
            self.cache.store(kernel.digest, Entry(kernel.structure, reads, payload))
        self.objects.append((symbol, payload))
        return Made(reads, symbol)

    def _taken(self, symbol: str) -> bool:
        return any(symbol == other for other, _ in self.objects)


# --- small parts ----------------------------------------------------------------------------------------------------


def _pack(image: Image) -> bytes:
    """An image as bytes for the cache."""
    tables = json.dumps({"exports": dict(image.exports), "slots": image.slots}).encode()
    return len(tables).to_bytes(4, "little") + tables + image.code


def _unpack(payload: bytes) -> Image:
    """Inverse of `_pack`. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    size = int.from_bytes(payload[:4], "little")
    tables = json.loads(payload[4 : 4 + size])
    slots = tuple((int(at), str(name)) for at, name in tables["slots"])
    return Image(payload[4 + size :], {str(name): int(at) for name, at in tables["exports"].items()}, slots)


def _ports(ports: tuple[types.Port, ...]) -> tuple[Port, ...]:
    return tuple(Port(port.name, port.dtype, port.dims) for port in ports)


def _written(program: Program) -> tuple[str, ...]:
    """The states that some instruction writes."""
    buffers = {buffer.name for instr in program.instrs for buffer in instr.writes}
    return tuple(port.name for port in program.states if port.buffer.name in buffers)


def _constants(program: Program) -> tuple[np.ndarray, ...]:
    """The constants in the order of their slots. Raises `CompileError` where the slots are not 0, 1, 2 ..."""
    buffers = sorted(program.constants, key=lambda buffer: buffer.index)
    if [buffer.index for buffer in buffers] != list(range(len(buffers))):
        raise CompileError("the slots of the constants have gaps", got=[buffer.index for buffer in buffers])
    missing = [str(buffer) for buffer in buffers if buffer.data is None]
    if missing:
        raise CompileError("constants without data", got=", ".join(missing))
    return tuple(buffer.data for buffer in buffers if buffer.data is not None)
