"""The backend tests that come inside the onnx package, run through `relume.onnx_backend`.

Each test is a small model with inputs and the outputs that they must give. `stages.json` says which of them belong to
which stage: 1 is float32, integers and bool over plain tensors; 2 adds other element types, control flow, recurrent
layers, quantisation; 3 the rest; X is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from relume import onnx_backend
from relume.base.errors import RelumeError, UnsupportedError

STAGES: dict[str, str] = json.loads((Path(__file__).parent / "stages.json").read_text())
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
RTOL, ATOL = 1e-3, 1e-7
"""The tolerances of upstream's runner, unless a test has its own."""


@dataclass(frozen=True)
class Case:
    """One test. `sets` holds pairs of inputs and expected outputs."""

    name: str
    model: bytes
    sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float = RTOL
    atol: float = ATOL

    @property
    def stage(self) -> str:
        return STAGES.get(self.name, "?")

    @property
    def is_base(self) -> bool:
        """Neither a model of another case with its functions expanded, nor a whole network."""
        return "_expanded" not in self.name and not self.name.startswith("real/")


@dataclass(frozen=True)
class Outcome:
    """What became of a case. `kind`: `pass`, `unsupported` (refused with a reason), `error` or `wrong`."""

    kind: str
    reason: str = ""


@cache
def cases() -> dict[str, Case]:
    """All cases by name, in order of their names."""
    found = {case.name: case for case in (*_generated(), *_shipped(), *_light()) if case.name in STAGES}
    return dict(sorted(found.items()))


def _generated() -> Iterator[Case]:
    from onnx.backend.test.case.node import collect_testcases

    for one in collect_testcases(None):  # type: ignore[arg-type]
        if one.model is not None and one.data_sets is not None:
            yield Case(f"node/{one.name}", one.model.SerializeToString(), one.data_sets, one.rtol, one.atol)
    from onnx.backend.test.case.model import collect_testcases as collect_models

    for one in collect_models():
        if one.model is not None and one.data_sets is not None:
            name = f"simple/{one.name}" if f"simple/{one.name}" in STAGES else f"simple-generated/{one.name}"
            yield Case(name, one.model.SerializeToString(), one.data_sets, one.rtol, one.atol)


def _shipped() -> Iterator[Case]:
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for folder in sorted((DATA / kind).iterdir()):
            if not (folder / "model.onnx").exists():
                continue
            try:
                sets = [(_tensors(d, "input"), _tensors(d, "output")) for d in sorted(folder.glob("test_data_set_*"))]
            except Exception:  # Sequences and optionals, which no stage that runs here has.
                continue
            yield Case(f"{kind}/{folder.name}", (folder / "model.onnx").read_bytes(), sets)


def _light() -> Iterator[Case]:
    """The light models: their weights are made by nodes, their outputs say little. Inputs as upstream makes them."""
    for file in sorted((DATA / "light").glob("light_*.onnx")):
        model = onnx.load(file)
        stored = {tensor.name for tensor in model.graph.initializer}
        inputs = []
        for value in model.graph.input:
            if value.name not in stored:
                dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
                count = int(np.prod(dims))
                inputs.append((np.arange(count).astype(np.float32) / count).reshape(dims))
        expected = onnx.TensorProto.FromString(file.with_name(f"{file.stem}_output_0.pb").read_bytes())
        name = file.stem.removeprefix("light_")
        yield Case(f"real/test_{name}", file.read_bytes(), [(inputs, [numpy_helper.to_array(expected)])])


def _tensors(folder: Path, kind: str) -> list[np.ndarray]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.rpartition("_")[2]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


def with_symbols(case: Case) -> Case:
    """The case with every extent of its inputs turned into a name of its own, and undeclared outputs."""
    model = onnx.ModelProto.FromString(case.model)
    stored = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in stored:
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    for value in (*model.graph.output, *model.graph.value_info):
        value.type.tensor_type.ClearField("shape")
    return replace(case, model=model.SerializeToString())


def run(case: Case, **options: Any) -> Outcome:
    """Compiles a case once and compares its outputs: names, element types, shapes, values."""
    try:
        prepared = onnx_backend.prepare(onnx.ModelProto.FromString(case.model), **options)
        for inputs, expected in case.sets:
            problem = _difference(prepared.run([_array(value) for value in inputs]), expected, case.rtol, case.atol)
            if problem:
                return Outcome("wrong", problem)
    except UnsupportedError as error:
        return Outcome("unsupported", "; ".join(f"{op}: {reason}" for _, op, reason in error.nodes) or error.what)
    except RelumeError as error:
        return Outcome("error", str(error))
    return Outcome("pass")


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _difference(got: Sequence[np.ndarray], expected: Sequence[Any], rtol: float, atol: float) -> str:
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    for index, (ours, wanted) in enumerate(zip(got, expected)):
        theirs = np.asarray(_array(wanted))
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {index}: {ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
        try:
            exact = ours.dtype.kind in "biu"
            if exact:
                np.testing.assert_array_equal(ours, theirs)
            else:
                np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol)
        except AssertionError as error:
            return f"output {index}: " + " ".join(str(error).split())[:300]
    return ""
