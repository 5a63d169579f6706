"""What a specification rules out is refused: known extents by the import, symbolic ones by the run."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, defs, helper
from onnx_cases import assert_agrees, make, one_node, run, value

import relume
from relume.base.errors import InputError, ModelError, RelumeError
from relume.frontends.onnx import load


def f32(*shape: int) -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


EXTENTS = {
    "Gemm: C of more rows than the result": ("Gemm", [f32(1, 2), f32(2, 3), f32(4, 3)], 17, {}),
    "Gemm: C of more rows and a transposed factor": ("Gemm", [f32(2, 1), f32(2, 3), f32(4, 3)], 17, {"transA": 1}),
    "PRelu: a slope that is longer than x": ("PRelu", [f32(2, 1), f32(3)], 17, {}),
    "loss: classes of one row for two": ("NegativeLogLikelihoodLoss", [f32(2, 3), i64(1)], 17, {"reduction": "none"}),
    "loss: classes of another layout": (
        "NegativeLogLikelihoodLoss",
        [f32(2, 4, 3), i64(0, 1, 2, 3, 0, 1).reshape(3, 2)],
        17,
        {},
    ),
    "loss: too few weights": ("NegativeLogLikelihoodLoss", [f32(2, 3), i64(0, 1), f32(2)], 17, {}),
    "cross entropy: one row for two": ("SoftmaxCrossEntropyLoss", [f32(2, 3), i64(1)], 17, {}),
    "GroupNormalization: one scale for four channels": (
        "GroupNormalization",
        [f32(2, 4, 3), f32(1), f32(4)],
        21,
        {"num_groups": 2},
    ),
    "GroupNormalization: a bias of each channel": (
        "GroupNormalization",
        [f32(2, 4, 3), f32(2), f32(4)],
        18,
        {"num_groups": 2},
    ),
    "GroupNormalization: three groups of four channels": (
        "GroupNormalization",
        [f32(2, 4, 3), f32(4), f32(4)],
        21,
        {"num_groups": 3},
    ),
}


@pytest.mark.parametrize("name", EXTENTS)
def test_known_extents_that_do_not_fit_are_refused_by_the_import(name: str) -> None:
    op, arrays, opset, attrs = EXTENTS[name]
    with pytest.raises(ModelError):
        load(one_node(op, arrays, opset=opset, **attrs)[0])


@pytest.mark.parametrize("optimize", [0, 1])
@pytest.mark.parametrize("name", EXTENTS)
def test_symbolic_extents_that_do_not_fit_are_refused_by_the_run(name: str, optimize: int) -> None:
    op, arrays, opset, attrs = EXTENTS[name]
    names = [f"x{place}" for place in range(len(arrays))]
    infos = [
        value(name, [f"{name}_{axis}" for axis in range(a.ndim)], helper.np_dtype_to_tensor_dtype(a.dtype))
        for name, a in zip(names, arrays)
    ]
    model = make([helper.make_node(op, names, ["y"], **attrs)], infos, ["y"], opset=opset)
    exe = relume.compile(load(model), optimize=optimize)
    with pytest.raises(InputError, match="do not go together"):
        exe(*arrays)


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_more_components_than_the_data_has_axes_are_refused_and_not_written_out(op: str) -> None:
    infos = [value("x", [2, 2]), value("i", [1, 10_000_000], TensorProto.INT64), value("u", [1])]
    names = ["x", "i"] if op == "GatherND" else ["x", "i", "u"]
    model = make([helper.make_node(op, names, ["y"])], infos[: len(names)], ["y"])
    with pytest.raises(ModelError, match="another number of axes"):
        load(model)


@pytest.mark.parametrize("batch", [-1, 2])
def test_gather_nd_shares_fewer_axes_than_there_are(batch: int) -> None:
    with pytest.raises(ModelError, match="batch_dims"):
        load(one_node("GatherND", [f32(2, 2), i64(0, 1).reshape(2, 1)], batch_dims=batch)[0])


@pytest.mark.parametrize("values", [f32(1), f32(3), f32(1, 2), f32()])
def test_one_hot_has_an_off_and_an_on_value(values: np.ndarray) -> None:
    with pytest.raises(ModelError):
        load(one_node("OneHot", [i64(0, 2), values], {1: i64(3)})[0])


ROIS = [f32(2, 1, 4, 4), np.array([[0, 0, 3, 3]], np.float32)]
NEGATIVE = {
    "a class": ("NegativeLogLikelihoodLoss", [f32(2, 3), i64(0, -1)], {}),
    "a class, others ignored": ("NegativeLogLikelihoodLoss", [f32(2, 3), i64(-2, -1)], {"ignore_index": -2}),
    "a length": ("ReverseSequence", [f32(3, 2), i64(1, -1)], {}),
    "an image": ("RoiAlign", [*ROIS, i64(-1)], {"sampling_ratio": 1}),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", NEGATIVE)
def test_an_index_that_may_not_be_negative_does_not_count_from_the_end(name: str, symbolic: bool) -> None:
    op, arrays, attrs = NEGATIVE[name]
    model, feeds = one_node(op, arrays, opset=16, symbolic=symbolic, **attrs)
    exe = relume.compile(load(model))
    with pytest.raises(RelumeError, match="out of range"):
        exe(*feeds)


def functions_of_one_operand() -> list[tuple[str, int]]:
    """Operators of one float operand that are, or once were, imported by the function of their schema."""
    schemas = [s for s in defs.get_all_schemas_with_history() if not s.domain and not s.deprecated]
    return sorted(
        (schema.name, schema.since_version)
        for schema in schemas
        if (schema.has_function or schema.has_context_dependent_function)
        and schema.min_input == schema.max_input == len(schema.outputs) == 1
        and "tensor(float)" in schema.inputs[0].types
        and not any(attribute.required for attribute in schema.attributes.values())
        and schema.name not in ("Bernoulli", "MeanVarianceNormalization", "Softmax", "LogSoftmax")
    )


@pytest.mark.parametrize(("op", "version"), functions_of_one_operand(), ids=str)
def test_an_operator_of_each_element_makes_no_vector_of_a_scalar(op: str, version: int) -> None:
    model, feeds = one_node(op, [np.array(-0.5, np.float32)], opset=version)
    assert run(load(model), feeds)[0].shape == ()


@pytest.mark.parametrize("alpha", [0.7, -0.7, 2.0])
def test_celu(alpha: float) -> None:
    assert_agrees(*one_node("Celu", [f32(9)], alpha=alpha))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("opset", "count"), [(18, 2), (20, 2), (21, 4)])
def test_group_normalization_scales_groups_before_opset_21_and_channels_since(
    opset: int, count: int, symbolic: bool
) -> None:
    scale, bias = f32(count) + 2, f32(count)
    assert_agrees(
        *one_node(
            "GroupNormalization", [f32(2, 4, 3, 5) ** 3, scale, bias], opset=opset, symbolic=symbolic, num_groups=2
        )
    )


@pytest.mark.parametrize("shape", [(3, 2, 3), (1, 2, 3), (2, 3, 4), (2, 3, 2), (2, 6)])
def test_theta_of_affine_grid_has_a_matrix_for_each_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError):
        load(one_node("AffineGrid", [f32(*shape)], {1: i64(2, 1, 3, 4)}, opset=20)[0])


@pytest.mark.parametrize("shape", [(3, 2, 3), (1, 2, 3), (2, 3, 4), (2, 3, 2)])
def test_symbolic_extents_of_theta_are_required(shape: tuple[int, ...]) -> None:
    nodes = [helper.make_node("AffineGrid", ["t", "s"], ["y"])]
    model = make(nodes, [value("t", ["n", "r", "c"])], ["y"], {"s": i64(2, 1, 3, 4)}, opset=20)
    with pytest.raises(InputError, match="do not go together"):
        relume.compile(load(model))(f32(*shape))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 5, 2, 3, 4)])
def test_affine_grid(size: tuple[int, ...], corners: int, symbolic: bool) -> None:
    count = len(size) - 2
    theta = f32(2, count, count + 1)
    assert_agrees(*one_node("AffineGrid", [theta], {1: i64(*size)}, opset=20, symbolic=symbolic, align_corners=corners))


def test_the_only_place_of_an_aligned_extent_of_one_is_the_first() -> None:
    theta = np.eye(2, 3, dtype=np.float32)[None]
    model, feeds = one_node("AffineGrid", [theta], {1: i64(1, 1, 3, 1)}, opset=20, align_corners=1)
    np.testing.assert_array_equal(run(load(model), feeds)[0].reshape(3, 2), [[-1, -1], [-1, 0], [-1, 1]])


@pytest.mark.parametrize(("op", "opset"), [("Scatter", 11), ("Upsample", 10)])
def test_an_operator_that_was_taken_out_is_not_there(op: str, opset: int) -> None:
    with pytest.raises(ModelError, match=f"has no operator {op}"):
        load(make([helper.make_node(op, ["x", "x"], ["y"])], [value("x", [2])], ["y"], opset=opset))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignore", [None, 1, -100])
@pytest.mark.parametrize("weights", [0, 3])
def test_the_loss_of_classes(reduction: str, ignore: int | None, weights: int, symbolic: bool) -> None:
    target = i64(0, 2, 1, 1, 2, 0).reshape(2, 3)
    attrs: dict[str, object] = {"reduction": reduction}
    if ignore is not None:
        target[0, 0], attrs["ignore_index"] = ignore, ignore
    arrays = [f32(2, 3, 3), target, *([f32(weights) + 2] if weights else [])]
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        assert_agrees(*one_node(op, arrays, symbolic=symbolic, **attrs))
