"""The registry, the facets, and the page that shows them."""

from __future__ import annotations

import builtins
import keyword
from pathlib import Path

import pytest

from relume import ops
from relume.graph.opdef import PRIMITIVE, InferError, Never, NotYet, OpDef, Trait
from relume.ops import FAMILIES, OPS
from relume.ops.matrix import facet_matrix

ROOT = Path(__file__).parents[2]

every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def test_names_are_unique() -> None:
    assert len(OPS) == sum(len(family.OPS) for family in FAMILIES)


@every_op
def test_each_op_is_an_attribute_by_the_rule(op: OpDef) -> None:
    reserved = keyword.iskeyword(op.name) or hasattr(builtins, op.name)
    name = op.name + "_" if reserved else op.name
    assert getattr(ops, name) is op
    assert name in ops.__all__


@every_op
def test_each_facet_is_there_or_says_why_not(op: OpDef) -> None:
    assert op.doc.endswith(".") and op.operands is not None
    for facet in (op.gradient, op.quantize, op.to_onnx):
        assert callable(facet) or isinstance(facet, (str, Never, NotYet))
        assert not isinstance(facet, Never) or facet.reason
    assert (op.decompose is not PRIMITIVE) == op.has(Trait.COMPOSITE)
    assert bool(op.regions) == op.has(Trait.REGION)


@every_op
def test_each_op_has_samples_of_both_kinds(op: OpDef) -> None:
    samples = op.samples()
    assert sum(sample.error is None for sample in samples) >= 2
    total = op in (ops.state_read,)  # takes whatever a state holds
    assert total or any(sample.error is not None for sample in samples)


@every_op
def test_an_unknown_attribute_is_refused(op: OpDef) -> None:
    with pytest.raises(InferError, match="has no attribute 'nonsense'"):
        op.complete({"nonsense": 1})


def test_the_page_of_ops_is_current() -> None:
    assert (ROOT / "docs/ops.md").read_text(encoding="utf-8") == facet_matrix(), (
        "write it anew: python -m relume.ops --write docs/ops.md"
    )


def test_the_page_names_every_op_and_facet() -> None:
    page = facet_matrix()
    for name in OPS:
        assert f"| [{name}](#{name}) |" in page and f"\n### {name}\n" in page
    assert f"- gradient: 0 of {len(OPS)}, 56 not yet, 15 cannot have it" in page
