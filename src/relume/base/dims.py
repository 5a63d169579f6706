"""Symbolic dimensions: integers and expressions over named symbols.

A `Dim` is an `int` or an `Expr`. Expressions are kept in one canonical form, so structural equality decides: a sum
of integer multiples of products of *atoms*; an atom is a `Symbol` or a `Call` (floor division, modulo, min, max,
select, floor of a scaled dim). Symbols stand for extents, so they are at least 0.

`select(a, b)` is NumPy's broadcast of two dims: `b` where `a == 1`, else `a`.
`scale(a, p, q)` is `floor(a * p / q)` for the exact ratio p/q (resizing by a float factor, made exact).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, total_ordering
from typing import Union


class UnboundSymbol(KeyError):
    """`evaluate` met a symbol without a value."""


@dataclass(frozen=True)
class Symbol:
    """A named unknown extent."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """An operation that the sum of products cannot express, on canonical operands."""

    op: str
    args: tuple["Dim", ...]

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash

    # Computed once: canonical order compares texts, and expressions nest.
    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.args))

    @cached_property
    def _text(self) -> str:
        if self.op in ("//", "%"):
            left, right = (_grouped(arg) for arg in self.args)
            return f"{left}{self.op}{right}"
        return f"{self.op}({', '.join(str(arg) for arg in self.args)})"


Atom = Union[Symbol, Call]
Monomial = tuple[Atom, ...]


def _grouped(dim: Dim) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


@total_ordering
@dataclass(frozen=True, eq=True)
class Expr:
    """A canonical sum: ((monomial, coefficient), ...) sorted by text; the empty monomial is the constant."""

    terms: tuple[tuple[Monomial, int], ...]

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    @cached_property
    def _text(self) -> str:
        parts: list[str] = []
        for monomial, factor in self.terms:
            atoms = "*".join(_atom_text(atom) for atom in monomial)
            if not monomial:
                text = str(abs(factor))
            elif abs(factor) == 1:
                text = atoms
            else:
                text = f"{abs(factor)}*{atoms}"
            sign = "-" if factor < 0 else "+"
            parts.append(sign + text if parts or factor < 0 else text)
        return "".join(parts) or "0"

    __repr__ = __str__

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __add__(self, other: Dim) -> Dim:
        return _sum(_terms(self) + _terms(other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        return _sum(
            tuple(
                (tuple(sorted(left + right, key=str)), a * b) for left, a in _terms(self) for right, b in _terms(other)
            )
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return modulo(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return modulo(other, self)


Dim = Union[int, Expr]


def _atom_text(atom: Atom) -> str:
    return f"({atom})" if isinstance(atom, Call) and atom.op in ("//", "%") else str(atom)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Expr):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = {monomial: factor for monomial, factor in total.items() if factor}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    # The constant comes last, as people write it.
    order = sorted(kept.items(), key=lambda item: (not item[0], [str(atom) for atom in item[0]]))
    return Expr(tuple(order))


def _atom(op: str, *args: Dim) -> Dim:
    return Expr((((Call(op, args),), 1),))


def symbol(name: str) -> Expr:
    """The dim that is the symbol `name` (a Python identifier)."""
    if not name.isidentifier():
        raise ValueError(f"a symbol is an identifier, got {name!r}")
    return Expr((((Symbol(name),), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """`a // b`, rounding down. What divides evenly is divided: (4*N + 3) // 4 is N."""
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError("a dim was divided by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1  # Where the extent is 0 both sides hold nothing.
    if isinstance(b, int):
        whole = [(monomial, factor // b) for monomial, factor in _terms(a) if factor % b == 0]
        rest = [(monomial, factor) for monomial, factor in _terms(a) if factor % b]
        constant = sum(factor for monomial, factor in rest if not monomial)
        if constant:  # Keep 0 <= constant < |b| so that equal values have one form.
            whole.append(((), constant // b))
            rest = [(m, f) for m, f in rest if m] + [((), constant % b)]
        remainder = _sum(rest)
        if isinstance(remainder, int):
            return _sum(whole) + remainder // b
        return _sum(whole) + _atom("//", remainder, b)
    quotient = _exact_quotient(a, b)
    return _atom("//", a, b) if quotient is None else quotient


def _exact_quotient(a: Dim, b: Expr) -> Dim | None:
    """a / b where b is a single product that divides every term of a."""
    if len(b.terms) != 1:
        return None
    divisor, scale_ = b.terms[0]
    out: list[tuple[Monomial, int]] = []
    for monomial, factor in _terms(a):
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if factor % scale_:
            return None
        out.append((tuple(rest), factor // scale_))
    return _sum(out)


def modulo(a: Dim, b: Dim) -> Dim:
    """`a % b` with the sign of `b`, as Python has it."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1 or a == b or a == 0:
        return 0
    if isinstance(b, int):
        remainder = _sum((monomial, factor % b) for monomial, factor in _terms(a))
        return remainder % b if isinstance(remainder, int) else _atom("%", remainder, b)
    return 0 if _exact_quotient(a, b) is not None else _atom("%", a, b)


def not_negative(dim: Dim) -> bool:
    """Whether a dim is provably at least 0: a sum of positive multiples of extents, which are never negative."""
    if isinstance(dim, int):
        return dim >= 0
    return all(factor > 0 and all(_atom_not_negative(atom) for atom in monomial) for monomial, factor in dim.terms)


def _atom_not_negative(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return True
    test = any if atom.op == "max" else all
    return test(not_negative(arg) for arg in atom.args)


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims, decided where it can be: `minimum(0, N)` is 0."""
    return a if not_negative(b - a) else b if not_negative(a - b) else _ordered("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of two dims, decided where it can be."""
    return a if not_negative(a - b) else b if not_negative(b - a) else _ordered("max", a, b)


def _ordered(op: str, a: Dim, b: Dim) -> Dim:
    return _atom(op, *sorted((a, b), key=str))


def select(a: Dim, b: Dim) -> Dim:
    """The broadcast of two dims: `b` where `a == 1`, else `a`. Whether they fit is checked where both are known."""
    if a == 1 or a == b:
        return b
    if b == 1 or isinstance(a, int):
        return a
    # A known extent other than 1 wins over an unknown one, which can only be equal to it or 1.
    if isinstance(b, int):
        return b
    return a if _is_one(b, _ones(a)) else _atom("select", a, b)


def _ones(dim: Dim) -> tuple[Dim, ...]:
    """Dims that are 1 wherever `dim` is: itself, N for min(512, N), N and M for select(N, M)."""
    call = _call(dim)
    if call is None or call.op not in ("min", "select"):
        return (dim,)
    if call.op == "select":
        return (dim, *_ones(call.args[0]), *_ones(call.args[1]))
    bound, other = call.args if isinstance(call.args[0], int) else call.args[::-1]
    return (dim, *_ones(other)) if isinstance(bound, int) and bound > 1 else (dim,)


def _is_one(dim: Dim, ones: Sequence[Dim]) -> bool:
    """Whether `dim` is surely 1 where all `ones` are: min(512, N) where N is."""
    if dim in ones or dim == 1:
        return True
    call = _call(dim)
    if call is None or call.op not in ("min", "select"):
        return False
    if call.op == "select":
        return all(_is_one(arg, ones) for arg in call.args)
    above = [_is_one(arg, ones) or (isinstance(arg, int) and arg >= 1) for arg in call.args]
    return all(above) and any(_is_one(arg, ones) for arg in call.args)


def _call(dim: Dim) -> Call | None:
    """The call that a dim consists of, if it does."""
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        ((monomial, factor),) = dim.terms
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Call):
            return monomial[0]
    return None


def scale(a: Dim, numerator: int, denominator: int) -> Dim:
    """`floor(a * numerator / denominator)`."""
    return floordiv(a * numerator, denominator)


def ceildiv(a: Dim, b: int) -> Dim:
    """`a / b` rounded up, for b > 0."""
    return floordiv(a + (b - 1), b)


def product(dims: Iterable[Dim]) -> Dim:
    """The product; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


_EVALUATE: dict[str, Callable[[int, int], int]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "select": lambda a, b: b if a == 1 else a,
}
_BUILD: dict[str, Callable[[Dim, Dim], Dim]] = {
    "//": floordiv,
    "%": modulo,
    "min": minimum,
    "max": maximum,
    "select": select,
}


def substitute(dim: Dim, binding: Mapping[str, Dim]) -> Dim:
    """Replaces symbols by dims; symbols without an entry stay."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, factor in dim.terms:
        part: Dim = factor
        for atom in monomial:
            if isinstance(atom, Symbol):
                part = part * binding.get(atom.name, symbol(atom.name))
            else:
                part = part * _BUILD[atom.op](*(substitute(arg, binding) for arg in atom.args))
        total = total + part
    return total


def evaluate(dim: Dim, binding: Mapping[str, int]) -> int:
    """The value under `binding`. Raises `UnboundSymbol` where a symbol is missing, `ZeroDivisionError` on // 0."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                if atom.name not in binding:
                    raise UnboundSymbol(atom.name)
                factor *= binding[atom.name]
            else:
                factor *= _EVALUATE[atom.op](*(evaluate(arg, binding) for arg in atom.args))
        total += factor
    return total


def symbols(dim: Dim) -> frozenset[str]:
    """The names of all symbols in `dim`."""
    if isinstance(dim, int):
        return frozenset()
    names: set[str] = set()
    for monomial, _ in dim.terms:
        for atom in monomial:
            names |= {atom.name} if isinstance(atom, Symbol) else set().union(*map(symbols, atom.args))
    return frozenset(names)


_PARSE: dict[type, Callable[[Dim, Dim], Dim]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: floordiv,
    ast.Mod: modulo,
}


def symbol_name(dim: Dim) -> str | None:
    """The name, where `dim` is a bare symbol: such an extent of an input binds it."""
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, factor = dim.terms[0]
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def parse(text: str) -> Dim:
    """Inverse of `str(dim)`. Raises `ValueError` on anything else."""
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError, AttributeError, TypeError, RecursionError, ValueError, ZeroDivisionError):
        raise ValueError(f"not a dim: {text!r}") from None


def _from_ast(node: ast.AST) -> Dim:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _from_ast(node.operand) * -1
    if isinstance(node, ast.BinOp):
        return _PARSE[type(node.op)](_from_ast(node.left), _from_ast(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        return _BUILD[node.func.id](_from_ast(node.args[0]), _from_ast(node.args[1]))
    raise ValueError
