"""Whole models, and what must not depend on names."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_cases import assert_close, make, op_names, run, run_onnxruntime, value

from relume.frontends.onnx import load
from relume.graph.text import parse_module, print_module
from relume.graph.types import Graph, Module, Origin
from relume.graph.verify import verify
from relume.ops import OPS

node = helper.make_node


def classifier() -> onnx.ModelProto:
    """rapidocr's direction classifier. The package is located, not imported."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("rapidocr_onnxruntime is not installed")
    (path,) = Path(spec.origin).parent.glob("models/*cls*.onnx")
    return onnx.load(path)


@pytest.fixture(scope="module")
def classifier_module() -> Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(classifier())


@pytest.mark.parametrize(("batch", "width"), [(1, 192), (3, 100)])
def test_the_direction_classifier_agrees_at_any_width(classifier_module: Module, batch: int, width: int) -> None:
    x = np.random.default_rng(1).random((batch, 3, 48, width), np.float32) * 2 - 1
    expected = run_onnxruntime(classifier(), [x])
    assert_close(run(classifier_module, [x]), expected)


def test_the_direction_classifier_keeps_no_shape_arithmetic(classifier_module: Module) -> None:
    assert {"extents", "gather", "concat", "slice", "cast"}.isdisjoint(op_names(classifier_module))


def test_a_module_verifies_and_its_text_reads_back(classifier_module: Module) -> None:
    verify(classifier_module.main)
    text = print_module(classifier_module)
    constants = {constant.digest: constant.data for constant in classifier_module.main.graph.constants()}
    assert print_module(parse_module(text, OPS, constants=constants)) == text


def sites(graph: Graph) -> Iterator[frozenset[Origin]]:
    for inner in graph.walk():
        yield from inner.origins
        for region in inner.regions:
            yield from region.origins
    yield from graph.origins


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node, value and extent has another name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names: dict[str, str] = {"": ""}

    def name(old: str) -> str:
        return names.setdefault(old, f"z{len(names) * 7919 % 10007}")

    def graph(g: onnx.GraphProto) -> None:
        for entry in (*g.input, *g.output, *g.value_info, *g.initializer):
            entry.name = name(entry.name)
        for entry in (*g.input, *g.output, *g.value_info):
            for dim in entry.type.tensor_type.shape.dim:
                if dim.dim_param.isidentifier():  # `?` says nothing, and says it still.
                    dim.dim_param = name(dim.dim_param)
        for n in g.node:
            n.name = name("node " + n.name)
            n.input[:] = [name(entry) for entry in n.input]
            n.output[:] = [name(entry) for entry in n.output]
            for attr in n.attribute:
                if attr.HasField("g"):
                    graph(attr.g)

    graph(copy.graph)
    return copy


def branching() -> onnx.ModelProto:
    """Two symbols, a shape chain, an If with captures and twins that only order tells apart."""
    then = make([node("Add", ["h", "h2"], ["a"])], [], [value("a", None)]).graph
    otherwise = make([node("Mul", ["h2", "h"], ["b"])], [], [value("b", None)]).graph
    return make(
        [
            node("Exp", ["x"], ["h"]),
            node("Exp", ["x"], ["h2"]),
            node("If", ["c"], ["i"], then_branch=then, else_branch=otherwise),
            node("Shape", ["k"], ["s"]),
            node("Concat", ["s", "minus"], ["shape"], axis=0),
            node("Reshape", ["i", "shape"], ["y"]),
        ],
        [value("x", ["B", "A"]), value("c", [], onnx.TensorProto.BOOL), value("k", ["B"])],
        ["y"],
        {"minus": np.array([-1])},
    )


@pytest.mark.parametrize("build", [classifier, branching])
def test_renaming_everything_keeps_every_site(build) -> None:
    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, after = load(model), load(renamed(model))
    assert op_names(before) == op_names(after)
    assert list(sites(before.main.graph)) == list(sites(after.main.graph))


def test_other_weights_keep_every_site() -> None:
    weights = [np.ones((2, 2), np.float32), np.eye(2, dtype=np.float32)]
    first, second = (
        load(make([node("MatMul", ["x", "w"], ["y"])], [value("x", ["N", 2])], ["y"], {"w": w})) for w in weights
    )
    assert list(sites(first.main.graph)) == list(sites(second.main.graph))


def test_an_initializer_that_is_an_input_is_a_constant() -> None:
    model = make(
        [node("Add", ["x", "w"], ["y"])], [value("x", [2]), value("w", [2])], ["y"], {"w": np.ones(2, np.float32)}
    )
    module = load(model)
    assert [param.name for param in module.main.inputs] == ["x"]
    assert [constant.name for constant in module.main.graph.constants()] == ["w"]


def test_an_output_may_be_an_input_or_a_constant() -> None:
    model = make([node("Identity", ["x"], ["y"])], [value("x", [2])], ["y", "w"], {"w": np.ones(3, np.float32)})
    x = np.array([1, 2], np.float32)
    got = run(load(model), [x])
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], np.ones(3))


def test_nodes_carry_their_place_and_values_their_names() -> None:
    nodes = [node("Relu", ["x"], ["h"]), node("HardSwish", ["h"], ["y"], name="a\nb")]
    module = load(make(nodes, [value("x", [2])], ["y"]))
    first, *rest = module.main.graph.nodes
    assert (str(first.location), first.result.name) == ("model:Relu_0", "h")
    assert {str(n.location) for n in rest} == {"model:a_b"}
    assert rest[-1].result.name == "y"


def test_constants_keep_the_type_that_the_file_says() -> None:
    for dtype in (np.float64, np.float16, np.int8, np.uint16, np.bool_):
        data = np.array([0, 1, 1], dtype)
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        for raw in (True, False):
            tensor = numpy_helper.from_array(data) if raw else helper.make_tensor("t", kind, [3], data)
            module = load(make([node("Constant", [], ["y"], value=tensor)], [], ["y"]))
            got = run(module, [])[0]
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, data)


def test_loading_changes_no_message() -> None:
    model = branching()
    before = model.SerializeToString()
    load(model)
    assert model.SerializeToString() == before


def test_loading_twice_gives_equal_modules() -> None:
    assert load(branching()) == load(branching())
