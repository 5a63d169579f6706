"""The only door to LLVM. Whoever has everything in the cache never imports this file."""

from __future__ import annotations

import functools
import re

import llvmlite.binding as binding

from relume.base.errors import CompileError
from relume.base.targets import Target

calls = 0
"""How often LLVM has generated code in this process. A compile from the cache adds nothing to it."""

_INTRINSIC_FEATURES = (
    ("llvm.x86.avx512.vpdpbus", "avx512vnni"),
    ("llvm.x86.avx512.", "avx512f"),
    ("llvm.x86.avx2.", "avx2"),
    ("llvm.x86.avx.", "avx"),
    ("llvm.x86.fma.", "fma"),
    ("llvm.x86.vcvtps2ph", "f16c"),
    ("llvm.x86.sse2.", "sse2"),
    ("llvm.x86.sse3.", "sse3"),
    ("llvm.x86.ssse3.", "ssse3"),
    ("llvm.x86.sse41.", "sse4.1"),
    ("llvm.x86.sse42.", "sse4.2"),
)
_INTRINSIC = re.compile(r"@(llvm\.x86\.[\w.]+)")
_POSITION = re.compile(r":(\d+):(\d+): (error: .*)")


@functools.cache
def _initialize() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # Without it inline assembly ends the process.


@functools.lru_cache(maxsize=16)
def _machine(target: Target, opt: int) -> binding.TargetMachine:
    _initialize()
    return binding.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_string, opt=opt, reloc="pic", codemodel="small"
    )


def _require_intrinsics(text: str, target: Target) -> None:
    """LLVM ends the process on a target intrinsic that the target lacks: refuse it before."""
    for name in sorted(set(_INTRINSIC.findall(text))):
        for prefix, feature in _INTRINSIC_FEATURES:
            if name.startswith(prefix):
                target.require(feature)
                break
        else:
            raise CompileError(
                f"no feature is known for the target intrinsic {name}", hint="add its row in codegen/llvm.py"
            )


def _around(text: str, line: int) -> str:
    lines = text.splitlines()
    first = max(1, line - 5)
    return "\n".join(f"{number:5} {content}" for number, content in enumerate(lines[first - 1 : line + 4], first))


def _parse(text: str, target: Target, opt: int, name: str) -> binding.ModuleRef:
    _require_intrinsics(text, target)
    layout = _machine(target, opt).target_data
    # On the first line, so that the line numbers of messages are those of the text.
    head = f'target datalayout = "{layout}" target triple = "{target.triple}" '
    try:
        module = binding.parse_assembly(head + text)
    except RuntimeError as error:
        found = _POSITION.search(str(error))
        line = int(found[1]) if found else 1
        raise CompileError(
            f"LLVM cannot read the code of {name}",
            where=f"line {line}",
            got=found[3] if found else str(error).strip(),
            context=_around(text, line),
        ) from None
    try:
        module.verify()
    except RuntimeError as error:
        complaint = str(error).strip()
        line = _guilty_line(text, complaint)
        raise CompileError(
            f"LLVM refuses the code of {name}",
            where=f"line {line}" if line else None,
            got=complaint,
            context=_around(text, line) if line else None,
        ) from None
    return module


def _guilty_line(text: str, complaint: str) -> int:
    """The number of the line that the verifier quotes; 0 if it quotes none."""
    lines = [line.strip() for line in text.splitlines()]
    for quoted in complaint.splitlines():
        if quoted.strip() in lines and quoted.strip():
            return lines.index(quoted.strip()) + 1
    return 0


def compile_ir(text: str, target: Target, opt: int = 2, *, name: str = "a module") -> bytes:
    """The object file of LLVM IR text. Raises `CompileError` that shows the line which LLVM complains about.

    There is no pass pipeline: kernels are written as they are to run (measured: it adds time and no speed).
    """
    global calls
    module = _parse(text, target, opt, name)
    calls += 1
    return bytes(_machine(target, opt).emit_object(module))


def assembly(text: str, target: Target, opt: int = 2, *, name: str = "a module") -> str:
    """The assembly of LLVM IR text, for people. Raises as `compile_ir` does."""
    global calls
    module = _parse(text, target, opt, name)
    calls += 1
    return str(_machine(target, opt).emit_assembly(module))
