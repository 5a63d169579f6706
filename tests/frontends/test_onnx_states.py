"""A recurrent ONNX model keeps its state in the runtime: `load(..., states={"h_in": "h_out"})`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import relume
from relume import InputError, ModelError, Storage, VerifyError
from relume.cli import app

F32 = np.float32
STATES = {"h_in": "h_out", "n_in": "n_out"}


def elman(batch: int | str = "N", width_out: int = 5) -> onnx.ModelProto:
    """h' = tanh(x W + h U + b), y = h' V, and a counter of the chunks."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype(F32) * F32(0.5)
        for name, shape in (("W", (3, 5)), ("U", (5, 5)), ("b", (5,)), ("V", (5, 2)), ("E", (5, width_out)))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["xw"]),
        helper.make_node("MatMul", ["h_in", "U"], ["hu"]),
        helper.make_node("Add", ["xw", "hu"], ["sum"]),
        helper.make_node("Add", ["sum", "b"], ["biased"]),
        helper.make_node("Tanh", ["biased"], ["h_out" if width_out == 5 else "h"]),
        *([] if width_out == 5 else [helper.make_node("MatMul", ["h", "E"], ["h_out"])]),
        helper.make_node("MatMul", ["h_out" if width_out == 5 else "h", "V"], ["y"]),
        helper.make_node("Add", ["n_in", "one"], ["n_out"]),
    ]
    floats = {"x": [batch, 3], "h_in": [batch, 5], "y": [batch, 2], "h_out": [batch, width_out]}
    info = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()}
    info |= {name: helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in ("n_in", "n_out")}
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    constants.append(numpy_helper.from_array(np.array(1, np.int64), "one"))
    graph = helper.make_graph(
        nodes, "elman", [info[n] for n in ("x", "h_in", "n_in")], [info[n] for n in ("y", "h_out", "n_out")], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("optimize", [0, 1])
def test_a_stream_runs_chunk_by_chunk_and_no_state_is_passed(optimize: int) -> None:
    model = elman()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exe = relume.compile(relume.load(model, states=STATES), optimize=optimize, threads=1)
    assert [port.name for port in exe.inputs] == ["x"] and [port.name for port in exe.outputs] == ["y"]
    assert [port.name for port in exe.states] == list(STATES) == list(exe.artifact.written)
    storage = Storage.zeros(exe.states, {"N": 2})
    h, n = np.zeros((2, 5), F32), np.array(0, np.int64)
    for chunk in np.random.default_rng(1).standard_normal((20, 2, 3)).astype(F32):
        y, h, n = session.run(["y", "h_out", "n_out"], {"x": chunk, "h_in": h, "n_in": n})
        np.testing.assert_allclose(exe.run({"x": chunk}, states=storage)["y"], y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(storage["h_in"], h, rtol=1e-5, atol=1e-5)
    assert storage["n_in"] == n == 20 and storage.version == 20


def test_some_inputs_may_stay_inputs_and_the_text_reads_back() -> None:
    module = relume.load(elman(), states={"h_in": "h_out"})
    main = module.main
    assert [value.name for value in main.inputs] == ["x", "n_in"] and main.output_names == ("y", "n_out")
    assert [str(value.type) for value in main.states] == ["state<f32[N,5]>"]
    text = str(module)
    constants = {constant.digest: constant.data for constant in main.graph.constants()}
    assert str(relume.parse(text, constants=constants)) == text


@pytest.mark.parametrize(
    ("states", "model", "words"),
    [
        ({"h_in": "h_out"}, elman(width_out=4), r"'h_out' cannot be the next value of the input 'h_in'(.|\n)*N,4\]"),
        ({"h_in": "n_out"}, elman(), "'n_out' cannot be the next value of the input 'h_in'"),
        ({"h": "h_out"}, elman(), "no input 'h'(.|\n)*x, h_in, n_in"),
        ({"h_in": "h"}, elman(), "no output 'h'(.|\n)*y, h_out, n_out"),
    ],
)
def test_states_that_do_not_fit_are_refused(states: dict[str, str], model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        relume.load(model, states=states)


def test_an_open_extent_needs_an_input_that_binds_it(tmp_path: Path) -> None:
    path = tmp_path / "own.rlm"
    path.write_text('func @main(%x : f32[3], %h : f32[M]) {\n  %g = relu(%h)\n  return %x as "y", %g as "g"\n}\n')
    with pytest.raises(ModelError, match=r"'h' cannot be a state(.|\n)*how large M is"):
        relume.load(path, states={"h": "g"})


# --- the command line ---


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    onnx.save(elman(), tmp_path / "elman.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 3), F32))
    return str(tmp_path / "elman.onnx"), str(tmp_path / "x.npy")


GIVEN = [word for state in STATES.items() for word in ("--state", "=".join(state))]


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_run_starts_states_at_zero(files: tuple[str, str], engine: str) -> None:
    model, x = files
    done = CliRunner().invoke(app, ["run", model, "--input", x, *GIVEN, "--engine", engine, "--json"])
    assert done.exit_code == 0, done.output
    outputs = json.loads(done.stdout)["outputs"]
    zeros = {"x": np.load(x), "h_in": np.zeros((2, 5), F32), "n_in": np.array(0, np.int64)}
    assert list(outputs) == ["y"]
    np.testing.assert_allclose(outputs["y"]["values"], relume.evaluate(relume.load(model), zeros)["y"], rtol=1e-5)


def test_check_and_dump_show_states(files: tuple[str, str]) -> None:
    model, _ = files
    checked = json.loads(CliRunner().invoke(app, ["check", model, *GIVEN, "--json"]).stdout)
    assert list(checked["states"]) == list(STATES) and list(checked["inputs"]) == ["x"]
    dumped = CliRunner().invoke(app, ["dump", model, *GIVEN]).stdout
    assert "states(%h_in : f32[N,5], %n_in : i64[])" in dumped and dumped.count("state_write") == 2


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--state", "h_in"], 2, "IN=OUT"),
        (["--state", "h_in=h_out", "--state", "h_in=y"], 2, "given twice"),
        (["--state", "h_in=y"], 1, "next value"),
    ],
)
def test_a_wrong_state_says_so(files: tuple[str, str], words: list[str], status: int, says: str) -> None:
    done = CliRunner().invoke(app, ["check", files[0], *words, "--json"])
    assert done.exit_code == status and says in json.loads(done.stdout)["message"]


@pytest.mark.parametrize(
    ("states", "error", "says"),
    [
        (["h_in"], InputError, r"states goes by name(.|\n)*a dict(.|\n)*list(.|\n)*'h_in': 'h_out'"),
        (0, InputError, "states goes by name"),
        ({"h_in": 3}, InputError, r"next value of 'h_in' is no name(.|\n)*got: 3"),
        ({3: "h_out"}, InputError, "no string"),
        (
            {"x": "h_out", "h_in": "h_out"},
            ModelError,
            r"'h_out' cannot be the next value of two inputs, 'x' and 'h_in'",
        ),
    ],
)
def test_states_of_the_wrong_type_or_twice_are_refused(states: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        relume.load(elman(), states=states)  # type: ignore[arg-type]


def test_an_output_that_is_named_like_a_state_is_refused(tmp_path: Path) -> None:
    text = 'func @main(%x : f32[2], %h : f32[2]) {\n%n = add(%x, %h)\nreturn %n as "next", %x as "h"\n}'
    (tmp_path / "m.rlm").write_text(text)
    with pytest.raises(ModelError, match=r"output 'h' has the name of the input 'h'(.|\n)*rename the output"):
        relume.load(tmp_path / "m.rlm", states={"h": "next"})
    state = relume.parse('func @main(%x : f32[2]) states(%h : f32[2]) {\nreturn %x as "h" states(%h)\n}')
    with pytest.raises(VerifyError, match="output 'h' is named like the state %h"):
        relume.compile(state)
    with pytest.raises(ModelError, match="output 'h' of main is named like the state 'h'"):
        relume.evaluate(state, {"x": np.zeros(2, F32)}, {"h": np.zeros(2, F32)})
