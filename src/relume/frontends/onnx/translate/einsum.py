"""Einsum: each pair of operands becomes one batched product of matrices."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from relume.base import dims
from relume.base.dtypes import i64
from relume.frontends.onnx.calls import Call, translates
from relume.graph.types import Value

Labels = list[str]
"""What each axis is called: a letter, or a number counted from the right for an axis of the ellipsis."""


@translates("Einsum", versions=(12, 28))
def einsum(call: Call) -> Value:
    """Operands are taken from left to right; what is not needed any more is summed over as soon as it is."""
    terms, output = _parse(call)
    values = [call.input(index) for index in range(len(terms))]
    given = [_distinct(call, value, labels) for value, labels in zip(values, terms)]
    x, labels = given[0]
    for place, (other, others) in enumerate(given[1:], start=1):
        needed = {*output, *(label for _, later in given[place + 1 :] for label in later)}
        x, labels = _product(call, (x, labels), (other, others), needed)
    x, labels = _summed(call, x, labels, output)
    return call.transpose(x, [labels.index(label) for label in output])


def _parse(call: Call) -> tuple[list[Labels], Labels]:
    """The labels of each operand, and of the result."""
    equation = call.attr("equation", str).replace(" ", "")
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(call.inputs):
        call.wrong(f"the equation {equation!r} of Einsum has {len(texts)} terms", f"{len(call.inputs)} terms", texts)
    for text in (*texts, right):
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", text):
            call.wrong(f"the equation {equation!r} of Einsum is wrong", "letters and at most one ... in a term", text)
    terms = []
    for index, text in enumerate(texts):
        rank, letters = call.input(index).tensor.rank, len(text.replace("...", ""))
        if letters > rank or (letters < rank and "..." not in text):
            what = f"the term {text!r} of Einsum does not fit its operand"
            call.wrong(what, f"rank {letters}", call.input(index).type)
        terms.append(_labels(text, rank - letters))
    rest = sorted({label for term in terms for label in term if label.isdigit()}, key=int, reverse=True)
    if arrow:
        output = _labels(right, len(rest))
    else:
        once = [label for label in sorted({*left} - {",", "."}) if left.count(label) == 1]
        output = [*rest, *once]
    unknown = [label for label in output if not any(label in term for term in terms)]
    if unknown or len(set(output)) != len(output):
        call.wrong(f"the result of {equation!r} is wrong", "labels of the operands, each once", right)
    return terms, output


def _labels(text: str, ellipsis: int) -> Labels:
    before, dots, after = text.partition("...")
    return [*before, *(map(str, range(ellipsis - 1, -1, -1)) if dots else ()), *after]


def _distinct(call: Call, x: Value, labels: Labels) -> tuple[Value, Labels]:
    """The diagonal along axes of one label."""
    for second in range(len(labels) - 1, 0, -1):
        first = labels.index(labels[second])
        if first == second:
            continue
        rows, columns = (call.apply("iota", dims=x.dims, axis=axis, dtype=i64) for axis in (first, second))
        zero = call.constant(0, x.dtype)
        kept = call.apply("select", call.apply("equal", rows, columns), x, zero)
        x = call.apply("reduce_sum", kept, axes=(second,), keep=False)
        labels = [*labels[:second], *labels[second + 1 :]]
    return x, labels


def _summed(call: Call, x: Value, labels: Labels, needed: Collection[str]) -> tuple[Value, Labels]:
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if not axes:
        return x, labels
    return call.apply("reduce_sum", x, axes=axes, keep=False), [label for label in labels if label in needed]


def _product(
    call: Call, left: tuple[Value, Labels], right: tuple[Value, Labels], needed: Collection[str]
) -> tuple[Value, Labels]:
    """[batch.., rows, summed] by [batch.., summed, columns]."""
    a, a_labels = _summed(call, *left, {*needed, *right[1]})
    b, b_labels = _summed(call, *right, {*needed, *a_labels})
    batch = [label for label in a_labels if label in b_labels and label in needed]
    summed = [label for label in a_labels if label in b_labels and label not in needed]
    rows = [label for label in a_labels if label not in b_labels]
    columns = [label for label in b_labels if label not in a_labels]

    def arranged(x: Value, labels: Labels, *groups: Sequence[str]) -> Value:
        moved = call.transpose(x, [labels.index(label) for label in (*batch, *groups[0], *groups[1])])
        extents = iter(moved.dims[len(batch) :])
        flat = [dims.product([next(extents) for _ in group]) for group in groups]
        return call.reshape(moved, (*moved.dims[: len(batch)], *flat))

    y = call.apply("matmul", arranged(a, a_labels, rows, summed), arranged(b, b_labels, summed, columns))
    kept = [a.dims[a_labels.index(label)] for label in rows] + [b.dims[b_labels.index(label)] for label in columns]
    return call.reshape(y, (*y.dims[: len(batch)], *kept)), [*batch, *rows, *columns]
