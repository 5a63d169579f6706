"""Addresses of the functions from outside that generated code calls, all known before any of it runs."""

from __future__ import annotations

import ctypes
from functools import cache

from relume.base import abi
from relume.base.errors import CompileError

_LIBRARIES = (ctypes.pythonapi, ctypes.CDLL(None), ctypes.CDLL("libm.so.6"))


def _lookup(name: str) -> int:
    for library in _LIBRARIES:
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address:
            return address
    raise CompileError(f"this system has no function {name!r}", hint="run on Linux with the GNU C library")


@cache
def symbol_address(name: str) -> int:
    """The address of a symbol that an image leaves open. Raises `CompileError` unless it is in `abi.SYMBOLS`."""
    if name not in abi.SYMBOLS:
        raise CompileError(
            "the code calls a function that it must not",
            expected="one of " + ", ".join(sorted(abi.SYMBOLS)),
            got=name,
            hint="report this: code generation let an undefined symbol through",
        )
    return _lookup(name)


@cache
def imports() -> ctypes.Array[ctypes.c_uint64]:
    """The context's `imports` table: one for the process, alive for ever."""
    addresses = [_lookup(name) for name in abi.IMPORTS]
    return (ctypes.c_uint64 * len(addresses))(*addresses)
