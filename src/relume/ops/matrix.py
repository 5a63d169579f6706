"""`docs/ops.md`: what each op means, and which facets it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from relume.graph.opdef import PRIMITIVE, Never, NotYet, OpDef
from relume.ops import FAMILIES, OPS

_FACETS: dict[str, Callable[[OpDef], object]] = {
    "gradient": lambda op: op.gradient,
    "quantize": lambda op: op.quantize,
    "decompose": lambda op: op.decompose,
    "to ONNX": lambda op: op.to_onnx,
}


def _cell(facet: object) -> str:
    if isinstance(facet, Never):
        return "cannot"
    if isinstance(facet, str):
        return facet
    return "yes" if callable(facet) else str(facet)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return [f"| {line} |" for line in lines]


def _samples(op: OpDef) -> str:
    samples = op.samples()
    refused = sum(sample.error is not None for sample in samples)
    return f"{len(samples) - refused} + {refused}"


def _count(name: str) -> str:
    facets = [_FACETS[name](op) for op in OPS.values()]
    absent = sum(isinstance(facet, NotYet) for facet in facets)
    never = sum(isinstance(facet, Never) for facet in facets)
    primitive = sum(facet is PRIMITIVE for facet in facets)
    there = len(facets) - absent - never - primitive
    parts = [f"{there} of {len(facets)}", f"{absent} not yet", f"{never} cannot have it", f"{primitive} primitive"]
    return f"- {name}: " + ", ".join(part for part in parts if not part.startswith("0 ") or part == parts[0])


def _signature(op: OpDef) -> str:
    given = [*op.operands, *(f"{attr.name}: {attr.kind}{_default(attr.default)}" for attr in op.attrs)]
    regions = "".join(f" {{{region}}}" for region in op.regions)
    return f"`{op.name}({', '.join(given)}){regions} -> {', '.join(op.results)}`"


def _default(value: object) -> str:
    return "" if value is None else f" = {str(value).lower() if isinstance(value, bool) else value}"


def _reasons(op: OpDef) -> list[str]:
    return [f"No {name}: {facet.reason}." for name, of in _FACETS.items() if isinstance(facet := of(op), Never)]


def _escaped(text: str) -> str:
    """Products and powers are not emphasis."""
    return text.replace("*", "\\*")


def facet_matrix() -> str:
    """The page, in Markdown. It depends on the registry alone."""
    lines = [
        "# The ops",
        "",
        "Written by `python -m relume.ops --write docs/ops.md`; do not edit it. How to add an op: "
        "[adding-an-op.md](adding-an-op.md).",
        "",
        "Every op has `infer` and `reference`. In the table, *cannot* means that a facet cannot exist (the reason "
        "stands with the op), *not yet* that it is planned; *primitive* ops are lowered as they are. Samples count "
        "what is computed + what must be refused.",
        "",
        *_table(
            ("op", *_FACETS, "samples", "traits"),
            (
                (
                    f"[{op.name}](#{op.name})",
                    *(_cell(of(op)) for of in _FACETS.values()),
                    _samples(op),
                    ", ".join(sorted(trait.name.lower() for trait in op.traits)),
                )
                for op in OPS.values()
            ),
        ),
        "",
        *map(_count, _FACETS),
    ]
    for family in FAMILIES:
        title = family.__name__.rsplit(".", 1)[-1]
        lines += ["", f"## {title.capitalize()}", "", _escaped((family.__doc__ or "").strip())]
        for op in family.OPS:
            lines += ["", f"### {op.name}", "", _signature(op), "", _escaped(" ".join([op.doc, *_reasons(op)]))]
    return "\n".join(lines) + "\n"
