"""Which ONNX operators are translated, as a page for people: written from the translators, never by hand."""

from __future__ import annotations

import onnx

from relume.base.dtypes import ALL
from relume.frontends.onnx.calls import TRANSLATORS

FIRST = 6
"""The oldest opset that is read."""

HEAD = f"""# ONNX operators

Written by `python -m relume.frontends.onnx --write docs/onnx.md`; do not edit it. Opsets {FIRST} to {{newest}} of the
standard domain, element types {{types}}. An operator without a
translator of its own is imported by the function that its schema gives for it, where there is one. What an operator
cannot do yet is in [limits.md](limits.md), and an error of `relume check`.

| operator | since | how |
|---|---|---|
"""


def page() -> str:
    """The page: each operator of the newest opset, the versions of it that are translated, and the others by name."""
    newest = onnx.defs.onnx_opset_version()
    rows, missing = [], []
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda schema: schema.name):
        if schema.domain or schema.deprecated:
            continue
        spoken = TRANSLATORS.get(("", schema.name), {})
        if schema.since_version in spoken:
            how = f"translated, versions {', '.join(map(str, sorted(spoken)))}"
        elif schema.has_function or schema.has_context_dependent_function:
            how = "by the function of its schema"
        elif spoken:
            how = f"versions {', '.join(map(str, sorted(spoken)))} only"
        else:
            missing.append(schema.name)
            continue
        rows.append(f"| {schema.name} | {schema.since_version} | {how} |\n")
    head = HEAD.format(newest=newest, types=", ".join(map(str, ALL)))
    return f"{head}{''.join(rows)}\nNot translated: {', '.join(missing)}.\n"
