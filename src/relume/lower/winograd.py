"""The transform of weights for Winograd convolutions, out of element-wise steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relume.base.dtypes import DType, f64
from relume.lower.groups import Group
from relume.lower.lowering import FLOATS, Lower, Lowering, want_dtype
from relume.ops.winograd import WEIGHTS, WINDOW
from relume.program.types import Param


def weights(low: Lowering, group: Group) -> None:
    """A body for each position: the operations of the op's reference in its order, so that bits are the same."""
    assert group.head is not None
    (w,) = group.operands
    want_dtype(w, FLOATS)
    matrix = WEIGHTS[group.head.attrs["tile"]]  # type: ignore[index]
    source, target = low.view(w), low.result(group.targets[0])
    down, right = source.strides[2:]
    inputs = [
        source.seen(source.dims[:2], source.strides[:2], source.offset + row * down + column * right)
        for row in range(WINDOW)
        for column in range(WINDOW)
    ]
    outputs, step, channels = target.strides
    for position in range(len(matrix) ** 2):
        i, j = divmod(position, len(matrix))
        body = _Steps(len(inputs))
        wide = [body.add("cast", number, to=f64) for number in range(len(inputs))]
        columns = [body.combined(matrix[i], wide[column::WINDOW]) for column in range(WINDOW)]
        out = body.add("cast", body.combined(matrix[j], columns), dtype=w.dtype, to=w.dtype)
        at = target.seen((target.dims[0], target.dims[2]), (outputs, channels), target.offset + position * step)
        low.run("map", inputs, [at], body=tuple(body.steps), outs=(out,))


class _Steps:
    """A body under construction, in f64."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self.steps: list[Param] = []

    def add(self, op: str, *args: int, dtype: DType = f64, **attrs: Param) -> int:
        """Appends a step; its number."""
        self.steps.append((op, args, tuple(attrs.items()), dtype.name))
        return self._inputs + len(self.steps) - 1

    def combined(self, row: Sequence[float], parts: Sequence[int]) -> int:
        """The sum of the parts by the factors of `row`, terms ascending and those of factor 0 left out."""
        products = [
            self.add("mul", self.add("constant", value=float(factor)), part)
            for factor, part in zip(row, parts)
            if factor
        ]
        total = products[0]
        for product in products[1:]:
            total = self.add("add", total, product)
        return total


LOWERINGS: Mapping[str, Lower] = {"winograd_weights": weights}
