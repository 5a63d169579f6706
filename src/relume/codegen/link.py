"""A small static linker: relocatable x86-64 ELF objects in, one position-independent `Image` out.

Layout: code of all objects, stubs, read-only data, slots. The image holds no absolute address, so it runs wherever it
is mapped; the only places that are filled at load time are the slots, one per symbol from outside.

Nothing in an object is trusted: every offset is checked, and a damaged object is a `CompileError`.

ELF: System V ABI, AMD64 supplement, chapter 4.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from relume.base import abi
from relume.base.errors import CompileError
from relume.runtime.artifact import Image

_PROGBITS, _SYMTAB, _RELA, _REL = 1, 2, 4, 9
_ALLOC, _EXECUTE, _TLS = 0x2, 0x4, 0x400
_UNDEFINED, _RESERVED = 0, 0xFF00
_LOCAL, _GLOBAL, _WEAK = 0, 1, 2
_PLAIN_TYPES = (0, 1, 2, 3, 4)  # none, object, function, section, file

_PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX = 2, 4, 9, 41, 42
_RELATIVE = (_PC32, _PLT32)
_THROUGH_SLOT = (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX)

_DROPPED = (".eh_frame", ".note")  # Nothing unwinds through generated code.
_READ_ONLY = (".rodata", ".data.rel.ro")

_STUB_SIZE = 8
_LINE = 64


@dataclass(eq=False)
class _Section:
    """One section that goes into the image."""

    name: str
    data: bytes
    align: int
    executable: bool
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)  # offset, type, symbol index, addend
    at: int = 0


@dataclass(frozen=True)
class _Symbol:
    name: str
    binding: int
    section: int
    value: int


@dataclass(frozen=True, eq=False)
class _Object:
    name: str
    sections: dict[int, _Section]
    symbols: list[_Symbol]


class _Reader:
    """Bounds-checked access to the bytes of one object."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data

    def damaged(self, what: str) -> CompileError:
        return CompileError(
            f"the object of {self.name} is damaged: {what}", hint="clear the cache; if it happens again, report it"
        )

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        if offset < 0 or offset + struct.calcsize(form) > len(self.data):
            raise self.damaged(f"nothing at byte {offset}")
        return struct.unpack_from(form, self.data, offset)

    def cut(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise self.damaged(f"no {size} bytes at {offset}")
        return self.data[offset : offset + size]

    def records(self, form: str, offset: int, size: int) -> list[tuple[int, ...]]:
        if size % struct.calcsize(form):
            raise self.damaged(f"a table of {size} bytes")
        return list(struct.iter_unpack(form, self.cut(offset, size)))

    def string(self, table: bytes, offset: int) -> str:
        end = table.find(b"\0", offset)
        if offset > len(table) or end < 0:
            raise self.damaged("a name is cut off")
        try:
            return table[offset:end].decode("ascii")
        except UnicodeDecodeError:
            raise self.damaged("a name is not ASCII") from None


def _read(name: str, data: bytes) -> _Object:
    """Reads one object. Raises `CompileError` where it is damaged, or holds what an image cannot hold."""
    reader = _Reader(name, data)
    magic = reader.cut(0, 16)
    kind, machine = reader.unpack("<HH", 16)
    if magic[:7] != b"\x7fELF\x02\x01\x01" or (kind, machine) != (1, 62):
        raise reader.damaged("not a relocatable x86-64 ELF file")
    (table,) = reader.unpack("<Q", 0x28)
    entry, count, names_index = reader.unpack("<HHH", 0x3A)
    if entry != 64 or names_index >= count:
        raise reader.damaged("its section table")
    headers = reader.records("<IIQQQQIIQQ", table, 64 * count)
    names = reader.cut(headers[names_index][4], headers[names_index][5])

    sections: dict[int, _Section] = {}
    for index, (name_at, kind, flags, _, offset, size, _, _, align, _) in enumerate(headers):
        label = reader.string(names, name_at)
        if not flags & _ALLOC or not size or label.startswith(_DROPPED):
            continue
        executable = bool(flags & _EXECUTE) and label.startswith(".text")
        if kind != _PROGBITS or flags & _TLS or not (executable or label.startswith(_READ_ONLY)):
            raise CompileError(
                f"kernel {name} has writable data in section {label}",
                expected="code and constants only",
                hint="a kernel keeps its data in operands or on the stack",
            )
        align = max(1, align)
        if align & (align - 1) or align > 4096:
            raise reader.damaged(f"section {label} wants an alignment of {align}")
        sections[index] = _Section(label, reader.cut(offset, size), align, executable)

    symbols: list[_Symbol] = []
    for _, kind, _, _, offset, size, link, _, _, _ in headers:
        if kind != _SYMTAB:
            continue
        if symbols or link >= count:
            raise reader.damaged("its symbol tables")
        strings = reader.cut(headers[link][4], headers[link][5])
        for name_at, info, _, section, value, _ in reader.records("<IBBHQQ", offset, size):
            label = reader.string(strings, name_at)
            if info >> 4 not in (_LOCAL, _GLOBAL, _WEAK) or info & 15 not in _PLAIN_TYPES:
                raise CompileError(f"kernel {name}: symbol {label} is of a kind that an image cannot hold", got=info)
            if section in sections and value > len(sections[section].data):
                raise reader.damaged(f"symbol {label} lies outside its section")
            symbols.append(_Symbol(label, info >> 4, section, value))

    for _, kind, _, _, offset, size, _, target, _, _ in headers:
        if kind == _REL:
            raise reader.damaged("relocations without addends")
        if kind != _RELA or target not in sections:
            continue
        owner = sections[target]
        for where, info, addend in reader.records("<QQq", offset, size):
            if where + 4 > len(owner.data) or info >> 32 >= len(symbols):
                raise reader.damaged(f"a relocation of {owner.name}")
            owner.relocations.append((where, info & 0xFFFFFFFF, info >> 32, addend))
    return _Object(name, sections, symbols)


def _definitions(objects: Sequence[_Object]) -> dict[str, tuple[_Object, _Symbol]]:
    """Every global definition by name. Raises `CompileError` on a second one."""
    defined: dict[str, tuple[_Object, _Symbol]] = {}
    for part in objects:
        for symbol in part.symbols:
            if symbol.binding == _LOCAL or symbol.section == _UNDEFINED:
                continue
            if symbol.section not in part.sections:
                raise CompileError(f"kernel {part.name}: symbol {symbol.name} is neither code nor a constant")
            if symbol.name in defined:
                raise CompileError(
                    f"symbol {symbol.name} is defined twice",
                    where=f"{defined[symbol.name][0].name} and {part.name}",
                    hint="helpers of a kernel are `internal`",
                )
            defined[symbol.name] = (part, symbol)
    return defined


def _outside(objects: Sequence[_Object], defined: dict[str, tuple[_Object, _Symbol]]) -> tuple[set[str], set[str]]:
    """The symbols from outside: (all of them, those that code calls directly and that need a stub).

    Raises `CompileError` for one that is not in `abi.SYMBOLS`.
    """
    slots: set[str] = set()
    stubs: set[str] = set()
    for part in objects:
        for section in part.sections.values():
            for _, kind, index, _ in section.relocations:
                symbol = part.symbols[index]
                if symbol.section != _UNDEFINED or symbol.name in defined:
                    continue
                if symbol.name not in abi.SYMBOLS:
                    raise CompileError(
                        f"kernel {part.name} calls {symbol.name!r}, which nobody provides",
                        expected=f"a symbol of the image, or one of {', '.join(sorted(abi.SYMBOLS))}",
                        got=symbol.name,
                        hint="write the operation out in the kernel instead of leaving it to a library",
                    )
                slots.add(symbol.name)
                if kind in _RELATIVE:
                    stubs.add(symbol.name)
    return slots, stubs


def _align(at: int, to: int) -> int:
    return -(-at // to) * to


def link(objects: Sequence[tuple[str, bytes]]) -> Image:
    """One image of all objects, in their order. Each comes with a name for messages (a kernel's symbol).

    Raises `CompileError` for a damaged object, writable data, a symbol that is missing or defined twice, and a
    relocation that would need an absolute address.
    """
    parts = [_read(name, data) for name, data in objects]
    defined = _definitions(parts)
    slot_names, stub_names = _outside(parts, defined)

    end = 0

    def place(executable: bool) -> None:
        nonlocal end
        for part in parts:
            for section in part.sections.values():
                if section.executable is executable:
                    section.at = _align(end, max(16, section.align))
                    end = section.at + len(section.data)

    place(executable=True)
    stub_base = _align(end, 16)
    stubs = {name: stub_base + _STUB_SIZE * index for index, name in enumerate(sorted(stub_names))}
    end = _align(stub_base + _STUB_SIZE * len(stubs), _LINE)
    data_base = end
    place(executable=False)
    slot_base = _align(end, _LINE)
    slots = {name: slot_base + 8 * index for index, name in enumerate(sorted(slot_names))}

    code = bytearray(b"\xcc" * data_base + b"\0" * (slot_base + 8 * len(slots) - data_base))
    for name, at in stubs.items():  # jmp *slot(%rip)
        code[at : at + 6] = b"\xff\x25" + struct.pack("<i", slots[name] - (at + 6))
    for part in parts:
        for section in part.sections.values():
            code[section.at : section.at + len(section.data)] = section.data
    for part in parts:
        for section in part.sections.values():
            for relocation in section.relocations:
                _relocate(code, part, section, relocation, defined, stubs, slots)
    exports = {name: part.sections[symbol.section].at + symbol.value for name, (part, symbol) in defined.items()}
    return Image(bytes(code), dict(sorted(exports.items())), tuple((at, name) for name, at in sorted(slots.items())))


def _relocate(
    code: bytearray,
    part: _Object,
    section: _Section,
    relocation: tuple[int, int, int, int],
    defined: dict[str, tuple[_Object, _Symbol]],
    stubs: dict[str, int],
    slots: dict[str, int],
) -> None:
    where, kind, index, addend = relocation
    symbol = part.symbols[index]
    place = section.at + where
    owner = part
    if symbol.section == _UNDEFINED and symbol.name in defined:
        owner, symbol = defined[symbol.name]
    if symbol.section != _UNDEFINED and symbol.section not in owner.sections:
        raise CompileError(f"kernel {part.name}: {section.name} refers to {symbol.name or 'a section'}, left out")
    if symbol.section == _UNDEFINED:
        target = slots[symbol.name] if kind in _THROUGH_SLOT else stubs.get(symbol.name, 0)
    else:
        target = owner.sections[symbol.section].at + symbol.value
        if kind in _THROUGH_SLOT:
            # The address is known relative to here: `mov slot(%rip), reg` becomes `lea target(%rip), reg`.
            if where < 2 or code[place - 2] != 0x8B:
                raise CompileError(f"kernel {part.name} takes the address of {symbol.name} in an unknown way")
            code[place - 2] = 0x8D
    if kind not in _RELATIVE + _THROUGH_SLOT:
        raise CompileError(
            f"kernel {part.name} holds an absolute address",
            where=f"{section.name} + {where}",
            got=f"relocation type {kind} to {symbol.name or 'a section'}",
            hint="an image runs wherever it is mapped: use relative addresses",
        )
    value = target + addend - place
    if not -(1 << 31) <= value < 1 << 31:
        raise CompileError(f"kernel {part.name}: {symbol.name} is more than 2 GB away")
    code[place : place + 4] = struct.pack("<i", value)
