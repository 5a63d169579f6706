"""Kernels: how each kind of instruction touches memory, and the LLVM IR that does it. One file per family.

`KERNELS` is the registry by name. Emitters write text; nothing here imports LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from relume.kernels.argmax import ARGMAX
from relume.kernels.conv import CONV_BLOCKED
from relume.kernels.conv_plain import CONV_PLAIN
from relume.kernels.cumulative import CUMULATIVE
from relume.kernels.depthwise import DEPTHWISE_BLOCKED
from relume.kernels.dot import DOT
from relume.kernels.extents import EXTENTS
from relume.kernels.gather import GATHER, GATHER_ND
from relume.kernels.halo import HALO
from relume.kernels.iota import IOTA
from relume.kernels.map import MAP
from relume.kernels.matmul import MATMUL_PACKED
from relume.kernels.reduce import REDUCE
from relume.kernels.rows import ROWS
from relume.kernels.scatter import ROW_NUMBERS, SCATTER_ADD, SCATTER_UPDATE
from relume.kernels.scatter_nd import SCATTER_ND
from relume.kernels.strips import STRIPS
from relume.kernels.top_k import TOP_K
from relume.kernels.window import WINDOW
from relume.kernels.winograd import CONV_WINOGRAD
from relume.program.types import KernelDef

KERNELS: Mapping[str, KernelDef] = MappingProxyType(
    {
        kernel.name: kernel
        for kernel in (
            MAP,
            REDUCE,
            ROWS,
            STRIPS,
            ARGMAX,
            CUMULATIVE,
            TOP_K,
            WINDOW,
            GATHER,
            ROW_NUMBERS,
            GATHER_ND,
            SCATTER_ND,
            SCATTER_ADD,
            SCATTER_UPDATE,
            HALO,
            EXTENTS,
            IOTA,
            MATMUL_PACKED,
            DOT,
            CONV_BLOCKED,
            CONV_WINOGRAD,
            DEPTHWISE_BLOCKED,
            CONV_PLAIN,
        )
    }
)
"""Every kernel that there is, by name."""
