"""Matrix product with a packed right side: y[.., m, n] = sum over k of a[.., m, k] * bp[.., n // 16, k, n % 16].

Every element is one chain of fused multiply-adds, ascending in k from 0, so its bits depend on no tile, task, batch
position or target. Columns come in panels of 16 that are padded with zeros: a tile is computed whole, and only its
store minds the ragged last panel.

Loop order (innermost last): batch, group of rows, group of panels | panel tile, row tile, k. What stands left of the
bar is a task. A group's rows of `a` stay in the second-level cache while the panels pass by, and a panel stays in
the first or second level while the group's rows pass by; so k is not blocked, and accumulators never leave their
registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relume.base import dims
from relume.base.dims import Dim
from relume.base.errors import CompileError
from relume.base.targets import BLOCK, Target
from relume.kernels.epilogue import Epilogue, reuse
from relume.kernels.ir import Int, Kernel, Reg, llvm_type, vector
from relume.kernels.microkernel import Product, split, tile_loop, unravel
from relume.kernels.tiles import accumulators, segments, vectors_per_block
from relume.program.types import IN, ConstReader, KernelDef, KernelSpec, OperandSpec, Reuse

UNROLL = 4
"""Steps of k per trip of the inner loop."""

ROW_POINTERS = 6
"""Rows of a tile at most, where their distance is not known: each takes a general register, and there are 16."""

PREFETCH_FROM = 256 * 1024
"""Bytes of right side from which panels are fetched ahead: they do not stay in the second-level cache."""
PREFETCH_AHEAD = 4096


@dataclass(frozen=True)
class _Shape:
    """Batch extents, the three extents, and how many rows and panels make a task."""

    batch: tuple[Dim, ...]
    m: Dim
    n: Dim
    k: Dim
    panels: Dim
    row_group: int
    panel_group: int


def _check(spec: KernelSpec) -> None:
    if len(spec.operands) < 3 or spec.operands[-1].access == IN:
        raise CompileError(f"{spec.kernel} takes two factors, extras, and outputs", got=str(spec))
    a, bp = spec.operands[:2]
    if a.dtype is not bp.dtype or a.dtype.name not in ("f32", "f64"):
        raise CompileError(f"{spec.kernel} multiplies f32 or f64", got=f"{a.dtype} by {bp.dtype}")
    ranks = [len(operand.dims) for index, operand in enumerate(spec.operands) if index != 1]
    if min(ranks) < 2 or min(ranks) != max(ranks) or not 3 <= len(bp.dims) <= ranks[0] + 1:
        raise CompileError(f"{spec.kernel}: all but the right side have the result's rank", got=str(spec))
    if bp.dims[-1] != BLOCK:
        raise CompileError(f"{spec.kernel}: the right side comes in panels of {BLOCK} columns", got=str(bp))


def _shape(spec: KernelSpec) -> _Shape:
    a, bp = spec.operands[:2]
    y = spec.operands[-1]
    m, k = a.dims[-2:]
    # Groups of rows share panels, few enough of them that a group of `a` fits half a second-level cache. Both sizes
    # are multiples of every full tile height (3, 6, 14).
    row_group = 42 if isinstance(k, int) and k > 1024 else 84
    # With few rows the accumulators go to more panels.
    panel_group = 8 if isinstance(m, int) and m <= 4 else 4
    return _Shape(y.dims[:-2], m, y.dims[-1], k, bp.dims[-3], row_group, panel_group)


def _collapsed(spec: KernelSpec) -> KernelSpec:
    """Batch axes folded into the rows, where the right side has no batch and every other operand allows it."""
    while spec.operands[-1].strides[:-2]:
        bp = spec.operands[1]
        others = [operand for index, operand in enumerate(spec.operands) if index != 1]
        if any(stride != 0 for stride in bp.strides[:-3]) or not all(map(_foldable, others)):
            return spec
        right = replace(bp, dims=bp.dims[-3:], strides=bp.strides[-3:])
        folded = [right if index == 1 else _folded(operand) for index, operand in enumerate(spec.operands)]
        spec = replace(spec, operands=tuple(folded))
    return spec


def _foldable(operand: OperandSpec) -> bool:
    if len(operand.dims) < 3:
        return False
    return operand.dims[-3] == 1 or operand.strides[-3] == operand.dims[-2] * operand.strides[-2]


def _folded(operand: OperandSpec) -> OperandSpec:
    rows = operand.dims[-3] * operand.dims[-2]
    stride = operand.strides[-3] if operand.dims[-2] == 1 else operand.strides[-2]
    return replace(
        operand,
        dims=(*operand.dims[:-3], rows, operand.dims[-1]),
        strides=(*operand.strides[:-3], stride, operand.strides[-1]),
    )


def _tasks(spec: KernelSpec) -> Dim:
    shape = _shape(_collapsed(spec))
    groups = dims.ceildiv(shape.m, shape.row_group) * dims.ceildiv(shape.panels, shape.panel_group)
    return dims.product(shape.batch) * groups


def _work(spec: KernelSpec) -> Dim:
    shape = _shape(spec)
    return dims.product(shape.batch) * shape.m * shape.n * shape.k * 2


def _may_reuse(spec: KernelSpec) -> Reuse:
    return reuse(spec, 2)


class _Matmul:
    """One kernel under construction."""

    def __init__(self, spec: KernelSpec, target: Target, symbol: str) -> None:
        _check(spec)
        self.f = f = Kernel(symbol, spec.extents)  # The names before folding: the table's order is the caller's.
        spec = _collapsed(spec)
        self.shape = shape = _shape(spec)
        a, bp = spec.operands[:2]
        self.size, self.type = a.dtype.bytes, llvm_type(a.dtype)
        self.a, self.bp = f.operand(0), f.operand(1)
        self.a_strides = [f.dim(stride, f.extents) for stride in a.strides]
        self.bp_strides = [f.dim(stride, f.extents) for stride in bp.strides]
        self.epilogue = Epilogue.of(f, spec, 2)
        budget = accumulators(target) // vectors_per_block(target, a.dtype)
        wide = 2 if budget >= 28 else 1
        if isinstance(shape.m, int) and shape.m:
            wide = max(wide, min(budget // shape.m, shape.panel_group))
        if not isinstance(a.strides[-2], int) and budget // wide > ROW_POINTERS:
            wide = min(budget // ROW_POINTERS, shape.panel_group)
            budget = wide * ROW_POINTERS
        self.rows = segments(shape.m, budget // wide, shape.row_group)
        self.columns = segments(shape.panels, wide, shape.panel_group)
        most = max((segment.size for segment in self.rows), default=1)
        self.scratch = f.scratch(vector(self.type, BLOCK), most)
        self.m, self.n, self.k, self.panels = (
            f.dim(extent, f.extents) for extent in (shape.m, shape.n, shape.k, shape.panels)
        )
        bytes_ = shape.panels * shape.k * BLOCK * self.size
        # Steps at a distance that is not known would take registers too.
        self.unroll = UNROLL if isinstance(a.strides[-1], int) and isinstance(bp.strides[-2], int) else 1
        self.prefetches = not isinstance(bytes_, int) or bytes_ > PREFETCH_FROM

    def emit(self) -> str:
        f, shape = self.f, self.shape
        panel_groups = f.div(f.add(self.panels, shape.panel_group - 1), shape.panel_group)
        row_groups = f.div(f.add(self.m, shape.row_group - 1), shape.row_group)
        batch = [f.dim(extent, f.extents) for extent in shape.batch]
        with f.loop(f.begin, f.end) as task:
            f.poll()
            panel = f.mul(f.rem(task.i, panel_groups), shape.panel_group)
            rest = f.div(task.i, panel_groups)
            row = f.mul(f.rem(rest, row_groups), shape.row_group)
            where = unravel(f, f.div(rest, row_groups), batch)
            a = f.address(self.a, f.total(list(zip(where, self.a_strides))), self.size)
            # The right side may lack batch axes.
            shared = self.bp_strides[:-3]
            bp = f.address(self.bp, f.total(list(zip(where[len(where) - len(shared) :], shared))), self.size)
            epilogue = self.epilogue.at(*where)
            for columns in self.columns:
                with tile_loop(f, columns, panel, shape.panel_group) as p:
                    b = f.address(bp, f.mul(p.i, self.bp_strides[-3]), self.size)
                    for rows in self.rows:
                        with tile_loop(f, rows, row, shape.row_group) as r:
                            top = f.address(a, f.mul(r.i, self.a_strides[-2]), self.size)
                            accumulated = self.multiply(top, b, rows.size, columns.size)
                            self.store(epilogue, len(where), r.i, p.i, accumulated)
        return f.finish()

    def multiply(self, a: Reg, b: Reg, rows: int, panels: int) -> list[list[Reg]]:
        """The product of `rows` rows at `a` and `panels` panels at `b`: registers [panel][row]."""
        f = self.f
        row_step, left_step = self.a_strides[-2:]
        lines = [split(f, (a, 0), f.mul(row, row_step), self.size) for row in range(rows)]
        columns = [split(f, (b, 0), f.mul(panel, self.bp_strides[-3]), self.size) for panel in range(panels)]
        ahead = PREFETCH_AHEAD // self.size if self.prefetches else 0
        product = Product(self.type, self.size, self.k, left_step, self.bp_strides[-2], self.unroll, ahead)
        return product.emit(f, lines, columns)

    def store(self, epilogue: Epilogue, batch: int, row: Int, panel: Int, sums: list[list[Reg]]) -> None:
        """Runs the epilogue on a tile whose first element is (row, panel * 16)."""
        f = self.f
        for number, column_sums in enumerate(sums):
            column = f.mul(f.add(panel, number), BLOCK)
            shape = (*[1] * batch, len(column_sums))
            here = epilogue.at(*[0] * batch, row, column)
            left = f.min(f.sub(self.n, column), BLOCK)
            if not here.vectorises:
                here.finish_tile(shape, column_sums, self.scratch, left)
            elif isinstance(self.n, int) and self.n % BLOCK == 0:
                here.finish_tile(shape, column_sums, self.scratch)
            else:
                with f.when(f.compare("eq", left, BLOCK)):
                    here.finish_tile(shape, column_sums, self.scratch)
                with f.when(f.compare("ne", left, BLOCK)):
                    here.finish_tile(shape, column_sums, self.scratch, left)


def _emit(spec: KernelSpec, target: Target, constants: ConstReader, symbol: str) -> str:
    return _Matmul(spec, target, symbol).emit()


MATMUL_PACKED = KernelDef(
    name="matmul_packed",
    doc="y[..,m,n] = body(sum over k of a[..,m,k] * bp[..,n//16,k,n%16], extras); params body, outs",
    emit=_emit,
    tasks=_tasks,
    work=_work,
    may_reuse=_may_reuse,
)
