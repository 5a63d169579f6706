"""Maps machine code: first written, then sealed, never writable and executable at once."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

from relume.base.errors import CompileError, RunError
from relume.runtime.artifact import Image
from relume.runtime.symbols import symbol_address

ENTRY = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
"""`relume_entry(ctx)`. It is called with the GIL held and lets go of it itself, and if it comes back with a Python
exception pending (a signal handler raised), ctypes raises that: this is what tells PYFUNCTYPE from CFUNCTYPE."""
POOL_START = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
"""`relume_pool_start(pool, imports, threads)`."""

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_mprotect.restype = ctypes.c_int


class MappedImage:
    """An image in memory, ready to be called. The mapping lives as long as this object.

    Raises `CompileError` if the image is inconsistent or names a symbol that is not allowed (nothing is mapped then),
    `RunError` if the system refuses executable pages.
    """

    def __init__(self, image: Image) -> None:
        size = len(image.code)
        for name, offset in image.exports.items():
            if not 0 <= offset < size:
                raise CompileError(f"export {name!r} lies outside the code", expected=f"0 to {size - 1}", got=offset)
        slots = [(offset, symbol_address(name)) for offset, name in image.slots]
        for offset, _ in slots:
            if not 0 <= offset <= size - 8:
                raise CompileError("a slot lies outside the code", expected=f"0 to {size - 8}", got=offset)
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:size] = image.code
        for offset, address in slots:
            memory[offset : offset + 8] = address.to_bytes(8, "little")
        self._hold = ctypes.c_char.from_buffer(memory)
        self._base = ctypes.addressof(self._hold)
        self._exports = dict(image.exports)
        if _mprotect(self._base, len(memory), mmap.PROT_READ | mmap.PROT_EXEC):
            raise RunError(
                "the system does not let this process run generated code",
                got=os.strerror(ctypes.get_errno()),
                hint="allow executable memory (SELinux: execmem; systemd: MemoryDenyWriteExecute=no)",
            )

    def __contains__(self, name: str) -> bool:
        return name in self._exports

    def address(self, name: str) -> int:
        """The address of an exported function. Raises `CompileError` where there is none by that name."""
        if name not in self._exports:
            raise CompileError(
                f"the code has no function {name!r}", expected=", ".join(sorted(self._exports)), got=name
            )
        return self._base + self._exports[name]

    def entry(self, name: str = "relume_entry") -> Callable[[int], int]:
        """`relume_entry` as a Python function of the context's address. The caller keeps the image alive."""
        return ENTRY(self.address(name))
