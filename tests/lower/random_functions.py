"""Random functions: states, views, in-place updates, convolutions, regions with several results, shared values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from relume import ops
from relume.base import dims, dtypes
from relume.graph.builder import Builder
from relume.graph.types import Function, State, Tensor, Value

BINARY = (ops.add, ops.sub, ops.max_, ops.min_)
UNARY = (ops.neg, ops.abs_, ops.relu)


class Draw:
    """Draws nodes onto a growing list of values. All numbers are small integers in f64, so sums are exact."""

    def __init__(self, seed: int, symbolic: bool) -> None:
        self.dice = random.Random(seed)
        self.build = Builder()
        self.binding = {"N": self.dice.choice((1, 2, 5)), "M": self.dice.choice((1, 3, 16, 17))}
        self.first: tuple[dims.Dim, ...] = (2, 3)
        if symbolic:
            self.first = (dims.symbol("N"), dims.symbol("M"))
        else:
            self.first = (self.binding["N"], self.binding["M"])
        self.values: list[Value] = []

    def array(self, shape: tuple[dims.Dim, ...]) -> np.ndarray:
        extents = tuple(dims.evaluate(dim, self.binding) for dim in shape)
        return np.random.default_rng(self.dice.randrange(1 << 30)).integers(-3, 4, extents).astype(np.float64)

    def param(self, shape: tuple[dims.Dim, ...], name: str) -> Value:
        value = self.build.param(Tensor(dtypes.f64, shape), name)
        self.values.append(value)
        return value

    def emit(self, op: ops.OpDef, *operands: Value, **attrs: object) -> Value:
        value = self.build.apply(op, *operands, **attrs)  # type: ignore[arg-type]
        self.values.append(value)
        return value

    def pick(self) -> Value:
        return self.dice.choice(self.values)

    # -- one node each --

    def unary(self) -> None:
        self.emit(self.dice.choice(UNARY), self.pick())

    def binary(self) -> None:
        x = self.pick()
        same = [y for y in self.values if y.dims == x.dims]
        other = self.dice.choice(same)
        if self.dice.random() < 0.5 and x.dims and all(isinstance(dim, int) for dim in x.dims[-1:]):
            other = self.build.constant(self.array(self.dice.choice(((1,), x.dims[-1:], ()))))
        self.emit(self.dice.choice(BINARY), *self.dice.choice(((x, other), (other, x))))

    def spread(self) -> None:
        x = self.pick()
        small = self.emit(ops.reduce_max, x, axes=(0,), keep=True) if x.dims else x
        self.emit(self.dice.choice(BINARY), small, x)

    def transpose(self) -> None:
        x = self.pick()
        perm = list(range(len(x.dims)))
        self.dice.shuffle(perm)
        self.emit(ops.transpose, x, perm=tuple(perm))

    def reshape(self) -> None:
        x = self.pick()
        shape = list(x.dims)
        kind = self.dice.randrange(3)
        if kind == 0 and len(shape) >= 2:
            at = self.dice.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif kind == 1:
            shape.insert(self.dice.randrange(len(shape) + 1), 1)
        else:
            shape = [x.tensor.elements]
        self.emit(ops.reshape, x, dims=tuple(shape))

    def broadcast(self) -> None:
        x = self.pick()
        if len(x.dims) < 4:
            self.emit(ops.broadcast, x, dims=(2, *x.dims))

    def cut(self) -> None:
        x = self.pick()
        starts, stops, steps = [], [], []
        for dim in x.dims:
            kind = self.dice.randrange(4)
            if kind == 0 and isinstance(dim, int) and dim > 1:
                starts.append(1), stops.append(dim), steps.append(self.dice.choice((1, 2)))
            elif kind == 1:
                starts.append(dim - 1), stops.append(-1), steps.append(-1)
            else:
                starts.append(0), stops.append(dim), steps.append(1)
        self.emit(ops.slice_, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def concat(self) -> None:
        x = self.pick()
        if x.dims:
            axis = self.dice.randrange(len(x.dims))
            same = [y for y in self.values if y.dims == x.dims]
            self.emit(ops.concat, *(self.dice.choice(same) for _ in range(self.dice.randint(1, 3))), axis=axis)

    def pad(self) -> None:
        x = self.pick()
        self.emit(ops.pad, x, pads=tuple(self.dice.randint(0, 2) for _ in range(2 * len(x.dims))), value=2.0)

    def pack(self) -> None:
        x = self.pick()
        if x.dims and len(x.dims) < 4:
            axis = self.dice.randrange(len(x.dims))
            packed = self.emit(ops.pack, x, axis=axis, block=self.dice.choice((2, 16)))
            self.emit(ops.unpack, self.emit(self.dice.choice(UNARY), packed), axis=axis, size=x.dims[axis])

    def reduce(self) -> None:
        x = self.pick()
        if x.dims:
            axes = tuple(axis for axis in range(len(x.dims)) if self.dice.random() < 0.5)
            self.emit(self.dice.choice((ops.reduce_max, ops.reduce_min)), x, axes=axes, keep=self.dice.random() < 0.5)

    def matmul(self) -> None:
        x = self.emit(ops.min_, self.emit(ops.max_, self.pick(), self.small(-2)), self.small(2))
        if len(x.dims) >= 2:
            perm = (*range(len(x.dims) - 2), len(x.dims) - 1, len(x.dims) - 2)
            y = self.emit(ops.transpose, x, perm=perm)
            product = self.emit(ops.matmul, x, y)
            self.emit(ops.add, product, self.build.constant(self.array(())))

    def small(self, value: float) -> Value:
        return self.build.constant(np.float64(value))

    def several(self) -> None:
        """One region with two or three results, of one or two operands: some results could sit on either."""
        x = self.pick()
        y = self.dice.choice([value for value in self.values if value.dims == x.dims])
        inner, dice = Builder(), random.Random(self.dice.randrange(8))  # A few bodies, whose kernels are shared.
        made = [inner.param(value.type) for value in dict.fromkeys((x, y))]
        for _ in range(dice.randint(2, 4)):
            made.append(inner.apply(dice.choice(BINARY), dice.choice(made), dice.choice(made)))
        region = inner.graph(*made[-dice.randint(2, 3) :])
        operands = dict.fromkeys((x, y))
        results = self.build.emit(ops.fused, *operands, regions=(region,), kind="map")
        self.values.extend(results)
        if self.dice.random() < 0.5:  # Else few programs need more than one of them.
            self.emit(self.dice.choice(BINARY), *results[:2])

    def gather(self) -> None:
        x = self.pick()
        if x.dims:
            axis = self.dice.randrange(len(x.dims))
            last = np.int64(-1)
            indices = self.build.constant(self.dice.choice((np.array([0, -1, 0]), np.array([[-1], [0]]), last)))
            if len(x.dims) < 4:
                self.emit(ops.gather, x, indices, axis=axis)

    def scatter(self, versions: list[Value], which: int) -> None:
        """Rows of one state by a few indices, from rows of any value of its shape, views of a state among them."""
        state = versions[which]
        rows = self.emit(ops.state_read, self.dice.choice(versions))
        source = self.dice.choice([value for value in self.values if value.dims == state.dims] or [rows])
        indices = self.build.constant(self.dice.choice((np.array([0, -1, 0]), np.array([[-1], [0]]), np.array(0))))
        updates = self.emit(ops.gather, source, indices, axis=0)
        if self.dice.random() < 0.3:
            updates = self.emit(ops.slice_, source, starts=(0, 0), stops=(1, state.dims[1]), steps=(1, 1))
            indices = self.build.constant(np.array([-1]))
        op = self.dice.choice((ops.scatter_add, ops.scatter_update))
        (versions[which],) = self.build.emit(op, state, indices, updates)
        if self.dice.random() < 0.5:
            self.emit(ops.state_read, versions[which])

    def convolve(self) -> None:
        """One packed image, several convolutions with halos of different widths around what one of them gives."""
        height, width = self.dice.randint(3, 5), self.dice.randint(3, 6)
        image = self.emit(ops.broadcast, self.small(self.dice.randint(-2, 2)), dims=(1, 3, height, width))
        image = self.emit(ops.concat, image, self.build.constant(self.array((1, 2, height, width))), axis=1)
        x = self.emit(ops.pack, image, axis=1, block=16)
        if self.dice.random() < 0.5:
            x = self.emit(ops.relu, x)
        outs = []
        for _ in range(self.dice.randint(1, 3)):
            size = self.dice.choice((1, 3))
            before, after = self.dice.randint(0, 2), self.dice.randint(0, 2)
            bias = [self.build.constant(self.array((1, 16)))] if self.dice.random() < 0.5 else []
            attrs = {"strides": (1, 1), "pads": (before, 1, after, 1), "dilations": (1, 1)}
            if size == 3 and self.dice.random() < 0.5:
                tile = self.dice.choice((4, 2))
                weights = self.build.constant(self.array((1, (tile + 2) ** 2, 5, 16)))
                y = self.emit(ops.conv_winograd, x, weights, *bias, channels=5, tile=tile, pads=attrs["pads"])
            else:
                weights = self.build.constant(self.array((1, 5, size, size, 16)))
                y = self.emit(ops.conv_blocked, x, weights, *bias, channels=5, **attrs)
            y = self.emit(ops.relu, y)
            attrs["pads"] = (1, 0, 0, after)
            deep = self.build.constant(self.array((1, 2, 2, 16)))
            outs.append(self.emit(ops.depthwise_blocked, y, deep, **attrs))
        self.emit(ops.unpack, self.dice.choice(outs), axis=1, size=16)


NODES: tuple[Callable[[Draw], None], ...] = (
    Draw.unary,
    Draw.binary,
    Draw.binary,
    Draw.spread,
    Draw.transpose,
    Draw.reshape,
    Draw.broadcast,
    Draw.cut,
    Draw.concat,
    Draw.pad,
    Draw.pack,
    Draw.reduce,
    Draw.matmul,
    Draw.gather,
    Draw.convolve,
    Draw.several,
)


def drawn(
    seed: int,
    symbolic: bool,
    nodes: int = 14,
    in_place: bool = False,
    outputs: int = 4,
    kinds: Sequence[Callable[[Draw], None]] = NODES,
) -> tuple[Function, list[np.ndarray], list[np.ndarray]]:
    """A function, inputs for it, and states; with `in_place`, states are updated in place too."""
    draw = Draw(seed, symbolic)
    inputs = [draw.param(draw.first, "x"), draw.param((4, *draw.first[1:]), "y")]
    shapes = [draw.first, draw.first]
    states = [draw.build.param(State(Tensor(dtypes.f64, shape)), "s") for shape in shapes]
    versions = list(states)
    for _ in range(nodes):
        while len(draw.values) > 30:
            draw.values.pop(0)
        if draw.dice.random() < 0.2:
            which = draw.dice.randrange(len(versions))
            if in_place and draw.dice.random() < 0.5:
                draw.scatter(versions, which)
                continue
            read = draw.emit(ops.state_read, versions[which])
            if draw.dice.random() < 0.6:
                same = [value for value in draw.values if value.dims == read.dims]
                (versions[which],) = draw.build.emit(ops.state_write, versions[which], draw.dice.choice(same))
            continue
        draw.dice.choice(kinds)(draw)
        if dims.evaluate(draw.values[-1].tensor.elements, draw.binding) > 20_000:
            draw.values.pop()
    everything = [*draw.values, *inputs, draw.build.constant(np.arange(3.0))]
    results = [draw.dice.choice(everything) for _ in range(draw.dice.randint(1, outputs))]
    fn = Function("f", draw.build.graph(*results, *versions), len(states), tuple(f"o{n}" for n in range(len(results))))
    arrays = [draw.array(value.dims) for value in (*inputs, *states)]
    return fn, arrays[:2], arrays[2:]
