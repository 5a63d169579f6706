"""Every rewrite rule means the same on both sides, judged by the reference."""

from __future__ import annotations

import numpy as np
import pytest

from relume.graph.rules import EXACT, Rule, sides
from relume.ops import OPS
from relume.passes.canonicalize import RULES
from relume.reference import evaluate

TOLERANCE = 1e-5
"""Relative to the largest result, for rules that reassociate."""


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.name)
def test_both_sides_mean_the_same(row: Rule) -> None:
    before, after = sides(row, OPS)
    for seed in range(8):
        random = np.random.default_rng(seed)
        inputs = [
            (random.standard_normal(value.dims) * 3).astype(value.dtype.numpy)
            if value.dtype.is_float
            else random.integers(0, 2, value.dims).astype(value.dtype.numpy)
            for value in before.inputs
        ]
        (want,), _ = evaluate(before, inputs)
        (got,), _ = evaluate(after, inputs)
        if row.exactness is EXACT:
            assert got.tobytes() == want.tobytes()
        else:
            assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def test_no_two_rules_share_a_name() -> None:
    names = [row.name for row in RULES]
    assert len(names) == len(set(names)) > 10
