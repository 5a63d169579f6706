"""What each op's samples say about it, with no code for any one op."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from relume.base import dims
from relume.base.errors import RunError
from relume.graph import text
from relume.graph.builder import Builder
from relume.graph.opdef import InferError, OpDef, Sample, Trait
from relume.graph.types import Function, State, Tensor
from relume.graph.verify import verify
from relume.ops import OPS
from relume.ops.sampling import arrays_of, one_node
from relume.reference import bind, evaluate

CASES = [(op, index, sample) for op in OPS.values() for index, sample in enumerate(op.samples())]


def cases(refused: bool = False, trait: Trait | None = None) -> pytest.MarkDecorator:
    """Parametrises over the samples that must be computed (or refused), of all ops (or those with a trait)."""
    picked = [
        pytest.param(op, sample, id=f"{op.name}-{index}")
        for op, index, sample in CASES
        if (sample.error is not None) == refused and (trait is None or op.has(trait))
    ]
    return pytest.mark.parametrize(("op", "sample"), picked)


def run(fn: Function, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs, then the next states; a sample's state operands come first."""
    outputs, states = evaluate(fn, arrays[fn.state_count :], arrays[: fn.state_count])
    return [*outputs, *states]


def assert_close(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    """Within `tolerance` of the largest finite magnitude; NaN and infinities in the same places."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, want))
    largest = np.abs(want[finite]).max(initial=0.0)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=tolerance * largest)


@cases()
def test_infer_agrees_with_the_reference(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    module = one_node(op, sample, arrays, OPS)
    verify(module.main)
    before = [array.tobytes() for array in arrays]
    results = run(module.main, arrays)  # Which checks dtype and extents of each result.
    (node,) = module.main.graph.nodes
    assert len(results) == len(module.main.graph.results) >= len(node.results)
    assert [array.tobytes() for array in arrays] == before
    assert not any(np.shares_memory(result, array) for result in results for array in arrays)


@cases()
def test_symbolic_infer_gives_the_extents_of_the_reference(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    try:
        fn = one_node(op, sample, arrays, OPS, symbolic=True).main
    except InferError:
        # Only a type that an operand must be, to the letter, cannot be made symbolic.
        assert op.has(Trait.REGION) or op.has(Trait.EFFECT)
        return
    params = [*fn.states, *fn.inputs]
    binding = bind(params, arrays)
    for value, result in zip(fn.graph.results, run(fn, arrays)):
        if not op.has(Trait.REGION):  # a region may yield extents that nothing outside knows
            assert tuple(dims.evaluate(dim, binding) for dim in value.dims) == result.shape


@cases(refused=True)
def test_what_must_be_refused_is_refused_with_the_reason(op: OpDef, sample: Sample) -> None:
    with pytest.raises(InferError) as refusal:
        one_node(op, sample, arrays_of(sample), OPS)
    assert sample.error is not None and sample.error in refusal.value.what
    assert refusal.value.expected is not None and refusal.value.got is not None


@cases(refused=True)
def test_what_symbols_hide_from_infer_is_refused_by_the_run(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    try:
        fn = one_node(op, sample, arrays, OPS, symbolic=True).main
    except InferError:
        return
    with pytest.raises(RunError, match=sample.error):
        run(fn, arrays)


@cases()
def test_text_round_trips(op: OpDef, sample: Sample) -> None:
    module = one_node(op, sample, arrays_of(sample), OPS)
    assert text.parse_module(text.print_module(module), OPS) == module


@cases(trait=Trait.COMPOSITE)
def test_decomposition_agrees_with_the_reference(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    module = one_node(op, sample, arrays, OPS)
    (node,) = module.main.graph.nodes
    build = Builder()
    params = [build.param(value.type, value.name) for value in node.operands]
    results = op.decompose(build, *params, attrs=node.attrs)
    assert [value.type for value in results] == [value.type for value in node.results]
    parts = Function("main", build.graph(*results), 0, module.main.output_names)
    verify(parts)
    for got, want in zip(run(parts, arrays), run(module.main, arrays)):
        assert_close(got, want, sample.tolerance)


@cases(trait=Trait.COMMUTATIVE)
def test_commutative_ops_commute(op: OpDef, sample: Sample) -> None:
    a, b = arrays_of(sample)
    (one,) = run(one_node(op, sample, [a, b], OPS).main, [a, b])
    (other,) = run(one_node(op, sample, [b, a], OPS).main, [b, a])
    np.testing.assert_array_equal(one, other)


@cases(trait=Trait.ELEMENTWISE)
def test_elementwise_ops_look_at_one_index_only(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    (whole,) = run(one_node(op, sample, arrays, OPS).main, arrays)
    spread = np.broadcast_arrays(*arrays)
    assert whole.shape == spread[0].shape
    for index in itertools.islice(np.ndindex(whole.shape), 40):
        point = [np.array(array[index]) for array in spread]
        (alone,) = run(one_node(op, sample, point, OPS).main, point)
        # NumPy's own functions may end in another last bit on a vector than on a scalar.
        assert_close(alone, np.asarray(whole[index]), sample.tolerance if op.has(Trait.INEXACT) else 0)


@cases(trait=Trait.DATA_MOVEMENT)
def test_data_movement_copies_elements_or_a_fill_value(op: OpDef, sample: Sample) -> None:
    arrays = arrays_of(sample)
    (result,) = run(one_node(op, sample, arrays, OPS).main, arrays)
    source = np.concatenate([array.reshape(-1) for array in arrays if array.dtype == result.dtype])
    fill = np.asarray(sample.attrs.get("value", 0)).astype(result.dtype)
    assert np.isin(result, [*source, fill]).all()


def test_every_sample_gives_the_same_result_twice() -> None:
    for op, _, sample in CASES[::7]:
        if sample.error is None:
            first, second = (
                run(one_node(op, sample, arrays, OPS).main, arrays) for arrays in (arrays_of(sample), arrays_of(sample))
            )
            assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


def test_state_operands_are_states() -> None:
    sample = OPS["state_write"].samples()[0]
    fn = one_node(OPS["state_write"], sample, arrays_of(sample), OPS).main
    assert [type(value.type) for value in fn.graph.params] == [Tensor, State]
