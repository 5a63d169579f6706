"""`halo`: fills the border of a halo-padded image in place, and leaves the inside alone: x [N, CB, H, W, 16] if it is
`blocked`, else [N, C, H, W].

`pads` are the widths (top, left, bottom, right) of the border, which is part of H and W.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels import elementwise
from relume.kernels.ir import Int, Kernel, Reg
from relume.kernels.nest import Axis, advance, estimate, is_empty, polled, unravel
from relume.program.types import Border, ConstReader, KernelDef, KernelSpec, Param


def emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    """See `KernelDef.emit`."""
    (image,) = spec.operands
    f = Kernel(symbol, spec.extents)
    if any(extent == 0 for extent in image.dims):
        return f.finish()
    blocked = (image.dims[4:], image.strides[4:]) == ((BLOCK,), (1,))
    if len(image.dims) != (5 if blocked else 4) or blocked != spec["blocked"]:
        raise CompileError("a halo is for images", expected="[N,CB,H,W,16] if blocked, else [N,C,H,W]", got=image)
    lanes = BLOCK if blocked else 1
    top, left, bottom, right = cast("tuple[int, int, int, int]", spec["pads"])
    size = image.dtype.bytes
    height, width = (f.dim(image.dims[axis], f.extents) for axis in (2, 3))
    fill = elementwise.constant(f, spec["value"], image.dtype, lanes)
    axes = [Axis(extent, (stride,)) for extent, stride in zip(image.dims, image.strides)]
    pointer = f.operand(0)

    def strip(plane: Reg, rows: tuple[Int, Int], columns: tuple[Int, Int]) -> None:
        with polled(f, *rows, lanes * estimate([image.dims[3]])) as i:
            (row,) = advance(f, [plane], [size], axes[2], i.i)
            with polled(f, *columns, lanes) as j:
                (pixel,) = advance(f, [row], [size], axes[3], j.i)
                elementwise.store(f, image.dtype, fill, pixel)

    with f.loop(f.begin, f.end) as task:
        f.poll()
        plane = pointer
        for axis, index in zip(axes, unravel(f, task.i, image.dims[:2])):
            (plane,) = advance(f, [plane], [size], axis, index)
        low, high = f.sub(height, bottom), f.sub(width, right)
        for rows, columns in (
            ((0, top), (0, width)),
            ((top, low), (0, left)),
            ((top, low), (high, width)),
            ((low, height), (0, width)),
        ):
            if not (is_empty(*rows) or is_empty(*columns)):
                strip(plane, rows, columns)
    return f.finish()


def tasks(spec: KernelSpec) -> Dim:
    """Planes."""
    return dims.product(spec.operands[0].dims[:2])


def work(spec: KernelSpec) -> Dim:
    """Elements written."""
    n, blocks, height, width, *lanes = spec.operands[0].dims
    top, left, bottom, right = cast("tuple[int, int, int, int]", spec["pads"])
    return n * blocks * dims.product(lanes) * (width * (top + bottom) + height * (left + right))


def border(params: Mapping[str, Param]) -> Border:
    """The rows and columns around the image."""
    top, left, bottom, right = cast("tuple[int, int, int, int]", params["pads"])
    return ((0, 0), (0, 0), (top, bottom), (left, right), *(((0, 0),) if params["blocked"] else ()))


HALO = KernelDef("halo", "Fills the border strips of a halo-padded image in place.", emit, tasks, work, border=border)
