"""Stage 1 of the ONNX backend tests, compiled; once more with symbolic extents; and whole networks.

`docs/limits.md` says what is missing. A case that is refused with a reason counts as missing, not as a failure; a case
that gives something wrong, or fails in another way, fails here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import light
import numpy as np
import onnxruntime
import pytest
import suite

from relume import onnx_backend

STAGE_1 = sorted(name for name, stage in suite.STAGES.items() if stage == "1" and not name.startswith("real/"))
GROUPS = 32
"""The cases are run in so many tests: one test each would cost more than the cases."""

MISSING: frozenset[str] = frozenset()
"""Cases of stage 1 that are refused with a reason."""
MISSING_SYMBOLIC = frozenset(
    f"node/test_gathernd_example_{kind}" for kind in ("float32", "int32", "int32_batch_dim1")
)
"""Those that are refused only where extents are symbolic: the last extent of the indices decides the rank."""


def _check(names: list[str], symbolic: bool, missing: frozenset[str]) -> None:
    problems = []
    for name in names:
        case = suite.cases()[name]
        outcome = suite.run(suite.with_symbols(case) if symbolic else case, threads=1)
        if outcome.kind != ("unsupported" if name in missing else "pass"):
            problems.append(f"{name}: {outcome.kind} {outcome.reason}")
    assert not problems, "\n".join(problems)


def test_the_suite_is_whole() -> None:
    assert len(STAGE_1) == 1101 and set(STAGE_1) <= suite.cases().keys()
    assert len(MISSING) <= 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--part", "x"], "'x' is not I/N"),
        (["--part", "2/2"], "'2/2' is not I/N"),
        (["--part", "0/0"], "'0/0' is not I/N"),
        (["--match", "nosuch"], "no case matches"),
        (["--stages", "7"], "no case matches"),
    ],
)
def test_the_command_says_when_there_is_nothing_to_run(arguments: list[str], says: str) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-m", "tests.conformance", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and says in done.stderr and not done.stdout


@pytest.mark.parametrize("group", range(GROUPS))
def test_stage_1_passes_compiled(group: int) -> None:
    _check(STAGE_1[group::GROUPS], False, MISSING)


@pytest.mark.parametrize("group", range(GROUPS))
def test_stage_1_passes_with_symbolic_extents(group: int) -> None:
    base = [name for name in STAGE_1 if suite.cases()[name].is_base]
    assert len(MISSING | MISSING_SYMBOLIC) <= len(base) // 10
    _check(base[group::GROUPS], True, MISSING | MISSING_SYMBOLIC)


@pytest.mark.parametrize("name", light.NAMES)
def test_a_network_with_random_weights_agrees_with_onnx_runtime(name: str) -> None:
    model = light.randomised(name)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    prepared = onnx_backend.prepare(model)
    seen = []
    for image in light.images(model):
        names = [value.name for value in session.get_inputs()]
        (expected,) = session.run(None, {names[0]: image})
        (got,) = prepared.run([image])
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
        assert got.argmax() == expected.argmax()
        seen.append(got)
    assert np.abs(seen[0] - seen[1]).max() > 1e-3 * np.abs(seen[0]).max()
