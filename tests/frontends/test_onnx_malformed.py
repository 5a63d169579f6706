"""Malformed models: refused with a text that names the place, or accepted where they have a meaning."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_cases import make, run, value

import process
from relume import api
from relume.base.errors import InputError, LimitError, ModelError, RelumeError, UnsupportedError
from relume.frontends.onnx import load

node = helper.make_node
FOLDER = Path(__file__).parent / "malformed"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())

ACCEPTED = {"00_good", "16_negative_dim_input", "22_dup_node_name", "40_int_div_zero", "58_fold_intmin_div_m1"}
PLACES = {
    "02_garbage": "not an ONNX protobuf",
    "04_cycle": "n0 -> n1 -> n0",
    "06_undefined_input": "'ghost' is used by node Add_0",
    "08_ext_traversal": "initializer 'w'",
    "10_ext_missing": "'nope.bin' is missing",
    "14_overflow_dims": "initializer 'w'",
    "18_type_mismatch": "node Add_0 (Add)",
    "20_dup_init": "initializer 'w' is defined twice",
    "24_unimported_domain": "com.acme",
    "26_future_opset": "opset 9999",
    "28_recursive_function": "loc::f",
    "32_attr_type": "Conv.strides must be INTS",
    "34_attr_unknown": "Relu has no attribute 'zzz'",
    "36_conv_group0": "Conv.group must be at least 1",
    "38_reshape_bad": "node Reshape_0 (Reshape)",
    "46_bad_utf8": "not valid UTF-8",
    "48_wrong_declared_type": "'y' is declared i64 but node relu0",
    "50_bad_elem_type": "unknown elem_type 99",
    "52_einsum_bad": "Einsum_0",
}


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_a_malformed_model_is_refused_by_name_or_has_a_meaning(name: str) -> None:
    path = FOLDER / "models" / f"{name}.onnx"
    assert name in ACCEPTED or name in PLACES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in ACCEPTED:
            assert load(path).source == f"{name}.onnx"
            return
        with pytest.raises(RelumeError) as caught:
            load(path)
    assert PLACES[name] in str(caught.value)


def test_division_has_a_value_everywhere() -> None:
    models = FOLDER / "models"
    assert run(load(models / "40_int_div_zero.onnx"), [np.array([1, -1, 0, 7], np.int32)])[0].tolist() == [0] * 4
    assert run(load(models / "58_fold_intmin_div_m1.onnx"), [])[0].tolist() == [-(2**31)]


RELU = node("Relu", ["x"], ["y"], name="r")


def relu_model() -> onnx.ModelProto:
    return make([RELU], [value("x", [4])], [value("y", [4])])


def _changed(change) -> onnx.ModelProto:
    model = relu_model()
    change(model)
    return model


REFUSED = {
    "empty bytes": (b"", ModelError, "no graph"),
    "no such file": ("/nowhere/net.onnx", InputError, "cannot read"),
    "a number": (5, InputError, "a model is a path"),
    "newer IR": (_changed(lambda m: setattr(m, "ir_version", 999)), UnsupportedError, "IR version"),
    "opset 0": (_changed(lambda m: setattr(m.opset_import[0], "version", 0)), ModelError, "opset 0"),
    "unknown operator": (
        _changed(lambda m: setattr(m.graph.node[0], "op_type", "Rellu")),
        ModelError,
        "no operator Rellu",
    ),
    "too many inputs": (_changed(lambda m: m.graph.node[0].input.append("x")), ModelError, "Relu has 2 inputs"),
    "no input": (_changed(lambda m: m.graph.node[0].ClearField("input")), ModelError, "Relu has 0 inputs"),
    "two definitions": (_changed(lambda m: m.graph.node.append(RELU)), ModelError, "'y' is defined twice"),
    "redefined input": (
        _changed(lambda m: m.graph.node.append(node("Neg", ["x"], ["x"]))),
        ModelError,
        "'x' is defined twice",
    ),
    "input twice": (_changed(lambda m: m.graph.input.append(value("x", [4]))), ModelError, "'x' is defined twice"),
    "output twice": (_changed(lambda m: m.graph.output.append(value("y", [4]))), ModelError, "listed twice"),
    "output undefined": (
        _changed(lambda m: m.graph.output.append(value("z", [4]))),
        ModelError,
        "'z' is defined by nothing",
    ),
    "nameless output": (_changed(lambda m: m.graph.output.append(value("", [4]))), ModelError, "no name"),
    "declared shape": (_changed(lambda m: m.graph.output[0].CopyFrom(value("y", [5]))), ModelError, "another shape"),
    "declared rank": (_changed(lambda m: m.graph.output[0].CopyFrom(value("y", [4, 1]))), ModelError, "another shape"),
    "attribute twice": (
        make([node("Elu", ["x"], ["y"], alpha=1.0)], [value("x", [4])], ["y"]),
        ModelError,
        "Elu.alpha is given twice",
    ),
    "missing attribute": (
        make([node("Concat", ["x"], ["y"])], [value("x", [4])], ["y"]),
        ModelError,
        "needs the attribute 'axis'",
    ),
    "self loop": (make([node("Add", ["x", "y"], ["y"], name="n")], [value("x", [4])], ["y"]), ModelError, "n -> n"),
    "broadcast": (
        make([node("Add", ["x", "k"], ["y"], name="n")], [value("x", [4]), value("k", [3])], ["y"]),
        ModelError,
        "node n (Add)",
    ),
    "string input": (
        make([node("Identity", ["x"], ["y"])], [value("x", [4], TensorProto.STRING)], ["y"]),
        UnsupportedError,
        "tensor of STRING",
    ),
    "sequence input": (
        make(
            [node("SequenceLength", ["x"], ["y"], name="n")],
            [helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [4])],
            ["y"],
        ),
        UnsupportedError,
        "n: SequenceLength",
    ),
}
REFUSED["attribute twice"][0].graph.node[0].attribute.append(helper.make_attribute("alpha", 2.0))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_defect_is_refused_by_name(name: str) -> None:
    source, kind, part = REFUSED[name]
    with pytest.raises(kind) as caught:
        load(source)  # type: ignore[arg-type]
    assert part in str(caught.value)


def tensor_model(**fields: object) -> onnx.ModelProto:
    tensor = TensorProto(name="w", **fields)  # type: ignore[arg-type]
    model = make([node("Add", ["x", "w"], ["y"])], [value("x", [4])], ["y"])
    model.graph.initializer.append(tensor)
    return model


TENSORS = {
    "too few bytes": {"dims": [4], "data_type": 1, "raw_data": b"1234"},
    "too many values": {"dims": [1], "data_type": 1, "float_data": [1, 2]},
    "wrong field": {"dims": [1], "data_type": 1, "int64_data": [1]},
    "two fields": {"dims": [1], "data_type": 1, "float_data": [1], "raw_data": b"1234"},
    "negative extent": {"dims": [-4], "data_type": 1, "raw_data": b"1234"},
    "nothing for 2**62": {"dims": [2**62], "data_type": 1},
    "no type": {"dims": [1], "float_data": [1]},
}


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_a_tensor_must_be_as_large_as_it_says(name: str) -> None:
    with pytest.raises(ModelError, match="initializer 'w'"):
        load(tensor_model(**TENSORS[name]))


def test_a_huge_constant_of_shape_is_refused_without_allocating() -> None:
    constants = {"s": np.array([2**20, 2**20])}
    with pytest.raises(LimitError, match="too large"):
        load(make([node("ConstantOfShape", ["s"], ["y"])], [], ["y"], constants))


def test_nodes_may_stand_in_any_order() -> None:
    nodes = [node("Relu", ["h"], ["y"]), node("Neg", ["x"], ["h"])]
    assert run(load(make(nodes, [value("x", [2])], ["y"])), [np.array([1, -2], np.float32)])[0].tolist() == [0, 2]


def test_what_nothing_uses_is_dropped() -> None:
    nodes = [RELU, node("Einsum", ["x"], ["dead"], equation="i->i")]
    module = load(make(nodes, [value("x", [4]), value("idle", [1])], ["y"], {"unused": np.zeros(3, np.float32)}))
    assert [n.op.name for n in module.main.graph.nodes] == ["relu"]
    assert [param.name for param in module.main.inputs] == ["x", "idle"]


def test_every_prefix_of_a_model_is_refused_or_loaded() -> None:
    """No crash, no foreign exception, wherever a file is cut."""
    data = make(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        [value("x", [1, 1, 4, 4])],
        ["y"],
        {"w": np.ones((1, 1, 3, 3), np.float32)},
    ).SerializeToString()
    for end in range(len(data)):
        with contextlib.suppress(RelumeError):
            load(data[:end])


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_never_crash(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = relu_model().SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(150):
            data = bytearray(base)
            for place in rng.integers(0, len(data), 3):
                data[place] = rng.integers(0, 256)
            with contextlib.suppress(RelumeError):
                load(bytes(data))


BOMBS = {
    "Range": make(
        [node("Range", ["a", "b", "c"], ["y"])],
        [],
        ["y"],
        {"a": np.array(0.0), "b": np.array(2.0**40), "c": np.array(1.0)},
    ),
    "Resize": make(
        [node("Resize", ["x", "", "s"], ["y"])], [value("x", [4])], ["y"], {"s": np.array([1e9], np.float32)}
    ),
}
COUNTED = {
    "Range": make(
        [node("Range", ["a", "b", "c"], ["y"])], [], ["y"], {"a": np.array(0), "b": np.array(2**30), "c": np.array(1)}
    ),
    "OneHot": make(
        [node("OneHot", ["x", "d", "v"], ["y"])],
        [value("x", [2], TensorProto.INT64)],
        ["y"],
        {"d": np.array(2**30), "v": np.array([0, 1], np.float32)},
    ),
    "Trilu": make([node("Trilu", ["x"], ["y"])], [value("x", [2**27, 1])], ["y"]),
    "Hardmax": make([node("Hardmax", ["x"], ["y"])], [value("x", [2**27])], ["y"]),
}


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_what_is_counted_is_no_constant(name: str) -> None:
    assert sum(constant.data.nbytes for constant in load(COUNTED[name]).main.graph.constants()) < 100


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_few_numbers_make_no_large_constant(name: str) -> None:
    with pytest.raises(LimitError, match=f"from a few numbers(.|\n)*model:{name}_0"):
        load(BOMBS[name])


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_a_malformed_model_takes_neither_time_nor_memory(name: str) -> None:
    """At most 2 s of processor time and 200 MB on top, whether it is refused or runs."""
    path, feeds = FOLDER / "models" / f"{name}.onnx", MANIFEST[name]["feeds"] or {}
    process.forget_peak()
    before, begin = process.status("VmRSS"), time.process_time()
    with warnings.catch_warnings(), contextlib.suppress(RelumeError):
        warnings.simplefilter("ignore")
        executable = api.compile(path, cache=False)
        shapes = {name: [4] if feed == "i32" else feed for name, feed in feeds.items()}
        inputs = {port.name: np.ones(shapes[port.name], port.dtype.numpy) for port in executable.inputs}
        outputs = executable.run(inputs, time_limit=1)
        assert name in ACCEPTED and outputs
    assert time.process_time() - begin < 2
    assert process.status("VmHWM") - before < 200e6
