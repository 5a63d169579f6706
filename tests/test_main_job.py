"""The main job: real networks from an ONNX file to native code, on real images."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import models
import relume
from relume import codegen, pipeline
from relume.base import targets
from relume.frontends.onnx import load
from relume.graph.text import parse_module, print_module
from relume.kernels import KERNELS
from relume.ops import OPS
from relume.program.text import parse_program, print_program
from relume.runtime import Executable

TOLERANCE = 1e-4
"""Relative to the largest output."""

WIDE_ON_NARROW = dataclasses.replace(
    targets.AVX2, vector_bits=targets.AVX512.vector_bits, registers=targets.AVX512.registers
)
"""The AVX-512 schedule (tiles, panels) on AVX2 instructions: runs on every machine that Relume supports."""


@pytest.fixture(scope="module")
def digits_exe() -> Executable:
    return relume.compile(models.DIGITS)


@pytest.fixture(scope="module")
def classifier_exe() -> Executable:
    return relume.compile(models.classifier())


def onnx_runtime(model: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()
    assert (got.argmax(-1) == want.argmax(-1)).all()


def test_digits_agree_with_onnx_runtime(digits_exe: Executable) -> None:
    x = models.digits()
    want = onnx_runtime(models.DIGITS, x)
    assert_close(digits_exe(x), want)
    assert_close(digits_exe(x[:1]), want[:1])


def test_the_classifier_agrees_with_onnx_runtime_at_three_widths_with_one_compilation(
    classifier_exe: Executable,
) -> None:
    decisions = set()
    for width in (96, 192, 320):
        x = models.text_lines(width)
        want = onnx_runtime(models.classifier(), x)
        assert_close(classifier_exe(x), want)
        decisions.update(want.argmax(-1).tolist())
    assert decisions == {0, 1}, "both directions occur among the lines, so that agreement means something"


@pytest.mark.parametrize("optimize", [0, 1])
def test_native_and_reference_agree(optimize: int) -> None:
    for model, x in ((models.DIGITS, models.digits()[:9]), (models.classifier(), models.text_lines(96)[:2])):
        module = relume.load(model)
        (name,) = [value.name for value in module.main.inputs]
        (want,) = relume.evaluate(module, {name: x}).values()
        assert_close(relume.compile(module, optimize=optimize, check=True)(x), want)


# --- the same bits ---------------------------------------------------------------------------------------------------

PAIRS = [("digits", models.DIGITS), ("classifier", None)]


def model_and_input(name: str) -> tuple[Path, np.ndarray]:
    return (models.DIGITS, models.digits()[:8]) if name == "digits" else (models.classifier(), models.text_lines(192))


@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    model, x = model_and_input(name)
    one, two = (relume.compile(model, threads=threads)(x) for threads in (1, 2))
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_bits_do_not_depend_on_the_place_in_a_batch(name: str) -> None:
    model, x = model_and_input(name)
    exe = relume.compile(model)
    together = exe(x)
    for index in range(len(x)):
        assert exe(x[index : index + 1]).tobytes() == together[index : index + 1].tobytes()


@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_bits_do_not_depend_on_the_schedule_of_the_target(name: str) -> None:
    model, x = model_and_input(name)
    fn = load(model).main
    narrow, wide = (Executable(pipeline.build(fn, target))(x) for target in (targets.AVX2, WIDE_ON_NARROW))
    assert narrow.tobytes() == wide.tobytes()


@pytest.mark.skipif(not targets.runs_here(targets.AVX512), reason="this machine has no AVX-512")
@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_bits_are_the_same_on_avx2_and_avx512(name: str) -> None:
    model, x = model_and_input(name)
    narrow, wide = (relume.compile(model, target=target)(x) for target in ("x86-64-avx2", "x86-64-avx512"))
    assert narrow.tobytes() == wide.tobytes()


@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_avx512_code_uses_its_registers(name: str) -> None:
    fn = pipeline.optimize(load(model_and_input(name)[0]).main)
    assembly = codegen.emit_assembly(pipeline.to_program(fn, targets.AVX512), targets.AVX512)
    assert "zmm16" in assembly, "one of the registers that only AVX-512 has"


def test_bits_and_artifacts_do_not_depend_on_the_hash_seed_or_the_cache(tmp_path: Path) -> None:
    """Two processes with other hash seeds, each compiling without a cache, then into and from one."""
    code = (
        "import sys, hashlib, models, relume\n"
        "from pathlib import Path\n"
        "from relume.codegen import Cache\n"
        "for cache in (False, Cache(Path(sys.argv[1])), Cache(Path(sys.argv[1]))):\n"
        "    for model, x in ((models.DIGITS, models.digits()[:8]), (models.classifier(), models.text_lines(96))):\n"
        "        exe = relume.compile(model, cache=cache)\n"
        "        image = exe.artifact.image\n"
        "        print(hashlib.sha256(image.code).hexdigest(), sorted(image.exports), image.slots)\n"
        "        print(hashlib.sha256(exe(x).tobytes()).hexdigest())\n"
    )
    printed = []
    for seed in ("1", "2"):
        paths = os.pathsep.join([str(Path(models.__file__).parent), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.append(done.stdout.splitlines())
    assert printed[0] == printed[1]
    first, second, third = (printed[0][start : start + 4] for start in (0, 4, 8))
    assert first == second == third


# --- text and sites --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_both_text_forms_round_trip(name: str) -> None:
    module = relume.load(model_and_input(name)[0])
    assert relume.parse(str(module)) == module
    constants = {constant.digest: constant.data for constant in module.main.graph.constants()}
    assert parse_module(print_module(module, origins=True), OPS, constants) == module
    assert relume.parse(print_module(module, data=True)).main.graph.nodes[0].op is module.main.graph.nodes[0].op
    optimized = pipeline.optimize(module.main)
    again = {constant.digest: constant.data for constant in optimized.graph.constants()}
    assert parse_module(print_module(relume.Module({"main": optimized}), origins=True), OPS, again).main == optimized
    program = pipeline.to_program(optimized, targets.AVX2)
    assert parse_program(print_program(program), KERNELS) == program


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with every node, value and symbol renamed."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"renamed/{len(names)}")

    graph = changed.graph
    for node in graph.node:
        node.name = new("node " + node.name)
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = new(value.name)
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param not in ("", "?"):  # "?" names nothing
                dim.dim_param = new(dim.dim_param)
    return changed


@pytest.mark.parametrize("name", ["digits", "classifier"])
def test_renaming_everything_leaves_all_sites_equal(name: str) -> None:
    model = onnx.load(model_and_input(name)[0])
    one, two = load(model).main, load(renamed(model)).main
    sites = [[node.origins for node in fn.graph.walk()] + [fn.graph.origins] for fn in (one, two)]
    assert sites[0] == sites[1]
    assert len({origin for node in sites[0] for origin in node}) > len(one.graph.nodes)


# --- the cache -------------------------------------------------------------------------------------------------------


def test_compiling_from_the_cache_calls_llvm_never(tmp_path: Path) -> None:
    code = (
        "import sys, relume\n"
        "from pathlib import Path\n"
        "from relume.codegen import Cache, llvm_calls\n"
        "import models\n"
        "exe = relume.compile(models.DIGITS, cache=Cache(Path(sys.argv[1])))\n"
        "exe(models.digits()[:1])\n"
        "print(llvm_calls(), 'llvmlite' in sys.modules)\n"
    )
    paths = os.pathsep.join([str(Path(models.__file__).parent), *sys.path])
    printed = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert int(printed[0][0]) > 0
    assert printed[1] == ["0", "False"]


def test_a_truncated_cache_is_rebuilt_and_reported(tmp_path: Path) -> None:
    x = models.digits()[:3]
    want = relume.compile(models.DIGITS, cache=codegen.Cache(tmp_path))(x)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.warns(UserWarning, match="rebuil"):
        exe = relume.compile(models.DIGITS, cache=codegen.Cache(tmp_path))
    assert exe(x).tobytes() == want.tobytes()
