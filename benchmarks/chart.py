"""A bar chart of ratios as SVG: to the right of 1 we are faster than the best peer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

BAR, GAP, LEFT, WIDTH, TOP = 11, 9, 120, 520, 46
LOW, HIGH = 0.25, 4.0
"""The ends of the logarithmic axis; what lies beyond is drawn to the end, with its number."""
COLOURS = ("#4477aa", "#ee7733", "#228833", "#aa3377")


def _x(ratio: float) -> float:
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + WIDTH * share


def chart(ratios: Mapping[str, Mapping[int, float]], means: Mapping[int, float], threads: Sequence[int]) -> str:
    """The SVG text. `ratios` is by model and number of threads, `means` by number of threads."""
    rows = {**ratios, "geometric mean": means}
    step = BAR * len(threads) + GAP
    height = TOP + step * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 50}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">Time of the best peer / ours (right of 1: we are faster)</text>',
    ]
    for index, count in enumerate(threads):
        x = LEFT + 100 * index
        parts.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="33">{count} thread{"s" if count > 1 else ""}</text>')
    bottom = TOP + step * len(rows)
    for tick in (0.25, 0.5, 0.6, 1.0, 1.3, 2.0, 4.0):
        x, strong = _x(tick), tick == 1.0
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}" '
            f'stroke="{"black" if strong else "#cccccc"}" stroke-width="1"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g}</text>')
    for row, (name, by) in enumerate(rows.items()):
        top = TOP + step * row
        parts.append(f'<text x="{LEFT - 6}" y="{top + step / 2:.1f}" text-anchor="end">{escape(name)}</text>')
        for index, count in enumerate(threads):
            if count not in by:
                continue
            one, here = _x(1.0), _x(by[count])
            y = top + BAR * index
            parts.append(
                f'<rect x="{min(one, here):.1f}" y="{y}" width="{abs(here - one):.1f}" height="{BAR - 1}" '
                f'fill="{COLOURS[index % len(COLOURS)]}"/>'
            )
            right = here >= one
            parts.append(
                f'<text x="{here + (3 if right else -3):.1f}" y="{y + BAR - 2}" font-size="9" '
                f'text-anchor="{"start" if right else "end"}">{by[count]:.2f}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"
