"""The noise-free guard of speed: how many instructions a run executes on AVX2, counted by callgrind."""

from __future__ import annotations

import llvmlite
import pytest
from benchmarks import instructions, zoo


@pytest.mark.skipif(instructions.valgrind() is None, reason="valgrind is not installed")
@pytest.mark.parametrize("name", instructions.MODELS)
def test_a_run_executes_no_more_instructions_than_recorded(name: str) -> None:
    model = zoo.MODELS[name]
    if model.missing is not None:
        pytest.skip(f"the package {model.missing} is not installed")
    recorded, version = instructions.recorded()
    if version != llvmlite.__version__:
        pytest.skip(f"the counts were recorded with llvmlite {version}: another LLVM makes other code")
    counted = instructions.count(name)
    assert counted <= recorded[name] * (1 + instructions.TOLERANCE), (
        f"{name} takes {counted:,} instructions, {counted / recorded[name] - 1:+.1%}: where that is meant, record it "
        "with python -m benchmarks.instructions --write"
    )
