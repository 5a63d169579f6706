"""How a body with reductions runs over one row: which walk along the row computes what, and what is kept between walks.

A reduction is known only when its walk is over, so what depends on it needs another walk. Walk `p` computes the
reductions behind `p` others, and the last one what is written along the row:

    softmax      walk 0: max(x)      walk 1: e = exp(x - max), sum(e)     walk 2: e * (1 / sum)
    layer norm   walk 0: mean(x)     walk 1: mean((x - mean) ** 2)        walk 2: (x - mean) * factor * scale + bias

A later walk computes again what it needs, for loads from the nearest cache cost as much as a short step. But the
dearest value, if it is dear (an exponential), is kept in the row of a result of its type, which is written anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from relume.base import dtypes
from relume.base.dims import Dim
from relume.kernels.elementwise import Step
from relume.kernels.epilogue import HEAVY
from relume.program.types import IN, KernelSpec

REDUCTIONS = {f"reduce_{kind}": kind for kind in ("sum", "prod", "mean", "max", "min")}
"""The steps that take a row to one element, and their kind in `kernels.reduce`."""

_COSTS = {**dict.fromkeys(HEAVY, 20), "div": 4, "sqrt": 4, "reciprocal": 4}

KEPT = 4
"""The cost from which a value is kept rather than computed again: of a store and a load instead of some loads."""


def fits_rows(shape: Sequence[Dim], full: Sequence[Dim], count: int) -> bool:
    """Whether what has the extents `shape`, broadcast to `full`, goes along the rows, which are the last `count` axes,
    or is the same all along each of them."""
    row = (*(1,) * count, *shape)[-count:]
    return row == tuple(full[len(full) - count :]) or all(dim == 1 for dim in row)


def cost(step: Step) -> int:
    """About how many instructions a step takes."""
    return _COSTS.get(step[0], 1)


@dataclass(frozen=True)
class Walk:
    """One pass along the row."""

    reductions: tuple[int, ...]
    """The values that it is for, but for the last walk, which is for the results."""
    values: tuple[int, ...]
    """What it computes at each element, in order."""
    reads: tuple[int, ...]
    """The inputs that it reads at each element."""
    held: int | None
    """The value that it finds in the row of `Stages.keeper`."""
    keeps: int | None
    """The value that it leaves there."""


@dataclass(frozen=True)
class Stages:
    """A `rows` kernel as walks. Values are numbered as in a body: the inputs, then the steps."""

    spec: KernelSpec

    @property
    def body(self) -> tuple[Step, ...]:
        return cast("tuple[Step, ...]", self.spec["body"])

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The operands that are read; their places here are the numbers of their values."""
        return tuple(n for n, operand in enumerate(self.spec.operands) if operand.access == IN)

    @cached_property
    def outs(self) -> dict[int, int]:
        """The value of each operand that is written."""
        written = [n for n, operand in enumerate(self.spec.operands) if operand.access != IN]
        return dict(zip(written, cast("tuple[int, ...]", self.spec["outs"]), strict=True))

    def step(self, value: int) -> Step | None:
        """The step that makes a value; None for an input."""
        return self.body[value - len(self.inputs)] if value >= len(self.inputs) else None

    @property
    def length(self) -> Dim:
        """The extent of a row. An input has as many elements there, or one, which is repeated."""
        return self.spec.scalars[0]

    @cached_property
    def along(self) -> tuple[bool, ...]:
        """For each value, whether it varies along the row."""
        out = [self.spec.operands[n].dims[-1] != 1 for n in self.inputs]
        for op, args, _, _ in self.body:
            out.append(op not in REDUCTIONS and any(out[arg] for arg in args))
        return tuple(out)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """For each value, how many reductions, one behind the other, must be known before."""
        out = [0] * len(self.inputs)
        for op, args, _, _ in self.body:
            out.append(max((out[arg] for arg in args), default=0) + (op in REDUCTIONS))
        return tuple(out)

    @cached_property
    def keeper(self) -> int | None:
        """The operand in whose rows a value may be kept between walks: the first result along the row."""
        return next((n for n in self.outs if self._is_written_along(n)), None)

    def _is_written_along(self, out: int) -> bool:
        return len(self.spec.operands[out].dims) == len(self.spec.operands[0].dims)

    @cached_property
    def results(self) -> dict[int, int]:
        """The operands written along the row, and their values."""
        return {n: value for n, value in self.outs.items() if self._is_written_along(n)}

    def _closure(self, targets: Iterable[int], leaf: int | None = None) -> set[int]:
        """What varies along the row and is needed for `targets`; what `leaf` is made of is not."""
        needed: set[int] = set()
        todo = [value for value in targets if self.along[value]]
        while todo:
            value = todo.pop()
            if value in needed:
                continue
            needed.add(value)
            step = self.step(value)
            if step is not None and value != leaf:
                todo += [arg for arg in step[1] if self.along[arg]]
        return needed

    def _cost(self, value: int) -> int:
        steps = (self.step(part) for part in self._closure([value]))
        return sum(cost(step) for step in steps if step is not None)

    @cached_property
    def walks(self) -> tuple[Walk, ...]:
        """The walks in order; none is there for nothing."""
        count = len(self.inputs)
        reductions = [n for n, step in enumerate(self.body, count) if step[0] in REDUCTIONS]
        groups = [tuple(n for n in reductions if self.depth[n] == d + 1) for d in range(max(self.depth, default=0))]
        targets: list[Sequence[int]] = [[self.body[n - count][1][0] for n in group] for group in groups]
        if self.results:
            groups.append(())
            targets.append(tuple(self.results.values()))
        out: list[Walk] = []
        held: int | None = None
        for index, group in enumerate(groups):
            needed = self._closure(targets[index], held)
            later = self._closure(value for values in targets[index + 1 :] for value in values)
            keeps = self._to_keep(needed, later, held)
            out.append(
                Walk(
                    group,
                    tuple(sorted(value for value in needed if value >= count and value != held)),
                    tuple(sorted(value for value in needed if value < count)),
                    held if held in needed else None,
                    keeps,
                )
            )
            held = held if keeps is None else keeps
        return tuple(out)

    def _to_keep(self, computed: set[int], later: set[int], held: int | None) -> int | None:
        """The dearest value for the walks to come, if it is not kept already."""
        if self.keeper is None:
            return None
        dtype = self.spec.operands[self.keeper].dtype
        choices = [
            value
            for value in computed & later
            if (step := self.step(value)) is not None and dtypes.BY_NAME[step[3]] is dtype
        ]
        if held in later and held is not None:
            choices.append(held)
        best = max(choices, key=lambda value: (self._cost(value), value), default=None)
        return None if best is None or best == held or self._cost(best) < KEPT else best

    def last_read(self, operand: int) -> int:
        """The last walk that reads an input along the row; -1 for none."""
        value = self.inputs.index(operand)
        return max((n for n, walk in enumerate(self.walks) if value in walk.reads), default=-1)

    def first_write(self, operand: int) -> int:
        """The first walk that writes a result along the row."""
        keeping = [n for n, walk in enumerate(self.walks) if walk.keeps is not None]
        return keeping[0] if operand == self.keeper and keeping else len(self.walks) - 1
