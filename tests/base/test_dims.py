"""Symbolic extents: one canonical form, the same values as Python's integers, text that reads back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relume.base import dims
from relume.base.dims import Dim

N, M = dims.symbol("N"), dims.symbol("M")

_leaves = st.one_of(st.integers(-20, 20), st.sampled_from((N, M, dims.symbol("a_long_name"))))


def _grow(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: dims.floordiv(*p)),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: dims.modulo(*p)),
        pairs.map(lambda p: dims.minimum(*p)),
        pairs.map(lambda p: dims.maximum(*p)),
    )


expressions = st.recursive(_leaves, _grow, max_leaves=8)
bindings = st.fixed_dictionaries({name: st.integers(0, 50) for name in ("N", "M", "a_long_name")})


@given(expressions)
def test_text_reads_back(dim: Dim) -> None:
    assert dims.parse(str(dim)) == dim


@given(expressions, expressions, st.integers(1, 9), bindings)
def test_arithmetic_has_the_value_of_integer_arithmetic(a: Dim, b: Dim, k: int, binding: dict[str, int]) -> None:
    x, y = dims.evaluate(a, binding), dims.evaluate(b, binding)
    assert dims.evaluate(a + b, binding) == x + y
    assert dims.evaluate(a - b, binding) == x - y
    assert dims.evaluate(a * b, binding) == x * y
    assert dims.evaluate(dims.floordiv(a, k), binding) == x // k
    assert dims.evaluate(dims.modulo(a, k), binding) == x % k
    assert dims.evaluate(dims.ceildiv(a, k), binding) == -(-x // k)
    assert dims.evaluate(dims.minimum(a, b), binding) == min(x, y)
    assert dims.evaluate(dims.maximum(a, b), binding) == max(x, y)


@given(expressions, expressions, expressions)
def test_sums_and_products_have_one_form(a: Dim, b: Dim, c: Dim) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a * b == b * a
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert hash(a + b) == hash(b + a)


@given(expressions, expressions, bindings)
def test_substitution_commutes_with_evaluation(a: Dim, b: Dim, binding: dict[str, int]) -> None:
    replaced = dims.evaluate(dims.substitute(a, {"N": b}), binding)
    assert replaced == dims.evaluate(a, {**binding, "N": dims.evaluate(b, binding)})


@given(expressions)
def test_symbols_are_what_evaluation_needs(dim: Dim) -> None:
    names = dims.symbols(dim)
    dims.evaluate(dim, dict.fromkeys(names, 3))
    for name in names:
        with pytest.raises(dims.UnboundSymbol):
            dims.evaluate(dim, dict.fromkeys(names - {name}, 3))


def test_division_takes_out_what_divides_evenly() -> None:
    assert dims.floordiv(4 * N + 3, 4) == N
    assert dims.floordiv(4 * N * M, 2 * N) == 2 * M
    assert dims.modulo(4 * N + 3, 4) == 3
    assert dims.floordiv(N, N) == 1


def test_an_extent_of_one_broadcasts() -> None:
    assert dims.select(1, N) == N == dims.select(N, 1)
    assert dims.select(N, 7) == 7 == dims.select(7, N)
    assert dims.evaluate(dims.select(N, M), {"N": 1, "M": 5}) == 5
    assert dims.evaluate(dims.select(N, M), {"N": 5, "M": 1}) == 5


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("N", "min(512, N)"),
        ("min(512, N)", "N"),
        ("select(N, M)", "M"),
        ("select(M, N)", "min(4, select(N, M))"),
        ("min(7, N)", "select(N, min(3, N))"),
    ],
)
def test_a_broadcast_with_what_is_one_only_together_is_decided(a: str, b: str) -> None:
    first, second = dims.parse(a), dims.parse(b)
    assert dims.select(first, second) == first
    for n, m in itertools.product(range(10), repeat=2):
        binding = {"N": n, "M": m}
        one = dims.evaluate(first, binding) == 1
        assert not one or dims.evaluate(second, binding) == 1


@pytest.mark.parametrize(("a", "b"), [("N", "M"), ("min(1, N)", "N"), ("N", "min(M, N)")])
def test_a_broadcast_that_depends_stays_open(a: str, b: str) -> None:
    assert str(dims.select(dims.parse(a), dims.parse(b))).startswith("select")


@pytest.mark.parametrize("text", ["", "N +", "N / 2", "2.5", "N ** 2", "f(N, 2)", "min(N)", "N // 0", "N; M", "'N'"])
def test_what_is_no_dim_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a dim"):
        dims.parse(text)


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(ZeroDivisionError):
        dims.floordiv(N, 0)
