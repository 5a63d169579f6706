"""What the `infer` functions share: checking types and attributes, and the algebra of shapes.

Every check is one-sided: it refuses what is provably wrong. Where two symbolic extents may or may not agree it notes a
`Requirement`, to be checked when they have values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps

from relume.base import dims
from relume.base.dims import Dim, not_negative
from relume.base.dtypes import DType
from relume.base.requirements import AT_MOST, BROADCASTS, EQUAL, JOINS, Requirement
from relume.graph.opdef import Infer, InferError
from relume.graph.types import Attr, Function, Graph, State, Tensor, Type

NUMBER = ("float", "int", "uint")
FLOAT = ("float",)
BOOL = ("bool",)
ANY = ("float", "int", "uint", "bool")
_KIND_WORDS = {FLOAT: "a float type", NUMBER: "a number type", BOOL: "bool", ("int",): "a signed integer type"}


def shape_text(shape: Sequence[Dim]) -> str:
    """`[2,N,3]`, as types print it."""
    return f"[{','.join(map(str, shape))}]"


def infer_tensors(rule: Callable[..., Tensor | tuple[Tensor, ...]]) -> Infer:
    """Makes an `Infer` of `rule(*tensors, attrs) -> tensor`, for ops that take no state and no region."""

    @wraps(rule)
    def infer(types: Sequence[Type], attrs: Mapping[str, Attr], regions: Sequence[Graph]) -> tuple[Type, ...]:
        for index, type_ in enumerate(types):
            if isinstance(type_, State):
                raise InferError(f"operand {index} is a state; read it first", "a tensor", type_)
        result = rule(*types, attrs=attrs)
        return result if isinstance(result, tuple) else (result,)

    return infer


# --- what cannot be decided yet -------------------------------------------------------------------------------------

_NOTED: ContextVar[list[Requirement] | None] = ContextVar("noted", default=None)


def require(kind: str, a: Dim, b: Dim, what: str) -> None:
    """Notes what must hold of two dims, unless it is decided."""
    noted = _NOTED.get()
    if noted is not None and a != b and not (isinstance(a, int) and isinstance(b, int)):
        noted.append(Requirement(kind, a, b, what))


def requirements_of(fn: Function) -> tuple[Requirement, ...]:
    """What the extents of a function must fulfil for its types to hold, each once, in order of first need."""
    found: dict[tuple[str, Dim, Dim], Requirement] = {}
    for node in fn.graph.walk():
        token = _NOTED.set([])
        try:
            node.op.infer([value.type for value in node.operands], node.attrs, node.regions)
            for item in _NOTED.get() or ():
                first = f"%{node.results[0].name}" if node.results else node.op.name
                placed = replace(item, what=f"{node.op.name}: {item.what}", where=str(node.location or first))
                found.setdefault((item.kind, item.a, item.b), placed)
        finally:
            _NOTED.reset(token)
    bound = {name for param in fn.graph.params for dim in param.dims if (name := dims.symbol_name(dim))}
    return tuple(item for item in found.values() if item.symbols <= bound)


# --- dtypes ---------------------------------------------------------------------------------------------------------


def want_kind(name: str, tensor: Tensor, kinds: tuple[str, ...]) -> None:
    """Refuses an element type of another kind."""
    if tensor.dtype.kind not in kinds:
        raise InferError(f"{name} cannot be {tensor.dtype}", _KIND_WORDS.get(kinds, " or ".join(kinds)), tensor)


def want_dtype(name: str, tensor: Tensor, *allowed: DType) -> None:
    """Refuses an element type that is not one of `allowed`."""
    if tensor.dtype not in allowed:
        raise InferError(f"{name} cannot be {tensor.dtype}", " or ".join(map(str, allowed)), tensor)


def want_same_dtype(*tensors: Tensor) -> DType:
    """The common element type. There is no implicit promotion: the front end writes the casts."""
    first = tensors[0].dtype
    for tensor in tensors[1:]:
        if tensor.dtype is not first:
            raise InferError("the element types differ; write a cast", first, tensor.dtype)
    return first


# --- dims -----------------------------------------------------------------------------------------------------------


def differ(a: Dim, b: Dim) -> bool:
    """Whether two dims are provably different."""
    difference = a - b
    return isinstance(difference, int) and difference != 0


def known(a: Dim, b: Dim) -> Dim:
    """Of two dims that must be equal, the one that says more."""
    return b if isinstance(b, int) else a


def at_most(a: Dim, b: Dim) -> bool:
    """Whether `a <= b` is provable."""
    if not_negative(b - a):
        return True
    for dim, smaller in ((a, True), (b, False)):
        call = _only_call(dim)
        if call is not None and call.op in ("min", "max"):
            # The smallest is at most b if one of its parts is, the largest if all are; and the other way round for a.
            test = any if smaller == (call.op == "min") else all
            if test(at_most(part, b) if smaller else at_most(a, part) for part in call.args):
                return True
    return False


def _only_call(dim: Dim) -> dims.Call | None:
    """The call, where `dim` is one and nothing else."""
    if isinstance(dim, int) or len(dim.terms) != 1:
        return None
    monomial, factor = dim.terms[0]
    return monomial[0] if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], dims.Call) else None


def exceeds(a: Dim, b: Dim) -> bool:
    """Whether `a > b` is provable."""
    difference = a - b
    return isinstance(difference, int) and difference > 0


def want_at_most(name: str, got: Dim, most: Dim) -> None:
    """Refuses a dim that is surely larger than `most`."""
    if exceeds(got, most):
        raise InferError(f"{name} is out of range", f"at most {most}", got)
    if not at_most(got, most):
        require(AT_MOST, got, most, name)


def want_rank(name: str, tensor: Tensor, rank: int) -> None:
    if tensor.rank != rank:
        raise InferError(f"{name} has rank {tensor.rank}", f"rank {rank}", tensor)


def want_min_rank(name: str, tensor: Tensor, rank: int) -> None:
    if tensor.rank < rank:
        raise InferError(f"{name} has rank {tensor.rank}", f"rank {rank} or more", tensor)


def want_dim(name: str, got: Dim, expected: Dim) -> Dim:
    """Refuses an extent that cannot be `expected`; returns the one that says more."""
    if differ(got, expected):
        raise InferError(f"{name} does not fit", expected, got)
    require(EQUAL, got, expected, name)
    return known(expected, got)


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common shape by NumPy's rules: aligned at the last axis, an extent of 1 is repeated."""
    rank = max((len(shape) for shape in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, start=rank - len(shape)):
            before = out[axis]
            if isinstance(before, int) and isinstance(dim, int) and 1 not in (before, dim) and before != dim:
                got = " and ".join(map(shape_text, shapes))
                raise InferError(f"shapes do not broadcast at axis {axis}", "equal extents, or 1", got)
            if 1 not in (before, dim):
                require(JOINS, dim, before, f"axis {axis} of the broadcast operands")
            out[axis] = dims.select(before, dim)
    return tuple(out)


def want_broadcast_to(name: str, shape: Sequence[Dim], target: Sequence[Dim]) -> None:
    """Refuses a shape that cannot be repeated to `target`."""
    if len(shape) > len(target):
        raise InferError(f"{name} has more axes than its target", shape_text(target), shape_text(shape))
    for dim, wanted in zip(reversed(shape), reversed(target)):
        if dim != 1 and isinstance(dim, int) and differ(dim, wanted):
            raise InferError(f"{name} does not broadcast", shape_text(target), shape_text(shape))
        if dim != 1:
            require(BROADCASTS, dim, wanted, name)


# --- attributes -----------------------------------------------------------------------------------------------------


def ints(attrs: Mapping[str, Attr], name: str, count: int, least: int | None = None) -> tuple[int, ...]:
    """A list attribute of `count` ints, each at least `least`."""
    items = _list(attrs, name, "a list of ints")
    out = tuple(item for item in items if type(item) is int)
    if len(out) != len(items):
        raise InferError(f"{name} must be a list of ints", f"{count} ints", list(items))
    _want_entries(name, out, count, least)
    return out


def dims_attr(attrs: Mapping[str, Attr], name: str, count: int | None = None, least: int | None = 0) -> tuple[Dim, ...]:
    """A list attribute of dims (`count` of them, if given); those that are known are at least `least`."""
    items = _list(attrs, name, "a list of dims")
    out = tuple(item for item in items if type(item) is int or isinstance(item, dims.Expr))
    if len(out) != len(items):
        raise InferError(f"{name} must be a list of dims", "ints or expressions over symbols", list(items))
    _want_entries(name, out, len(out) if count is None else count, least)
    if least is not None:
        for item in out:
            want_at_most(f"the least of {name}", least, item)
    return out


def _list(attrs: Mapping[str, Attr], name: str, kind: str) -> tuple[Attr, ...]:
    value = attrs[name]
    if not isinstance(value, tuple):
        raise InferError(f"{name} must be {kind}", kind, value)
    return value


def _want_entries(name: str, value: Sequence[Dim], count: int, least: int | None) -> None:
    if len(value) != count:
        raise InferError(f"{name} has {len(value)} entries", f"{count} entries", shape_text(value))
    if least is not None and any(isinstance(item, int) and item < least for item in value):
        raise InferError(f"{name} is out of range", f"entries of at least {least}", shape_text(value))


def axis_attr(attrs: Mapping[str, Attr], rank: int, name: str = "axis") -> int:
    """An axis attribute: 0 <= axis < rank."""
    axis = attrs[name]
    if type(axis) is not int or not 0 <= axis < rank:
        raise InferError(f"{name} is out of range", f"0 <= {name} < {rank}", axis)
    return axis


def axes_attr(attrs: Mapping[str, Attr], rank: int, name: str = "axes") -> tuple[int, ...]:
    """An attribute of distinct axes in ascending order."""
    items = _list(attrs, name, "a list of ints")
    axes = tuple(axis for axis in items if type(axis) is int and 0 <= axis < rank)
    if len(axes) != len(items) or list(axes) != sorted(set(axes)):
        raise InferError(f"{name} are out of range", f"ascending axes, each 0 <= axis < {rank}", list(items))
    return axes


def positive(attrs: Mapping[str, Attr], name: str) -> int:
    """An int attribute of at least 1."""
    value = attrs[name]
    if type(value) is not int or value < 1:
        raise InferError(f"{name} is out of range", "at least 1", value)
    return value


def not_negative_int(attrs: Mapping[str, Attr], name: str) -> int:
    """An int attribute of at least 0."""
    value = attrs[name]
    if type(value) is not int or value < 0:
        raise InferError(f"{name} is out of range", "at least 0", value)
    return value


def flag(attrs: Mapping[str, Attr], name: str) -> bool:
    """A bool attribute."""
    value = attrs[name]
    if not isinstance(value, bool):
        raise InferError(f"{name} must be a bool", "true or false", value)
    return value


def number(attrs: Mapping[str, Attr], name: str) -> float:
    """A float attribute."""
    value = attrs[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InferError(f"{name} must be a number", "a float", value)
    return float(value)


def dim_attr(attrs: Mapping[str, Attr], name: str, least: int = 0) -> Dim:
    """A dim attribute; where it is known, it is at least `least`."""
    value = attrs[name]
    if not (type(value) is int or isinstance(value, dims.Expr)) or (isinstance(value, int) and value < least):
        raise InferError(f"{name} is out of range", f"a dim of at least {least}", value)
    want_at_most(f"the least of {name}", least, value)
    return value


def dtype_attr(attrs: Mapping[str, Attr], name: str, kinds: tuple[str, ...] = ANY) -> DType:
    """An attribute that is an element type of one of `kinds`."""
    value = attrs[name]
    if not isinstance(value, DType) or value.kind not in kinds:
        raise InferError(f"{name} cannot be {value}", _KIND_WORDS.get(kinds, "an element type"), value)
    return value


def choice(attrs: Mapping[str, Attr], name: str, allowed: Sequence[str]) -> str:
    """A str attribute that is one of `allowed`."""
    value = attrs[name]
    if value not in allowed:
        raise InferError(f"{name} is not known", ", ".join(allowed), value)
    return str(value)
