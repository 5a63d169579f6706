"""Local functions, schema function bodies and old operator versions."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnx_cases import assert_agrees, assert_close, make, one_node, op_names, run, value

from relume.base.errors import LimitError, ModelError, UnsupportedError
from relume.frontends.onnx import load

node = helper.make_node
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]


def function(name: str, inputs: list[str], outputs: list[str], nodes: list, attributes: list[str] = ()):
    return helper.make_function("loc", name, inputs, outputs, nodes, OPSETS, list(attributes))


def with_functions(nodes: list, functions: list, outputs: list[str] = ("y",)):
    return make(nodes, [value("x", [2, 3])], list(outputs), functions=functions, domains={"loc": 1})


def referring(op: str, inputs: list[str], outputs: list[str], attribute: str, parameter: str, kind: int):
    made = node(op, inputs, outputs)
    made.attribute.append(AttributeProto(name=attribute, ref_attr_name=parameter, type=kind))
    return made


def test_a_local_function_is_expanded_at_each_call() -> None:
    body = [referring("LeakyRelu", ["a"], ["h"], "alpha", "slope", AttributeProto.FLOAT), node("Neg", ["h"], ["b"])]
    leaky = function("leaky", ["a"], ["b"], body, ["slope"])
    calls = [
        node("leaky", ["x"], ["h"], domain="loc", slope=0.5, name="first"),
        node("leaky", ["h"], ["y"], domain="loc", slope=0.25, name="second"),
    ]
    module = assert_agrees(with_functions(calls, [leaky]), [X])
    assert {str(n.location) for n in module.main.graph.nodes} >= {"model:first/LeakyRelu_0", "model:second/Neg_1"}


def test_an_attribute_of_a_function_has_a_default() -> None:
    body = [referring("LeakyRelu", ["a"], ["b"], "alpha", "slope", AttributeProto.FLOAT)]
    leaky = function("leaky", ["a"], ["b"], body)
    leaky.attribute_proto.append(helper.make_attribute("slope", 0.5))
    module = load(with_functions([node("leaky", ["x"], ["y"], domain="loc")], [leaky]))
    np.testing.assert_array_equal(run(module, [X])[0], np.where(X < 0, X / 2, X))


def test_an_attribute_that_is_left_out_falls_back_to_the_operators_default() -> None:
    body = [referring("LeakyRelu", ["a"], ["b"], "alpha", "slope", AttributeProto.FLOAT)]
    module = load(
        with_functions([node("leaky", ["x"], ["y"], domain="loc")], [function("leaky", ["a"], ["b"], body, ["slope"])])
    )
    assert_close(run(module, [X]), [np.where(X < 0, X * np.float32(0.01), X)])


def test_an_absent_input_stays_absent_inside() -> None:
    body = [node("Clip", ["a", "low", "high"], ["b"])]
    clip = function("clip", ["a", "low", "high"], ["b"], body)
    module = load(with_functions([node("clip", ["x"], ["y"], domain="loc")], [clip]))
    np.testing.assert_array_equal(run(module, [X])[0], X)


@pytest.mark.parametrize("cycle", [1, 3])
def test_a_recursive_function_is_refused_by_name(cycle: int) -> None:
    functions = [
        function(f"f{i}", ["a"], ["b"], [node(f"f{(i + 1) % cycle}", ["a"], ["b"], domain="loc")]) for i in range(cycle)
    ]
    with pytest.raises(ModelError, match="loc::f0 calls itself: loc::f0 -> "):
        load(with_functions([node("f0", ["x"], ["y"], domain="loc")], functions))


def test_a_bomb_is_counted_and_not_expanded() -> None:
    """Nine functions, each calling the next ten times: 10**9 Relus, and the calls, in a few hundred bytes."""
    functions = [function("f0", ["a"], ["b"], [node("Relu", ["a"], ["b"])])]
    for level in range(1, 10):
        calls = [node(f"f{level - 1}", ["a" if i == 0 else f"v{i}"], [f"v{i + 1}"], domain="loc") for i in range(10)]
        functions.append(function(f"f{level}", ["a"], ["v10"], calls))
    started = time.perf_counter()
    with pytest.raises(LimitError, match="expands to 2111111111 nodes"):
        load(with_functions([node("f9", ["x"], ["y"], domain="loc")], functions))
    assert time.perf_counter() - started < 5


def test_a_long_chain_of_calls_is_refused_without_overflowing_the_stack() -> None:
    functions = [function("f0", ["a"], ["b"], [node("Relu", ["a"], ["b"])])]
    functions += [
        function(f"f{i}", ["a"], ["b"], [node(f"f{i - 1}", ["a"], ["b"], domain="loc")]) for i in range(1, 2000)
    ]
    with pytest.raises(LimitError, match="nested too deep"):
        load(with_functions([node("f1999", ["x"], ["y"], domain="loc")], functions[::-1]))


def test_defaults_are_written_into_schema_bodies() -> None:
    """MeanVarianceNormalization without its axes is silently wrong in onnx.inliner."""
    model, feeds = one_node("MeanVarianceNormalization", [np.random.default_rng(0).random((2, 3, 4, 5), np.float32)])
    assert_agrees(model, feeds)


def test_a_body_may_be_newer_than_the_model() -> None:
    """Mish and ThresholdedRelu have bodies written for opset 18 only; the operator is the same before."""
    model, feeds = one_node("ThresholdedRelu", [X], opset=11, alpha=1.5)
    assert_agrees(model, feeds)


def test_an_operator_version_that_the_translator_does_not_speak_is_converted() -> None:
    """Reshape 1 has its shape as an attribute."""
    model = make([node("Reshape", ["x"], ["y"], shape=[3, 2], name="old")], [value("x", [2, 3])], ["y"], opset=4)
    module = load(model)
    np.testing.assert_array_equal(run(module, [X])[0], X.reshape(3, 2))
    assert str(module.main.graph.nodes[0].location).startswith("model:old/")


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_old_broadcasting_aligns_at_its_axis(op: str) -> None:
    k = np.array([2, 3], np.float32)
    made = node(op, ["x", "k"], ["y"], broadcast=1, axis=0)
    module = load(make([made], [value("x", ["N", 3])], ["y"], {"k": k}, opset=6))
    expected = {"Add": X + k[:, None], "Mul": X * k[:, None]}[op]
    np.testing.assert_array_equal(run(module, [X])[0], expected)


def test_an_old_prelu_has_a_slope_for_each_channel() -> None:
    """The version converter broadcasts it from the wrong side."""
    x = np.arange(-12, 12, dtype=np.float32).reshape(1, 3, 2, 4)
    slope = np.array([0.5, 0.25, 2], np.float32)
    module = load(make([node("PRelu", ["x", "s"], ["y"])], [value("x", ["N", 3, 2, 4])], ["y"], {"s": slope}, opset=6))
    np.testing.assert_array_equal(run(module, [x])[0], np.where(x < 0, x * slope.reshape(3, 1, 1), x))


def test_scan_of_opset_8_is_unsupported_and_never_converted() -> None:
    body = make([node("Identity", ["a"], ["b"])], [value("a", [3])], [value("b", [3])]).graph
    scan = node("Scan", ["", "x"], ["y"], num_scan_inputs=1, body=body, name="s")
    with pytest.raises(UnsupportedError, match=r"s: Scan \(ai.onnx 8\)"):
        load(make([scan], [value("x", [1, 2, 3])], ["y"], opset=8))


def test_all_unsupported_nodes_are_in_one_error() -> None:
    nodes = [
        node("Det", ["x"], ["a"], name="e"),
        node("Relu", ["a"], ["b"], name="fine"),
        node("Unique", ["b"], ["c"], name="t"),
        node("NonZero", ["x"], ["n"]),
        node("Det", ["n"], ["unused"], name="dead"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        load(make(nodes, [value("x", [2, 3])], ["c", "n"]))
    assert [place for place, _, _ in caught.value.nodes] == ["e", "t", "NonZero_3"]
    assert "t: Unique (ai.onnx 11): there is no translation" in str(caught.value)


def test_an_operator_of_a_foreign_domain_is_unsupported() -> None:
    foreign = node("Foo", ["x"], ["y"], domain="com.acme", name="f")
    with pytest.raises(UnsupportedError, match=r"f: Foo \(com.acme\): the operator is not known"):
        load(make([foreign], [value("x", [2])], ["y"], domains={"com.acme": 3}))


def test_an_output_that_is_not_translated_matters_only_where_it_is_used() -> None:
    same = {"auto_pad": "SAME_UPPER", "strides": [2]}  # Symbolic padding: places in padded data say nothing of x.
    pool = node("MaxPool", ["x"], ["y", "where"], kernel_shape=[2], name="p", **same)
    model = make([pool], [value("x", [1, 1, "N"])], ["y"])
    assert op_names(load(model)) == ["pad", "max_pool"]
    model.graph.output.append(onnx.ValueInfoProto(name="where"))
    with pytest.raises(UnsupportedError, match=r"p: MaxPool.*its output 1"):
        load(model)
