"""If and Loop: regions with explicit captures."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_cases import assert_agrees, make, op_names, run, value

from relume.base.errors import LimitError, ModelError, UnsupportedError
from relume.frontends.onnx import load

node = helper.make_node
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
X = np.array([1, -2, 3], np.float32)


def branch(name: str, nodes: list, *outputs: str, constants: dict | None = None):
    return make(nodes, [], [value(output, None) for output in outputs], constants).graph


def if_model(then, otherwise, dims=(3,), outputs=("y",), extra=()):
    nodes = [*extra, node("If", ["c"], list(outputs), name="choose", then_branch=then, else_branch=otherwise)]
    return make(nodes, [value("x", list(dims)), value("c", [], BOOL)], list(outputs))


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_get_the_same_captures(condition: bool) -> None:
    model = if_model(
        branch("then", [node("Add", ["x", "h"], ["a"])], "a"),
        branch("else", [node("Mul", ["h", "k"], ["b"])], "b", constants={"k": np.array([2, 3, 4], np.float32)}),
        extra=[node("Exp", ["x"], ["h"])],
    )
    module = assert_agrees(model, [X, np.array(condition)])
    (choice,) = [n for n in module.main.graph.nodes if n.op.name == "if"]
    assert [len(region.params) for region in choice.regions] == [2, 2]


def test_a_name_inside_may_hide_one_outside() -> None:
    """ORT refuses that; the meaning is that of the inner definition."""
    model = if_model(
        branch("then", [node("Neg", ["x"], ["h"]), node("Abs", ["h"], ["a"])], "a"),
        branch("else", [node("Identity", ["h"], ["b"])], "b"),
        extra=[node("Exp", ["x"], ["h"])],
    )
    module = load(model)
    np.testing.assert_allclose(run(module, [X, np.array(True)])[0], np.abs(X))
    np.testing.assert_allclose(run(module, [X, np.array(False)])[0], np.exp(X), rtol=1e-6)


def test_a_known_condition_leaves_one_branch_of_any_type() -> None:
    condition = node("Constant", [], ["c"], value=helper.make_tensor("c", BOOL, [], [True]))
    then = branch("then", [node("Reshape", ["x", "s"], ["a"])], "a", constants={"s": np.array([3, 1])})
    otherwise = branch("else", [node("Cast", ["x"], ["b"], to=INT64)], "b")
    choice = node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    module = load(make([condition, choice], [value("x", [3])], ["y"]))
    assert op_names(module) == ["reshape"]


def test_branches_of_different_types_are_unsupported() -> None:
    model = if_model(
        branch("then", [node("Identity", ["x"], ["a"])], "a"),
        branch("else", [node("Concat", ["x", "x"], ["b"], axis=0)], "b"),
    )
    with pytest.raises(UnsupportedError, match=r"choose: If.*different types: f32\[3\] and f32\[6\]"):
        load(model)


def test_branches_with_another_number_of_outputs_are_refused() -> None:
    then = branch("then", [node("Relu", ["x"], ["a"]), node("Relu", ["x"], ["a2"])], "a", "a2")
    with pytest.raises(ModelError, match=r"node choose \(If\).*another number of outputs"):
        load(if_model(then, branch("else", [node("Relu", ["x"], ["b"])], "b")))


def test_symbolic_shapes_inside_a_branch_come_from_outside() -> None:
    """The shape is computed from a capture, which is then needed no more."""
    model = if_model(
        branch("then", [node("Shape", ["h"], ["s"]), node("Expand", ["x", "s"], ["a"])], "a"),
        branch("else", [node("Expand", ["x", "s0"], ["b"])], "b"),
        dims=("N",),
        extra=[node("Exp", ["x"], ["h"]), node("Shape", ["x"], ["s0"])],
    )
    module = load(model)
    (choice,) = [n for n in module.main.graph.nodes if n.op.name == "if"]
    assert [value.name for value in choice.operands] == ["c", "x"]
    np.testing.assert_array_equal(run(module, [X, np.array(True)])[0], X)


def body(nodes: list, inputs: list, outputs: list, constants: dict | None = None):
    return make(nodes, inputs, outputs, constants).graph


def loop_model(graph, carried: int, outputs: list[str], trips: int | None = 4):
    constants = {} if trips is None else {"trips": np.array(trips)}
    first = "" if trips is None else "trips"
    nodes = [node("Loop", [first, "", *["x"] * carried], outputs, name="repeat", body=graph)]
    return make(nodes, [value("x", [3])], outputs, constants)


ITERATION = [value("i", [], INT64), value("go", [], BOOL)]


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_loop_carries_captures_and_scans(trips: int) -> None:
    """Scan outputs of the incoming value, of the updated one and of the iteration number."""
    graph = body(
        [
            node("Identity", ["go"], ["on"]),
            node("Add", ["a", "x"], ["b"]),
            node("Identity", ["a"], ["old"]),
            node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
        ],
        [*ITERATION, value("a", [3])],
        [value("on", [], BOOL), value("b", [3]), value("old", [3]), value("b2", [3]), value("number", [])],
    )
    graph.node.append(node("Identity", ["b"], ["b2"]))
    assert_agrees(loop_model(graph, 1, ["y", "olds", "news", "numbers"], trips), [X])


def test_a_loop_stops_by_its_condition() -> None:
    graph = body(
        [
            node("Add", ["a", "a"], ["b"]),
            node("ReduceMax", ["b"], ["top"], keepdims=0),
            node("Less", ["top", "limit"], ["on"]),
        ],
        [*ITERATION, value("a", [3])],
        [value("on", [], BOOL), value("b", [3])],
        {"limit": np.array(100, np.float32)},
    )
    assert_agrees(loop_model(graph, 1, ["y"], None), [X])


def test_an_endless_loop_is_accepted() -> None:
    graph = body(
        [node("Identity", ["go"], ["on"]), node("Identity", ["a"], ["b"])],
        [*ITERATION, value("a", [3])],
        [value("on", [], BOOL), value("b", [3])],
    )
    assert "loop" in op_names(load(loop_model(graph, 1, ["y"], None)))


def test_a_carried_value_that_grows_is_unsupported() -> None:
    graph = body(
        [node("Identity", ["go"], ["on"]), node("Concat", ["a", "x"], ["b"], axis=0)],
        [*ITERATION, value("a", None)],
        [value("on", [], BOOL), value("b", None)],
    )
    with pytest.raises(UnsupportedError, match=r"repeat: Loop.*carried value 0 changes its type"):
        load(loop_model(graph, 1, ["y"]))


def test_what_is_unsupported_inside_is_listed_with_its_path() -> None:
    model = if_model(
        branch("then", [node("Det", ["x"], ["a"], name="e")], "a"),
        branch("else", [node("Unique", ["x"], ["b"], name="t")], "b"),
    )
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert {place for place, _, _ in caught.value.nodes} >= {"choose/e", "choose/t"}


def nested(depth: int) -> onnx.ModelProto:
    """If inside If, `depth` deep, built in place: protobuf copies no message that is nested deeper than 100."""
    model = make([], [value("x", [4]), value("c", [], BOOL)], [f"o{depth}"])
    graph = model.graph
    for level in range(depth, 0, -1):
        choice = graph.node.add(op_type="If", input=["c"], output=[f"o{level}"])
        otherwise = branch(f"e{level}", [node("Neg", ["x"], [f"n{level}"])], f"n{level}")
        choice.attribute.append(helper.make_attribute("else_branch", otherwise))
        then = choice.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        then.g.output.append(value(f"o{level - 1}", None))
        graph = then.g
    graph.node.append(node("Relu", ["x"], ["o0"]))
    return model


def nested_bytes(depth: int) -> bytes:
    """The wire form of graphs in attributes of nodes of graphs."""

    def field(number: int, content: bytes) -> bytes:
        size, out = len(content), bytearray([number << 3 | 2])
        while size > 127:
            out.append(size & 127 | 128)
            size >>= 7
        return bytes(out) + bytes([size]) + content

    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    return field(7, graph)


def test_twenty_nested_graphs_are_accepted() -> None:
    module = load(nested(20).SerializeToString())
    x = np.array([1, -1, 2, -2], np.float32)
    np.testing.assert_array_equal(run(module, [x, np.array(True)])[0], np.maximum(x, 0))
    np.testing.assert_array_equal(run(module, [x, np.array(False)])[0], -x)


@pytest.mark.parametrize("source", [nested(300), nested_bytes(300)], ids=["message", "bytes"])
def test_three_hundred_nested_graphs_are_refused(source: onnx.ModelProto | bytes) -> None:
    """In bytes protobuf's own limit holds, in a message ours."""
    with pytest.raises(LimitError, match="deep"):
        load(source)
