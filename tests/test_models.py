"""Each model of the zoo agrees with ONNX Runtime at every size, with one compilation and the same bits anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from benchmarks import zoo

import relume
from relume import codegen, pipeline
from relume.base import targets
from relume.runtime import Executable

TOLERANCE = 1e-4
"""Relative to the largest element of the output."""

WIDE_ON_NARROW = dataclasses.replace(
    targets.AVX2, vector_bits=targets.AVX512.vector_bits, registers=targets.AVX512.registers
)
"""The AVX-512 schedule (tiles, panels) on AVX2 instructions."""


@dataclasses.dataclass(frozen=True)
class Made:
    """A model of the zoo, compiled for the narrow schedule."""

    model: zoo.Model
    module: relume.Module
    exe: Executable


@pytest.fixture(scope="module", params=list(zoo.MODELS))
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    model = zoo.MODELS[request.param]
    if model.missing is not None:
        pytest.skip(f"the package {model.missing} is not installed")
    module = relume.load(model.onnx())
    artifact = pipeline.build(module.main, targets.AVX2, cache=codegen.default_cache())
    yield Made(model, module, Executable(artifact, threads=2))
    model.__dict__.pop("_onnx", None)  # A hundred megabytes for some.


def outputs(exe: Executable, inputs: zoo.Arrays) -> list[np.ndarray]:
    return list(exe.run(inputs).values())


def assert_same_bits(one: list[np.ndarray], two: list[np.ndarray]) -> None:
    assert [array.tobytes() for array in one] == [array.tobytes() for array in two]


def test_outputs_and_decisions_are_those_of_onnx_runtime_at_every_size_with_one_compilation(made: Made) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.model.onnx(), options, providers=["CPUExecutionProvider"])
    compiled = codegen.llvm_calls()
    for size in made.model.sizes:
        inputs = made.model.inputs(size)
        got, want = outputs(made.exe, inputs), session.run(None, dict(inputs))
        assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in want], size
        for ours, theirs in zip(got, want):
            assert np.abs(theirs).max() > 0, "an output of zeros would agree with anything"
            assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max(), size
        decided = made.model.decide(want)
        assert (made.model.decide(got) == decided).all(), size
    assert codegen.llvm_calls() == compiled, "one compilation serves all sizes"


def test_bits_do_not_depend_on_threads(made: Made) -> None:
    one = Executable(made.exe.artifact, threads=1)
    for size in made.model.sizes:
        inputs = made.model.inputs(size)
        assert_same_bits(outputs(one, inputs), outputs(made.exe, inputs))


def test_bits_do_not_depend_on_the_schedule_of_the_target(made: Made) -> None:
    wide = Executable(pipeline.build(made.module.main, WIDE_ON_NARROW, cache=codegen.default_cache()))
    for size in made.model.sizes:
        inputs = made.model.inputs(size)
        assert_same_bits(outputs(made.exe, inputs), outputs(wide, inputs))


@pytest.mark.skipif(not targets.runs_here(targets.AVX512), reason="this machine has no AVX-512")
def test_bits_are_the_same_on_avx2_and_avx512(made: Made) -> None:
    wide = Executable(pipeline.build(made.module.main, targets.AVX512, cache=codegen.default_cache()))
    for size in made.model.sizes:
        inputs = made.model.inputs(size)
        assert_same_bits(outputs(made.exe, inputs), outputs(wide, inputs))


def test_the_makefile_installs_every_package_of_the_zoo() -> None:
    makefile = (Path(__file__).resolve().parents[1] / "Makefile").read_text()
    for model in zoo.MODELS.values():
        for package in model.packages:
            if package not in ("torch", "skimage", "safetensors"):  # Of pyproject.toml.
                assert package.replace("_", "-") in makefile, f"{model.name} needs {package}"
