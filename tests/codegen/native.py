"""What the codegen tests run: a few tiny kernels, programs made of them, and a loader of a dozen lines."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence

import numpy as np

from relume.base import abi, dims, dtypes
from relume.base.dims import Dim
from relume.base.targets import Target
from relume.kernels.ir import Kernel, Reg
from relume.program.types import (
    Buffer,
    ConstReader,
    Instr,
    KernelDef,
    KernelSpec,
    Operand,
    Port,
    Program,
    Space,
    View,
)
from relume.runtime.artifact import Artifact, Image

# --- kernels: one-dimensional, a task is one element ----------------------------------------------------------------


def _extent(spec: KernelSpec) -> Dim:
    return spec.operands[-1].dims[0]


def _kernel(name: str, emit: Callable[..., str], work: Callable[[KernelSpec], Dim] = _extent) -> KernelDef:
    return KernelDef(name, f"{name}, for tests", emit, tasks=_extent, work=work)


def _start(spec: KernelSpec, symbol: str) -> tuple[Kernel, list[Reg], list[Callable[[object], Reg]]]:
    """The kernel, its pointers, and for each operand the address of element i."""
    kernel = Kernel(symbol, spec.extents)
    pointers = [kernel.operand(index) for index in range(len(spec.operands))]

    def at(index: int) -> Callable[[object], Reg]:
        operand = spec.operands[index]
        stride = kernel.dim(operand.strides[0], kernel.extents)
        return lambda i: kernel.address(pointers[index], kernel.mul(i, stride), operand.dtype.bytes)  # type: ignore

    return kernel, pointers, [at(index) for index in range(len(spec.operands))]


def _emit_add(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    kernel, _, (a, b, out) = _start(spec, symbol)
    with kernel.loop(kernel.begin, kernel.end) as loop:
        total = kernel.binary("fadd", kernel.load("float", a(loop.i), 4), kernel.load("float", b(loop.i), 4))
        kernel.store(total, out(loop.i), 4)
    return kernel.finish()


def _emit_scale(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """x * c: looks whether c is one value throughout, and then bakes it in."""
    kernel, _, (x, c, out) = _start(spec, symbol)
    splat = constants.read(1, "splat")
    baked = None
    if splat:
        baked = kernel.constant(float(np.frombuffer(bytes.fromhex(splat), np.float32)[0]), "float")
    with kernel.loop(kernel.begin, kernel.end) as loop:
        factor = baked if baked is not None else kernel.load("float", c(loop.i), 4)
        kernel.store(kernel.binary("fmul", kernel.load("float", x(loop.i), 4), factor), out(loop.i), 4)
    return kernel.finish()


def _emit_thread(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """out[i] = the thread that ran task i."""
    kernel, _, (out,) = _start(spec, symbol)
    with kernel.loop(kernel.begin, kernel.end) as loop:
        kernel.store(kernel.thread, out(loop.i), 8)
    return kernel.finish()


def _emit_refuse(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """Fails with INDEX where out[i], which it reads, is not 0."""
    kernel, _, (out,) = _start(spec, symbol)
    with kernel.loop(kernel.begin, kernel.end) as loop:
        value = kernel.load("i64", out(loop.i), 8)
        with kernel.when(kernel.compare("ne", value, 0)):
            kernel.fail(abi.Status.INDEX, loop.i, value)
    return kernel.finish()


def _emit_forever(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """Each task takes minutes, unless it is stopped. Tasks that start by 1 in the array end at once."""
    kernel, _, (out,) = _start(spec, symbol)
    with kernel.loop(kernel.begin, kernel.end) as loop:
        first = kernel.load("i64", out(loop.i), 8)
        with kernel.when(kernel.compare("eq", first, 0)), kernel.loop(0, 10_000_000_000) as inner:
            kernel.store(inner.i, out(loop.i), 8)  # type: ignore[arg-type]
            kernel.poll()
    return kernel.finish()


def _large(spec: KernelSpec) -> Dim:
    return 1_000_000


ADD = _kernel("add", _emit_add)
SCALE = _kernel("scale", _emit_scale)
THREAD = _kernel("thread", _emit_thread, _large)
REFUSE = _kernel("refuse", _emit_refuse, _large)
FOREVER = _kernel("forever", _emit_forever, _large)

# --- programs -------------------------------------------------------------------------------------------------------


def buffer(name: str, space: Space, elements: Dim, index: int = 0, data: np.ndarray | None = None) -> Buffer:
    dtype = dtypes.f32 if data is None else dtypes.from_numpy(data.dtype)
    return Buffer(name, space, dtype, elements, index, data)


def constant(name: str, data: np.ndarray, index: int = 0) -> Buffer:
    return buffer(name, Space.CONSTANT, data.size, index, data)


def vector(access: str, of: Buffer, offset: Dim = 0, extent: Dim | None = None, stride: Dim = 1) -> Operand:
    return Operand(access, View(of, (of.elements if extent is None else extent,), (stride,), offset))


def program(instrs: Sequence[Instr], name: str = "main") -> Program:
    """A program of these instructions; ports and buffers are those that they mention."""
    buffers = list(dict.fromkeys(operand.view.buffer for instr in instrs for operand in instr.operands))

    def ports(space: Space) -> tuple[Port, ...]:
        bound = sorted((b for b in buffers if b.space is space), key=lambda b: b.index)
        return tuple(Port(b.name, b.dtype, (b.elements,), b) for b in bound)

    allocations = {b.name: b.name for b in buffers if b.space is Space.ARENA}
    inputs, outputs, states = ports(Space.INPUT), ports(Space.OUTPUT), ports(Space.STATE)
    return Program(name, inputs, outputs, states, tuple(buffers), tuple(instrs), allocations)


def chain(extent: Dim, length: int) -> Program:
    """y = x + x + ... in `length` instructions, through the arena."""
    x, y = buffer("x", Space.INPUT, extent), buffer("y", Space.OUTPUT, extent)
    instrs, last = [], x
    for index in range(length):
        out = y if index == length - 1 else buffer(f"t{index}", Space.ARENA, extent)
        instrs.append(Instr(index + 10, ADD, (vector("in", last), vector("in", x), vector("out", out))))
        last = out
    return program(instrs)


def one(kernel: KernelDef, extent: Dim, *inputs: Buffer) -> Program:
    """A single instruction with an i64 or f32 output of `extent` elements."""
    dtype = dtypes.i64 if not inputs else dtypes.f32
    out = Buffer("y", Space.OUTPUT, dtype, extent)
    return program([Instr(7, kernel, (*(vector("in", b) for b in inputs), vector("out", out)))])


# --- running --------------------------------------------------------------------------------------------------------

_LIBRARIES = (ctypes.pythonapi, ctypes.CDLL(None), ctypes.CDLL("libm.so.6"))


def address_of_symbol(name: str) -> int:
    for library in _LIBRARIES:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    raise LookupError(name)


class Mapped:
    """An image, mapped and callable: `mapped("relume_run", c_int32)(ctx)`."""

    def __init__(self, image: Image) -> None:
        self.image = image
        protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        self.memory = mmap.mmap(-1, max(1, len(image.code)), prot=protection)
        self.memory[: len(image.code)] = image.code
        for at, name in image.slots:
            self.memory[at : at + 8] = address_of_symbol(name).to_bytes(8, "little")
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def address(self, name: str) -> int:
        return self.base + self.image.exports[name]

    def __call__(self, name: str, result: object, *arguments: object, gil: bool = False) -> Callable[..., int]:
        make = ctypes.PYFUNCTYPE if gil else ctypes.CFUNCTYPE
        return make(result, *arguments)(self.address(name))


IMPORTS = (ctypes.c_uint64 * len(abi.IMPORTS))(*map(address_of_symbol, abi.IMPORTS))


class Pool:
    """Worker threads of an image, as a context manager."""

    def __init__(self, mapped: Mapped, threads: int) -> None:
        self.mapped, self.threads = mapped, threads
        self.memory = np.zeros(abi.POOL_SIZE + 64, np.uint8)
        self.address = -(-self.memory.ctypes.data // 64) * 64

    def __enter__(self) -> Pool:
        start = self.mapped("relume_pool_start", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        assert start(self.address, ctypes.addressof(IMPORTS), self.threads) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self.mapped("relume_pool_stop", None, ctypes.c_void_p)(self.address)


class Run:
    """A context for an artifact, ready to be entered once or often."""

    def __init__(
        self, artifact: Artifact, inputs: Sequence[np.ndarray] = (), *, pool: Pool | None = None, **symbols: int
    ) -> None:
        self.mapped = pool.mapped if pool else Mapped(artifact.image)
        self.context = (ctypes.c_int64 * len(abi.FIELDS))()
        self.outputs = [
            np.zeros([dims.evaluate(dim, symbols) for dim in port.dims], port.dtype.numpy) for port in artifact.outputs
        ]
        sizes = [dims.evaluate(a.bytes, symbols) for a in artifact.allocations]
        offsets = artifact.offsets
        if offsets is None:  # Far apart: whoever ignores the table is found out.
            offsets = tuple(sum(-(-size // 64) * 64 + 64 for size in sizes[:index]) for index in range(len(sizes)))
        total = max((at + size for at, size in zip(offsets, sizes)), default=0)
        self.arena = np.full(total + 64, 0xFF, np.uint8)
        self._kept = [np.ascontiguousarray(array) for array in (*inputs, *artifact.constants)]
        inputs, constants = self._kept[: len(inputs)], self._kept[len(inputs) :]
        self._set("inputs", [array.ctypes.data for array in inputs])
        self._set("outputs", [array.ctypes.data for array in self.outputs])
        self._set("constants", [array.ctypes.data for array in constants])
        self._set("dims", [dims.evaluate(dim, symbols) for dim in artifact.dims])
        self._set("offsets", list(offsets))
        self["arena"] = -(-self.arena.ctypes.data // 64) * 64
        self["imports"] = ctypes.addressof(IMPORTS)
        self["pool"] = pool.address if pool else 0

    def _set(self, field: str, values: list[int]) -> None:
        table = np.array(values or [0], np.int64)
        self._kept.append(table)
        self[field] = table.ctypes.data

    def __setitem__(self, field: str, value: int) -> None:
        self.context[abi.FIELD[field] // 8] = value

    def __getitem__(self, field: str) -> int:
        return self.context[abi.FIELD[field] // 8]

    def run(self) -> int:
        """`relume_run`: no GIL business."""
        return self.mapped("relume_run", ctypes.c_int32, ctypes.c_void_p)(ctypes.addressof(self.context))

    def enter(self) -> int:
        """`relume_entry`: raises what a signal handler raised."""
        entry = self.mapped("relume_entry", ctypes.c_int32, ctypes.c_void_p, gil=True)
        return entry(ctypes.addressof(self.context))
