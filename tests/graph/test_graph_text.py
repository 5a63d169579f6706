"""`parse(print(x)) == x`, whatever the names, the data and the regions."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_function

from relume import ops
from relume.base import dtypes
from relume.base.locations import Location
from relume.graph.builder import Builder
from relume.graph.literals import element_text, parse_element
from relume.graph.sites import assign
from relume.graph.text import (
    TextError,
    parse_module,
    parse_region,
    print_function,
    print_module,
    print_region,
)
from relume.graph.types import Constant, Function, Graph, Module, Tensor, Unknown, same_graph
from relume.ops import OPS

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(
    ["x:0", "input.1", "/a/b", "a//b", "0", "h", "h_1", 'quo"te', "back\\slash", "a\nb", "% @", "ünï", "\u2028", "as"]
)


@given(st.randoms(use_true_random=False), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_graphs_round_trip(random: Random, data: bool, traced: bool) -> None:
    fn = random_function(random)
    fn = assign(fn) if traced else fn
    module = Module({"main": fn, "again": Function("again", fn.graph, 0, fn.output_names)})
    text = print_module(module, data=data, origins=traced)
    again = parse_module(text, OPS)
    assert again == module
    assert print_module(again, data=data, origins=traced) == text


@given(st.lists(NAMES, min_size=2, max_size=6, unique=True), st.lists(NAMES, min_size=6, max_size=6), NAMES, NAMES)
@settings(max_examples=150, deadline=None)
def test_any_name_round_trips(params: list[str], inner: list[str], output: str, file: str) -> None:
    build = Builder(Location(file, output))
    values = [build.param(Tensor(dtypes.f32, (2,)), name) for name in params]
    w = Constant.of(np.float32([1, 2]), inner[0])
    for name in inner:
        values.append(build.apply(ops.add, values[-1], w, name=name))
    slot = Unknown(output, file)
    graph = build.graph(values[-1])
    fn = Function(file, Graph(graph.params, graph.nodes, graph.results, (slot,)), 0, (output,))
    text = print_function(fn, origins=True)
    module = parse_module(text, OPS)
    assert module == Module({file: fn})
    assert print_module(module, origins=True) == text


@given(st.sampled_from(dtypes.ALL), st.binary(min_size=8, max_size=8))
@settings(max_examples=250, deadline=None)
def test_any_bits_round_trip(dtype: dtypes.DType, bits: bytes) -> None:
    raw = bytes([bits[0] % 2]) if dtype is dtypes.bool_ else bits[: dtype.bytes]
    (value,) = np.frombuffer(raw, dtype.numpy)
    assert parse_element(element_text(value, dtype), dtype).tobytes() == raw


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.is_float], ids=str)
def test_special_floats_are_written_as_people_do(dtype: dtypes.DType) -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], dtype.numpy)
    assert [element_text(value, dtype) for value in values] == ["nan", "inf", "-inf", "-0.0", "1.0"]


@given(st.sampled_from(dtypes.ALL), st.lists(st.integers(0, 5), max_size=3), st.integers(0, 3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_constant_round_trips(dtype: dtypes.DType, shape: list[int], seed: int, data: bool) -> None:
    values = np.random.default_rng(seed).integers(0, 2 + seed * 40, shape).astype(dtype.numpy)
    constant = Constant.of(values if seed else np.zeros(shape, dtype.numpy), "w")
    fn = Function("f", Graph((), (), (constant,)), 0, ("y",))
    text = print_function(fn, data=data)
    assert parse_module(text, OPS, {} if data else {constant.digest: constant.data}).main == fn
    assert ("dense" in text) <= (not data)


@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_regions_round_trip_alone(random: Random) -> None:
    graph = random_function(random).graph
    assert same_graph(parse_region(print_region(graph, data=True), OPS), graph)


def test_dense_data_must_fit_its_digest_and_type() -> None:
    text = 'func @f() { return @w }\nconst @w : f32[2] = dense "d"'
    assert parse_module(text, OPS, {"d": np.float32([1, 2])}).main.outputs[0].digest
    for array in (np.float64([1, 2]), np.float32([1, 2, 3])):
        with pytest.raises(TextError, match="another type"):
            parse_module(text, OPS, {"d": array})


def test_an_error_shows_the_line() -> None:
    text = "func @f(%x : f32[2]) {\n  %y = relu(%x)\n  %z = add(%y, %q)\n  return %z\n}\n"
    with pytest.raises(TextError) as caught:
        parse_module(text, OPS)
    assert caught.value.line == 3 and "line 3" in str(caught.value) and "%z = add(%y, %q)" in str(caught.value)


@given(st.randoms(use_true_random=False), st.data())
@settings(max_examples=80, deadline=None)
def test_spoilt_text_is_refused_or_read_but_never_breaks_the_parser(random: Random, data: st.DataObject) -> None:
    text = print_function(random_function(random, size=4), data=True, origins=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        junk = data.draw(
            st.sampled_from(["", "[", ")", "%", "@", '"', "{", "}", "//", "0", "-", ",", "const", "nan:", "é"])
        )
        text = text[:at] + junk + text[at + data.draw(st.integers(0, 6)) :]
    try:
        parse_module(text, OPS)
    except TextError as error:
        assert 1 <= error.line <= text.count("\n") + 1


def test_regions_that_nest_too_deep_are_refused() -> None:
    depth = 2000
    text = "func @f(%x : f32[2]) {" + 'fused(kind="") { () ' * depth
    with pytest.raises(TextError, match="too deep"):
        parse_module(text, OPS)
