"""Evaluates graphs by the NumPy reference of each op: the meaning of everything.

Every node is checked as it runs. Its `infer` runs again on the extents of this run, which refuses what symbolic
extents could not (two that do not broadcast, a window that does not fit); and each result must have the type that the
graph gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import from_numpy
from relume.base.errors import InputError, RunError, VerifyError
from relume.graph.opdef import InferError, Trait
from relume.graph.types import Attr, Constant, Function, Graph, Node, State, Tensor, Type, Value

Binding = dict[str, int]
"""The value of each symbol in this run."""


def evaluate(
    fn: Function, inputs: Sequence[np.ndarray], states: Sequence[np.ndarray] = ()
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Runs a function: (outputs, next states), fresh arrays in C order. Nothing that is passed in is written.

    `inputs` and `states` are arrays in the order of `fn.inputs` and `fn.states`; their shapes bind the symbols.
    Raises `InputError` where an array does not fit its parameter, `RunError` where a node fails on these values, and
    `VerifyError` where a result is not what the graph says it is.
    """
    for what, given, params in (("input", inputs, fn.inputs), ("state", states, fn.states)):
        if len(given) != len(params):
            names = ", ".join(param.name for param in params) or "none"
            raise InputError(f"@{fn.name} takes {len(params)} {what}s", expected=names, got=f"{len(given)} arrays")
    arrays = [*inputs, *states]
    binding = bind(fn.graph.params, arrays)
    results = [np.array(array, order="C") for array in evaluate_graph(fn.graph, arrays, binding)]
    return results[: len(fn.outputs)], results[len(fn.outputs) :]


def bind(params: Sequence[Value], arrays: Sequence[np.ndarray]) -> Binding:
    """The symbols that the shapes of `arrays` give: an extent that is a bare symbol binds it, any other is checked.

    Raises `InputError` naming the parameter that does not fit.
    """
    binding: Binding = {}
    for param, array in zip(params, arrays):
        _want_kind(param, array)
        for dim, extent in zip(param.dims, array.shape):
            name = dims.symbol_name(dim)
            if name is not None:
                binding.setdefault(name, extent)
    for param, array in zip(params, arrays):
        for axis, (dim, extent) in enumerate(zip(param.dims, array.shape)):
            expected = _extent_of(param, dim, binding)
            if expected != extent:
                where = f"{dim} = {expected}" if isinstance(dim, dims.Expr) else expected
                raise InputError(
                    f"input {param.name!r} has the wrong extent along axis {axis}",
                    expected=f"{where}, in {param.tensor}",
                    got=f"{extent}, in {_described(array)}",
                )
    return binding


def _want_kind(param: Value, array: np.ndarray) -> None:
    """Checks element type and rank."""
    if not isinstance(array, np.ndarray) or array.dtype != param.dtype.numpy or array.ndim != len(param.dims):
        raise InputError(
            f"input {param.name!r} has the wrong type",
            expected=param.tensor,
            got=_described(array) if isinstance(array, np.ndarray) else type(array).__name__,
            hint=f"pass a NumPy array of {param.dtype.numpy} with {len(param.dims)} axes; nothing is converted",
        )


def _extent_of(param: Value, dim: Dim, binding: Mapping[str, int]) -> int:
    try:
        return dims.evaluate(dim, binding)
    except dims.UnboundSymbol as error:
        raise InputError(
            f"no input gives the extent {error.args[0]}",
            expected=f"an input with an extent that is {error.args[0]} itself",
            got=f"{param.name} : {param.tensor}",
        ) from None


def _described(array: np.ndarray) -> str:
    try:
        name = str(from_numpy(array.dtype))
    except KeyError:
        name = str(array.dtype)
    return f"{name}[{','.join(map(str, array.shape))}]"


def evaluate_graph(graph: Graph, arrays: Sequence[np.ndarray], binding: Mapping[str, int]) -> list[np.ndarray]:
    """Runs a graph on one array per parameter and returns its results.

    `binding` holds the symbols known outside; symbols that only the graph's own values bring are bound as they come.
    The results may be read-only, and views of parameters or constants. Raises as `evaluate`.
    """
    symbols: Binding = dict(binding)
    values: dict[Value, np.ndarray] = {}
    for param, array in zip(graph.params, arrays):
        values[param] = _read_only(array)
        _match(param, array, symbols, None)
    last_use = {value: index for index, node in enumerate(graph.nodes) for value in node.operands}
    last_use.update(dict.fromkeys(graph.results, len(graph.nodes)))
    for index, node in enumerate(graph.nodes):
        operands = [_read(values, value) for value in node.operands]
        for result, array in zip(node.results, _apply(node, operands, symbols)):
            values[result] = _read_only(array)
        for value in (*node.operands, *node.results):
            if last_use.get(value, index) <= index:
                values.pop(value, None)
    return [_read(values, value) for value in graph.results]


