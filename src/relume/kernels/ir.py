"""Writes LLVM IR text, one function at a time.

Integers are either Python ints (known now, folded here) or registers (known at run time), so one emitter serves
static and run-time extents: it computes with both alike, and what is static is baked into the code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Union

from relume.base.abi import FIELD, Status
from relume.base.dims import Call, Dim, Symbol
from relume.base.dtypes import DType
from relume.base.errors import CompileError


class Reg(str):
    """A register or a constant with its LLVM type: `Reg("%7", "<16 x float>")`."""

    type: str

    def __new__(cls, text: str, type_: str) -> Reg:
        self = super().__new__(cls, text)
        self.type = type_
        return self


Int = Union[int, Reg]
"""An i64: known now or at run time."""

_SCALAR = {"float": {2: "half", 4: "float", 8: "double"}}


def llvm_type(dtype: DType) -> str:
    """The type of one element in memory (a bool is an i8 that holds 0 or 1)."""
    if dtype.name == "bf16":
        return "bfloat"
    return _SCALAR["float"][dtype.bytes] if dtype.is_float else f"i{dtype.bytes * 8}"


def vector(type_: str, lanes: int) -> str:
    """`<lanes x type>`; the scalar itself for one lane."""
    return type_ if lanes == 1 else f"<{lanes} x {type_}>"


def element(type_: str) -> str:
    """The element of a vector type; a scalar type itself."""
    return type_[1:-1].split(" x ")[1] if type_.startswith("<") else type_


def lanes(type_: str) -> int:
    """The number of lanes; 1 for a scalar."""
    return int(type_[1:].split(" x ")[0]) if type_.startswith("<") else 1


def float_constant(value: float, type_: str = "float") -> str:
    """The exact bits of `value` rounded to `type_` (float or double), as LLVM writes them."""
    if type_ == "float":
        value = struct.unpack("f", struct.pack("f", value))[0]
    return "0x" + struct.pack(">d", value).hex().upper()


class Loop:
    """An open loop: `i` is the index, `carried` the loop-carried registers; assign `next` before it closes.

    After it has closed, `results` holds the final values.
    """

    def __init__(self, i: Int, carried: list[Reg]) -> None:
        self.i, self.carried, self.next = i, carried, list(carried)
        self.results: list[Reg] = []


class Function:
    """One LLVM function under construction. Use the arithmetic methods; `text()` gives the definition."""

    def __init__(self, name: str, params: Sequence[tuple[str, str]], result: str = "i32", attributes: str = "") -> None:
        self.name, self.result, self.attributes = name, result, attributes
        self.params = [Reg(f"%{label}", type_) for type_, label in params]
        self._lines: list[str] = []
        self._count = 0
        self.block = "entry"
        self._declared: set[str] = set()

    # -- plumbing --

    def fresh(self, type_: str) -> Reg:
        self._count += 1
        return Reg(f"%v{self._count}", type_)

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def line(self, text: str) -> int:
        """Appends a raw line; returns its number, to be patched later."""
        self._lines.append("  " + text)
        return len(self._lines) - 1

    def start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.block = label

    def assign(self, type_: str, text: str) -> Reg:
        out = self.fresh(type_)
        self.line(f"{out} = {text}")
        return out

    def declare(self, declaration: str) -> None:
        """Notes a `declare ...` line that the module needs."""
        self._declared.add(declaration)

    def text(self) -> str:
        params = ", ".join(f"{param.type} {param}" for param in self.params)
        body = "\n".join(self._lines)
        declared = "".join(f"{line}\n" for line in sorted(self._declared))
        return f"{declared}define {self.result} @{self.name}({params}) {self.attributes} {{\nentry:\n{body}\n}}\n"

    # -- i64 arithmetic, folded where known --

    def _int(self, op: str, a: Int, b: Int) -> Reg:
        return self.assign("i64", f"{op} i64 {a}, {b}")

    def add(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 and isinstance(a, int):
            return b
        return a if isinstance(b, int) and b == 0 else self._int("add", a, b)

    def sub(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if isinstance(b, int) and b == 0 else self._int("sub", a, b)

    def mul(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for known, other in ((a, b), (b, a)):
            if isinstance(known, int) and known in (0, 1):
                return other if known else 0
        return self._int("mul", a, b)

    def div(self, a: Int, b: Int) -> Int:
        """Floor division of non-negative integers; `b` is not zero."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if isinstance(b, int) and b == 1 else self._int("udiv", a, b)

    def rem(self, a: Int, b: Int) -> Int:
        """Remainder of non-negative integers; `b` is not zero."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if isinstance(b, int) and b == 1 else self._int("urem", a, b)

    def min(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self._minmax("smin", a, b)

    def max(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self._minmax("smax", a, b)

    def _minmax(self, op: str, a: Int, b: Int) -> Reg:
        return self.call("i64", f"llvm.{op}.i64", ("i64", a), ("i64", b))

    def compare(self, how: str, a: Int, b: Int) -> Reg:
        """Signed comparison of i64: eq, ne, slt, sle, sgt, sge."""
        return self.assign("i1", f"icmp {how} i64 {a}, {b}")

    def total(self, terms: Sequence[tuple[Int, Int]]) -> Int:
        """The sum of products."""
        out: Int = 0
        for a, b in terms:
            out = self.add(out, self.mul(a, b))
        return out

    def dim(self, dim: Dim, extents: dict[str, Int]) -> Int:
        """A dim over e0, e1 ... as an integer here."""
        if isinstance(dim, int):
            return dim
        out: Int = 0
        for monomial, factor in dim.terms:
            part: Int = factor
            for atom in monomial:
                if isinstance(atom, Symbol):
                    value: Int = extents[atom.name]
                else:
                    value = self._dim_call(atom, extents)
                part = self.mul(part, value)
            out = self.add(out, part)
        return out

    def _dim_call(self, atom: Call, extents: dict[str, Int]) -> Int:
        a, b = (self.dim(arg, extents) for arg in atom.args)
        if atom.op in ("min", "max"):
            return self.min(a, b) if atom.op == "min" else self.max(a, b)
        if atom.op == "//":
            return self.div(a, b)
        if atom.op == "%":
            return self.rem(a, b)
        raise CompileError(f"a kernel cannot compute {atom.op!r} of extents")

    # -- values --

    def call(self, type_: str, name: str, *args: tuple[str, object]) -> Reg:
        """Calls an intrinsic or function by name and declares it."""
        self.declare(f"declare {type_} @{name}({', '.join(arg_type for arg_type, _ in args)})")
        listed = ", ".join(f"{arg_type} {arg}" for arg_type, arg in args)
        return self.assign(type_, f"call {type_} @{name}({listed})")

    def binary(self, op: str, a: Reg, b: Reg) -> Reg:
        """`op` (fadd, fsub, fmul, fdiv, and, or, xor, add, sub, mul, shl ...) on two registers of one type."""
        return self.assign(a.type, f"{op} {a.type} {a}, {b}")

    def fma(self, a: Reg, b: Reg, c: Reg) -> Reg:
        """a * b + c with one rounding."""
        suffix = f"v{lanes(a.type)}" if lanes(a.type) > 1 else ""
        bits = {"float": "f32", "double": "f64"}[element(a.type)]
        return self.call(a.type, f"llvm.fma.{suffix}{bits}", (a.type, a), (a.type, b), (a.type, c))

    def constant(self, value: float, type_: str) -> Reg:
        """A float constant of a scalar or vector type, all lanes equal."""
        text = float_constant(value, element(type_))
        count = lanes(type_)
        return Reg(text if count == 1 else f"<{', '.join([f'{element(type_)} {text}'] * count)}>", type_)

    def int_constant(self, value: int, type_: str) -> Reg:
        """An integer constant of a scalar or vector type, all lanes equal."""
        count = lanes(type_)
        return Reg(str(value) if count == 1 else f"<{', '.join([f'{element(type_)} {value}'] * count)}>", type_)

    def zero(self, type_: str) -> Reg:
        if type_.startswith("<"):
            return Reg("zeroinitializer", type_)
        return self.int_constant(0, type_) if type_.startswith("i") else self.constant(0.0, type_)

    def splat(self, scalar: Reg, count: int) -> Reg:
        """All lanes equal to `scalar`."""
        if count == 1:
            return scalar
        wide = vector(scalar.type, count)
        first = self.assign(wide, f"insertelement {wide} poison, {scalar.type} {scalar}, i64 0")
        return self.assign(wide, f"shufflevector {wide} {first}, {wide} poison, <{count} x i32> zeroinitializer")

    def select(self, condition: Reg, a: Reg, b: Reg) -> Reg:
        return self.assign(a.type, f"select {condition.type} {condition}, {a.type} {a}, {b.type} {b}")

    def fcompare(self, how: str, a: Reg, b: Reg) -> Reg:
        """Float comparison: oeq, olt, ogt, uno ..."""
        return self.assign(vector("i1", lanes(a.type)), f"fcmp {how} {a.type} {a}, {b}")

    def icompare(self, how: str, a: Reg, b: Reg) -> Reg:
        """Integer comparison of registers of any width and lane count: eq, ne, slt, ult, sgt, ugt ..."""
        return self.assign(vector("i1", lanes(a.type)), f"icmp {how} {a.type} {a}, {b}")

    def intrinsic(self, name: str, *args: Reg) -> Reg:
        """`llvm.<name>` overloaded on the one type of its arguments and result: sqrt, floor, roundeven, smax ..."""
        kind = element(args[0].type)
        suffix = {"half": "f16", "float": "f32", "double": "f64"}.get(kind, kind)
        if lanes(args[0].type) > 1:
            suffix = f"v{lanes(args[0].type)}{suffix}"
        return self.call(args[0].type, f"llvm.{name}.{suffix}", *((arg.type, arg) for arg in args))

    def shuffle(self, a: Reg, b: Reg, indices: Sequence[int]) -> Reg:
        """The lanes `indices` of `a` followed by `b`."""
        mask = ", ".join(f"i32 {index}" for index in indices)
        return self.assign(
            vector(element(a.type), len(indices)),
            f"shufflevector {a.type} {a}, {b.type} {b}, <{len(indices)} x i32> <{mask}>",
        )

    def extract(self, a: Reg, lane: int) -> Reg:
        """One lane of a vector; a scalar itself."""
        return a if lanes(a.type) == 1 else self.assign(element(a.type), f"extractelement {a.type} {a}, i64 {lane}")

    def insert(self, a: Reg, scalar: Reg, lane: int) -> Reg:
        """`a` with one lane replaced."""
        return self.assign(a.type, f"insertelement {a.type} {a}, {scalar.type} {scalar}, i64 {lane}")

    def scratch(self, type_: str, count: int = 1) -> Reg:
        """Memory for `count` values of `type_` on the stack, 64-byte aligned. Only before the first branch."""
        if self.block != "entry":
            raise CompileError("stack memory is reserved in the entry block", got=self.block)
        return self.assign("ptr", f"alloca [{count} x {type_}], align 64")

    def convert(self, op: str, a: Reg, type_: str) -> Reg:
        """A conversion instruction: fpext, fptrunc, sitofp, fptosi, bitcast, zext, sext, trunc ..."""
        return self.assign(type_, f"{op} {a.type} {a} to {type_}")

    # -- memory --

    def address(self, base: Reg, offset: Int, size: int = 1) -> Reg:
        """`base + offset * size` in bytes."""
        where = self.mul(offset, size)
        if isinstance(where, int) and where == 0:
            return base
        return self.assign("ptr", f"getelementptr i8, ptr {base}, i64 {where}")

    def load(self, type_: str, address: Reg, align: int) -> Reg:
        return self.assign(type_, f"load {type_}, ptr {address}, align {align}")

    def store(self, value: Reg, address: Reg, align: int) -> None:
        self.line(f"store {value.type} {value}, ptr {address}, align {align}")

    def barrier(self) -> None:
        """A compiler barrier: keeps loads of one unrolled step from being hoisted over another (and spilled)."""
        self.line('call void asm sideeffect "", "~{memory}"()')

    # -- control --

    def ret(self, value: object) -> None:
        self.line(f"ret {self.result} {value}")

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    @contextmanager
    def loop(self, low: Int, high: Int, step: int = 1, carry: Sequence[Reg] = ()) -> Iterator[Loop]:
        """for i in range(low, high, step). One known trip is laid out straight, none at all is left out."""
        if isinstance(low, int) and isinstance(high, int) and low + step >= high > low:
            straight = Loop(low, list(carry))
            yield straight
            straight.results = list(straight.next)
            return
        before, head, body, done = self.block, self.label("head"), self.label("body"), self.label("done")
        self.jump(head)
        self.start(head)
        i = self.fresh("i64")
        phi = self.line("")
        carried = [self.fresh(reg.type) for reg in carry]
        phis = [self.line("") for _ in carry]
        test = self.compare("slt", i, high)
        self.line(f"br i1 {test}, label %{body}, label %{done}")
        self.start(body)
        loop = Loop(i, carried)
        yield loop
        following = self._int("add", i, step)
        last = self.block
        self.jump(head)
        self._lines[phi] = f"  {i} = phi i64 [ {low}, %{before} ], [ {following}, %{last} ]"
        for place, out, first, after in zip(phis, carried, carry, loop.next):
            self._lines[place] = f"  {out} = phi {out.type} [ {first}, %{before} ], [ {after}, %{last} ]"
        self.start(done)
        loop.results = carried

    @contextmanager
    def when(self, condition: Reg) -> Iterator[None]:
        """Runs the body only if `condition` (i1) holds. Values defined inside do not leave it."""
        yes, done = self.label("then"), self.label("after")
        self.line(f"br i1 {condition}, label %{yes}, label %{done}")
        self.start(yes)
        yield
        if not self._lines[-1].lstrip().startswith(("ret ", "br ")):
            self.jump(done)
        self.start(done)


class Kernel(Function):
    """A kernel function under construction, with the uniform signature of `KernelDef.emit`."""

    def __init__(self, symbol: str, extents: Sequence[str]) -> None:
        super().__init__(
            symbol,
            [
                *(("ptr", name) for name in ("ctx", "operands", "extents")),
                *(("i64", name) for name in ("begin", "end", "thread")),
            ],
            attributes="nounwind",
        )
        self.ctx, operands, table, self.begin, self.end, self.thread = self.params
        self._operands = operands
        self.extents: dict[str, Int] = {
            name: self.load("i64", self.address(table, index, 8), 8) for index, name in enumerate(extents)
        }

    def operand(self, index: int) -> Reg:
        """The pointer to the first element of an operand's view."""
        return self.load("ptr", self.address(self._operands, index, 8), 8)

    def thread_memory(self) -> Reg:
        """The memory that this thread has to itself, 64-byte aligned: as much as the kernel's `scratch` asks for."""
        base = self.load("ptr", self.address(self.ctx, FIELD["scratch"]), 8)
        size = self.load("i64", self.address(self.ctx, FIELD["scratch_bytes"]), 8)
        return self.address(base, self.mul(self.thread, size))

    def poll(self) -> None:
        """Returns from the kernel if the run is to stop. Call it once per tile row: well under 10 ms apart."""
        status = self.call("i32", "relume_poll", ("ptr", self.ctx), ("i64", self.thread))
        stop = self.assign("i1", f"icmp ne i32 {status}, 0")
        with self.when(stop):
            self.ret(status)

    def fail(self, status: Status, detail0: Int = 0, detail1: Int = 0) -> None:
        """Returns a non-zero status with two details for the message."""
        for name, value in (("detail0", detail0), ("detail1", detail1)):
            self.store(Reg(str(value), "i64"), self.address(self.ctx, FIELD[name]), 8)
        self.ret(int(status))

    def finish(self) -> str:
        """Returns OK and gives the definition."""
        self.ret(int(Status.OK))
        return self.text()
