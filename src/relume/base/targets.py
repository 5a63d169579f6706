"""Targets: what the generated code may use, never taken from the host by accident."""

from __future__ import annotations

from dataclasses import dataclass, field

from relume.base.errors import CompileError

BLOCK = 16
"""Lanes of a channel block and of a reduction, on every target, so that results have the same bits everywhere."""


@dataclass(frozen=True, repr=False)
class Target:
    """A machine to generate code for.

    `triple`, `cpu` and `features` go to LLVM as they are. `vector_bits` and `registers` size the tiles; they are a
    choice of schedule and never change a result's bits.
    """

    name: str
    triple: str
    cpu: str
    features: frozenset[str] = field(default_factory=frozenset)
    vector_bits: int = 256
    registers: int = 16

    def __repr__(self) -> str:
        return self.name  # A set of features prints in another order under another hash seed.

    def require(self, feature: str) -> None:
        """Raises `CompileError` where this target lacks `feature`: LLVM ends the process on a missing one."""
        if feature not in self.features:
            raise CompileError(
                f"target {self.name} has no {feature}",
                expected=feature,
                got=", ".join(sorted(self.features)),
                hint="compile for a target that has it, or use the kernel's other form",
            )

    @property
    def feature_string(self) -> str:
        """For LLVM: sorted, so that it is the same text every time."""
        return ",".join("+" + feature for feature in sorted(self.features))

    @property
    def vectors_per_block(self) -> int:
        """Registers that one 16-lane float32 block takes."""
        return BLOCK * 32 // self.vector_bits


_LINUX = "x86_64-unknown-linux-gnu"
_V3 = frozenset(
    [
        "sse2",
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "popcnt",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi",
        "bmi2",
        "lzcnt",
        "movbe",
        "cx16",
    ]
)
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "evex512"])

AVX2 = Target("x86-64-avx2", _LINUX, "x86-64-v3", _V3, 256, 16)
AVX512 = Target("x86-64-avx512", _LINUX, "x86-64-v4", _V4 - {"evex512"}, 512, 32)
BY_NAME: dict[str, Target] = {target.name: target for target in (AVX2, AVX512)}


def host_features() -> frozenset[str]:
    """The feature flags of this machine as the kernel reports them. Empty where they cannot be read."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def runs_here(target: Target) -> bool:
    """Whether this machine can run code made for `target`."""
    flags = host_features()
    needed = {"avx2", "fma"} | ({"avx512f", "avx512bw", "avx512dq", "avx512vl"} if target is AVX512 else set())
    return needed <= flags


def parse(name: str) -> Target:
    """`host`, or the name of a target. Raises `CompileError` for a name or a machine that is not supported."""
    if name in BY_NAME:
        return BY_NAME[name]
    if name != "host":
        raise CompileError(f"there is no target {name!r}", expected=", ".join(["host", *BY_NAME]), got=name)
    for target in (AVX512, AVX2):
        if runs_here(target):
            return target
    raise CompileError(
        "this machine is not supported", expected="Linux on x86-64 with AVX2 and FMA", hint="run on another machine"
    )