def _read(values: Mapping[Value, np.ndarray], value: Value) -> np.ndarray:
    return value.data if isinstance(value, Constant) else values[value]


def _read_only(array: np.ndarray) -> np.ndarray:
    """A view that no reference can write by mistake; the array itself stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class _Region:
    """A region as its op's reference sees it (see `relume.ops.control.Region`)."""

    graph: Graph
    binding: Mapping[str, int]

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(evaluate_graph(self.graph, arrays, self.binding))

    @property
    def types(self) -> tuple[Tensor, ...]:
        """The types of the results; an extent that only a run of the region would give is 0."""
        return tuple(
            Tensor(value.dtype, tuple(_known_or_zero(dim, self.binding) for dim in value.dims))
            for value in self.graph.results
        )


def _known_or_zero(dim: Dim, binding: Mapping[str, int]) -> int:
    return dims.evaluate(dim, binding) if dims.symbols(dim) <= binding.keys() else 0


def _apply(node: Node, operands: Sequence[np.ndarray], symbols: Binding) -> list[np.ndarray]:
    """Runs one node and checks its results; binds the symbols that they bring."""
    try:
        if node.op.has(Trait.REGION):
            # It speaks of extents that only its regions bring, and is checked through the nodes inside.
            attrs = dict(node.attrs)
        else:
            attrs = {name: _substituted(attr, symbols) for name, attr in node.attrs.items()}
            node.op.infer([_type_of(value, array) for value, array in zip(node.operands, operands)], attrs, ())
        regions = tuple(_Region(region, symbols) for region in node.regions)
        results = [np.asarray(array) for array in node.op.reference(*operands, attrs=attrs, regions=regions)]
    except InferError as error:
        _fail(node, error.what, error.expected, error.got)
    except IndexError as error:
        _fail(node, str(error))
    except dims.UnboundSymbol as error:
        _fail(node, f"nothing gives the extent {error.args[0]}")
    except ZeroDivisionError:
        _fail(node, "an extent was divided by 0")
    if len(results) != len(node.results):
        raise VerifyError(
            f"{node.op.name}: the reference gives {len(results)} results",
            where=node.location,
            expected=len(node.results),
            got=len(results),
        )
    for value, array in zip(node.results, results):
        _match(value, array, symbols, node)
    return results


def _fail(node: Node, what: str, expected: object = None, got: object = None) -> NoReturn:
    raise RunError(f"{node.op.name}: {what}", where=node.location, expected=expected, got=got) from None


def _substituted(attr: Attr, symbols: Mapping[str, int]) -> Attr:
    if isinstance(attr, dims.Expr):
        return dims.evaluate(attr, symbols)
    return tuple(_substituted(item, symbols) for item in attr) if isinstance(attr, tuple) else attr


def _type_of(value: Value, array: np.ndarray) -> Type:
    tensor = Tensor(from_numpy(array.dtype), array.shape)
    return State(tensor) if isinstance(value.type, State) else tensor


def _match(value: Value, array: np.ndarray, symbols: Binding, node: Node | None) -> None:
    """Checks an array against the type of its value. An extent that is a symbol without a value gives it one."""
    fits = array.dtype == value.dtype.numpy and array.ndim == len(value.dims)
    for dim, extent in zip(value.dims, array.shape):
        name = dims.symbol_name(dim)
        if name is not None:
            symbols.setdefault(name, extent)
        try:
            fits = fits and dims.evaluate(dim, symbols) == extent
        except (dims.UnboundSymbol, ZeroDivisionError):
            fits = False
    if not fits:
        what = "a parameter" if node is None else f"{node.op.name}: the result"
        bound = ", ".join(f"{name} = {symbols[name]}" for name in sorted(_names(value)) if name in symbols)
        raise VerifyError(
            f"{what} {value.name!r} does not have its type" if value.name else f"{what} does not have its type",
            where=None if node is None else node.location,
            expected=f"{value.tensor}{f' with {bound}' if bound else ''}",
            got=_described(array),
        )


def _names(value: Value) -> frozenset[str]:
    return frozenset().union(*(dims.symbols(dim) for dim in value.dims))
