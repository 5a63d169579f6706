"""Program to machine code. LLVM is loaded only when something must be compiled."""

from relume.codegen.artifacts import Kernels, build, emit_assembly, emit_llvm, llvm_calls
from relume.codegen.cache import Cache, CacheWarning, default_cache

__all__ = ["Cache", "CacheWarning", "Kernels", "build", "default_cache", "emit_assembly", "emit_llvm", "llvm_calls"]
