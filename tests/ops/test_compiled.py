"""Compiled code agrees with the reference, on every op and sample; what has no lowering yet is listed, with reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_samples import assert_close, cases, run

from relume import api
from relume.base.errors import UnsupportedError
from relume.codegen import Cache
from relume.graph.opdef import OpDef, Sample
from relume.ops import OPS
from relume.ops.sampling import arrays_of, one_node
from relume.runtime import Storage

NOT_LOWERED_YET = {
    "if": "needs branches of instructions in a program",
    "loop": "needs loops of instructions, and extents that are known only when they end",
    "quantize": "comes with quantisation",
    "dequantize": "comes with quantisation",
    "random_uniform": "needs a kernel of its own",
}
"""Ops without a lowering."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """One for all cases, so that equal kernels are compiled once; never the user's."""
    return Cache(Path(tmp_path_factory.mktemp("kernels")))


@cases()
def test_compiled_agrees_with_the_reference(op: OpDef, sample: Sample, cache: Cache) -> None:
    arrays = arrays_of(sample)
    module = one_node(op, sample, arrays, OPS)
    if op.name in NOT_LOWERED_YET:
        with pytest.raises(UnsupportedError, match="cannot be compiled"):
            api.compile(module, threads=1, cache=cache)
        return
    want = run(module.main, arrays)
    executable = api.compile(module, threads=1, cache=cache)
    main = module.main
    storage = Storage({state.name: array for state, array in zip(main.states, arrays)})
    inputs = {value.name: array for value, array in zip(main.inputs, arrays[main.state_count :])}
    got = executable.run(inputs, states=storage)
    results = [*(got[name] for name in main.output_names), *(storage[state.name] for state in main.states)]
    for result, expected in zip(results, want):
        assert_close(result, expected, sample.tolerance)


def test_the_table_names_ops() -> None:
    assert OPS.keys() >= NOT_LOWERED_YET.keys()
