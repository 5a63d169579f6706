"""Large tensors are read past protobuf: whatever holds them, the model is the one that protobuf alone would give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import relume
from relume.base.errors import ModelError, RelumeError
from relume.frontends.onnx import pieces, reading
from relume.frontends.onnx.pieces import LEAST

FLOATS = LEAST // 4


def _tensor(name: str, size: int, seed: int = 0, typed: bool = False) -> onnx.TensorProto:
    data = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    if typed:
        return helper.make_tensor(name, TensorProto.FLOAT, data.shape, data)
    return numpy_helper.from_array(data, name)


def _model(nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto], outputs: list[str]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    return helper.make_model(
        helper.make_graph(nodes, "g", [], infos, initializers),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def _sum_of(names: list[str], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    """Every tensor is an output of its own; `constants` come as nodes."""
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in constants]
    nodes += [helper.make_node("Identity", [name], [f"{name}.out"]) for name in names]
    return _model(nodes, [], [f"{name}.out" for name in names])


sizes = st.lists(
    st.tuples(
        st.sampled_from([0, 1, FLOATS - 1, FLOATS, FLOATS + 1, 5 * FLOATS, 70_000]), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


@given(sizes, st.booleans())
def test_every_tensor_is_what_protobuf_says(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, bool, bool]], from_file: bool
) -> None:
    made = [_tensor(f"t{i}", size, i, typed) for i, (size, typed, _) in enumerate(wanted)]
    as_nodes = [tensor for tensor, (_, _, node) in zip(made, wanted) if node]
    model = _sum_of([tensor.name for tensor in made], as_nodes)
    model.graph.initializer.extend(tensor for tensor, (_, _, node) in zip(made, wanted) if not node)
    source: bytes | Path = model.SerializeToString()
    if from_file:
        path = tmp_path_factory.mktemp("pieces") / "model.onnx"
        path.write_bytes(source)
        source = path
    loaded = relume.load(source)
    assert str(loaded.main) == str(relume.load(model).main)
    outputs = relume.evaluate(loaded, {})
    for tensor in made:
        np.testing.assert_array_equal(outputs[f"{tensor.name}.out"], numpy_helper.to_array(tensor))


def test_pieces_inside_regions_and_functions_are_found() -> None:
    large = _tensor("w", 2 * FLOATS)
    body = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=large)],
        "then",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2 * FLOATS])],
    )
    function = helper.make_function(
        "local",
        "F",
        ["x"],
        ["y"],
        [helper.make_node("Constant", [], ["k"], value=large), helper.make_node("Add", ["x", "k"], ["y"])],
        [helper.make_opsetid("", 17)],
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    model = _model(
        [
            helper.make_node("If", ["yes"], ["a"], then_branch=body, else_branch=body),
            helper.make_node("F", ["a"], ["b"], domain="local"),
        ],
        [yes],
        ["b"],
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    data = model.SerializeToString()
    found = pieces.cut(lambda offset, size: data[offset : offset + size], len(data))
    assert found is not None and len(found[2]) == 3
    np.testing.assert_array_equal(relume.evaluate(relume.load(data), {})["b"], 2 * numpy_helper.to_array(large))


def test_a_tensor_of_the_wrong_size_is_refused_with_its_name_and_sizes(tmp_path: Path) -> None:
    tensor = _tensor("weights", 2 * FLOATS)
    tensor.dims[0] += 1
    path = tmp_path / "m.onnx"
    path.write_bytes(_model([helper.make_node("Identity", ["weights"], ["y"])], [tensor], ["y"]).SerializeToString())
    with pytest.raises(ModelError, match=rf"(?s)weights.*{8 * FLOATS + 4} bytes.*{8 * FLOATS} bytes"):
        relume.load(path)


@given(st.data())
def test_damaged_files_are_judged_as_if_they_were_whole(data: st.DataObject) -> None:
    model = _sum_of(["a", "b"], [_tensor("a", 2 * FLOATS)])
    model.graph.initializer.append(_tensor("b", FLOATS, 1))
    damaged = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    message = onnx.ModelProto()
    try:
        message.ParseFromString(bytes(damaged))
    except Exception:
        with pytest.raises(RelumeError):
            relume.load(bytes(damaged))
        return

    def judged(source: bytes | onnx.ModelProto) -> str:
        try:
            return str(relume.load(source).main)
        except RelumeError as error:
            return f"{type(error).__name__}: {error.what}"

    assert judged(bytes(damaged)) == judged(message)


def test_a_file_of_many_small_fields_is_left_to_protobuf() -> None:
    data = _model([], [helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])], []).SerializeToString() * 1
    many = onnx.ModelProto.FromString(data)
    many.graph.doc_string = "d"
    many.metadata_props.extend(onnx.StringStringEntryProto(key="k", value="v") for _ in range(pieces.MAX_FIELDS + 1))
    many.graph.initializer.append(_tensor("w", FLOATS))
    encoded = many.SerializeToString()
    assert pieces.cut(lambda offset, size: encoded[offset : offset + size], len(encoded)) is None
    assert reading.read(encoded).model.graph.initializer[1].raw_data == many.graph.initializer[1].raw_data


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 100)
    with path.open("rb") as file, pytest.raises(ModelError, match="became shorter"):
        pieces.read_all([pieces.Span(50, 100)], file.fileno(), "short")


LOADS = """
import sys
from pathlib import Path
from relume import api
from relume.codegen import Cache
from relume.frontends import onnx
from tests.process import forget_peak, status
before = status("VmRSS")
forget_peak()
exe = api.compile(sys.argv[1], threads=1, cache=Cache(Path(sys.argv[2])))
print(status("VmHWM") - before)
"""


def test_weights_exist_twice_at_most_while_a_model_is_compiled(tmp_path: Path) -> None:
    # As they are stored, and packed: the message, the scaled and the transposed forms come and go one by one.
    rng = np.random.default_rng(0)
    layers, width = 48, 512
    nodes, stored = [], []
    for index in range(layers):
        stored.append(numpy_helper.from_array(rng.standard_normal((width, width)).astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("Gemm", [f"x{index}", f"w{index}"], [f"x{index + 1}"], transB=index % 2))
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, width]) for name in ("x0", f"x{layers}")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], stored)
    path = tmp_path / "deep.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    command = [sys.executable, "-c", LOADS, path, tmp_path / "cache"]
    peaks = [int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(2)]
    # The second finds all code in the cache: LLVM, which takes more than these weights, is not even loaded.
    assert peaks[1] < 2.3 * layers * width * width * 4 + (16 << 20)
