"""Random graphs with regions, and what every slot of a graph reads, for the property tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from relume import ops
from relume.base import dims, dtypes
from relume.graph.builder import Builder
from relume.graph.types import Constant, Function, Graph, Node, Origin, Origins, SiteId, Tensor, Value

SHAPE = (dims.symbol("N"), 3)
TYPE = Tensor(dtypes.f64, SHAPE)
UNARY = (ops.neg, ops.tanh)
BINARY = (ops.add, ops.sub, ops.mul)


def random_function(random: Random, size: int = 10, depth: int = 2, *, live: bool = False) -> Function:
    """A function of a condition and two tensors: chains of arithmetic, constants, `fused` and `if` regions.

    With `live`, every value that no node reads is an output.
    """
    build = Builder()
    cond = build.param(Tensor(dtypes.bool_, ()), "cond")
    values: list[Value] = [build.param(TYPE, "x"), build.param(TYPE, "y")]
    fill(random, build, values, cond, size, depth)
    results = random.sample(values, min(len(values), random.randint(1, 3)))
    if live:
        read = {value for node in build.nodes for value in node.operands} | set(results)
        results += [value for value in values if value not in read]
    return Function("main", build.graph(*results), 0, tuple(f"out{index}" for index in range(len(results))))


def fill(random: Random, build: Builder, values: list[Value], cond: Value, size: int, depth: int) -> None:
    """Adds `size` nodes over `values`, and their results to it."""
    for _ in range(size):
        kind = random.random()
        if kind < 0.3:
            values.append(build.apply(random.choice(UNARY), random.choice(values), name=random.choice(("h", "", "0"))))
        elif kind < 0.75 or depth == 0:
            right = constant(random) if random.random() < 0.2 else random.choice(values)
            values.append(build.apply(random.choice(BINARY), random.choice(values), right))
        else:
            captures = random.sample(values, min(len(values), random.randint(1, 3)))
            count = random.randint(1, 2)
            if kind < 0.9:
                body = region(random, cond, len(captures), count, depth - 1)
                made = build.emit(ops.fused, cond, *captures, regions=(body,), kind="map")
            else:
                bodies = [region(random, cond, len(captures), count, depth - 1) for _ in range(2)]
                made = build.emit(ops.if_, cond, cond, *captures, regions=bodies)
            values.extend(made)


def region(random: Random, cond: Value, captures: int, results: int, depth: int) -> Graph:
    """A region that is passed a condition and tensors."""
    build = Builder()
    inner_cond = build.param(cond.type, "cond")
    values = [build.param(TYPE, "p") for _ in range(captures)]
    fill(random, build, values, inner_cond, random.randint(0, 4), depth)
    return build.graph(*(random.choice(values) for _ in range(results)))


def constant(random: Random) -> Constant:
    """Of one element, or of three."""
    shape = random.choice(((), (3,)))
    return Constant.of(np.round(np.random.default_rng(random.randrange(5)).standard_normal(shape), 3), "w")


# --- provenance, told independently ---------------------------------------------------------------------------------


def graphs(graph: Graph) -> Iterator[Graph]:
    """The graph and all its regions."""
    yield graph
    for node in graph.nodes:
        for body in node.regions:
            yield from graphs(body)


def slots(graph: Graph) -> Iterator[Origins]:
    """The origins of every slot, regions included."""
    for each in graphs(graph):
        for place in (*each.nodes, each):
            yield from place.origins


def tagged(fn: Function) -> Function:
    """The function with another tag as the origin of each slot. Made without the code under test."""
    count = 0

    def fresh(number: int) -> tuple[Origins, ...]:
        nonlocal count
        count += number
        return tuple(frozenset({Origin(SiteId(f"t{count - number + index}"))}) for index in range(number))

    def tag(graph: Graph) -> Graph:
        nodes = tuple(
            node.with_(origins=fresh(len(node.operands)), regions=tuple(map(tag, node.regions))) for node in graph.nodes
        )
        return Graph(graph.params, nodes, graph.results, fresh(len(graph.results)))

    return fn.with_graph(tag(fn.graph))


def readings(graph: Graph, seed: int = 0) -> list[tuple[Origins, bytes]]:
    """For every slot: its origins, and the bytes that it reads on random inputs. Both regions of an `if` run."""
    random = np.random.default_rng(seed)
    inputs = [
        np.array(bool(seed % 2)) if param.dtype is dtypes.bool_ else random.standard_normal((2, 3))
        for param in graph.params
    ]
    out: list[tuple[Origins, bytes]] = []

    def evaluate(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
        known: dict[Value, np.ndarray] = dict(zip(graph.params, arrays))

        def read(place: Node | Graph, values: tuple[Value, ...]) -> list[np.ndarray]:
            found = [value.data if isinstance(value, Constant) else known[value] for value in values]
            # Adding 0.0 makes one zero of both: -(a - b) and b - a differ in its sign.
            out.extend((slot, (array + 0.0).tobytes()) for slot, array in zip(place.origins, found))
            return found

        for node in graph.nodes:
            operands = read(node, node.operands)
            if node.op is ops.fused:
                results = evaluate(node.regions[0], operands)
            elif node.op is ops.if_:
                both = [evaluate(body, operands[1:]) for body in node.regions]
                results = both[0] if operands[0] else both[1]
            else:
                results = list(node.op.reference(*operands, attrs=node.attrs, regions=()))
            known.update(zip(node.results, results))
        return read(graph, graph.results)

    with np.errstate(all="ignore"):
        evaluate(graph, inputs)
    return out
