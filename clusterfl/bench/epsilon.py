"""A picture of what privacy costs: ARI of the groups found against epsilon, one line per world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 520, 260, 48, 14, 44
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def figure(rows: Sequence[dict[str, Any]]) -> str:
    """An SVG file out of the rows of a study that have an epsilon; its axis is logarithmic."""
    private = [row for row in rows if row["epsilon"] is not None]
    worlds = list(dict.fromkeys(row["world"] for row in private))
    budgets = sorted({row["epsilon"] for row in private})
    low, high = math.log(budgets[0]), math.log(budgets[-1])
    right, bottom = WIDTH - 190, HEIGHT - BOTTOM

    def x(epsilon: float) -> float:
        return LEFT + (right - LEFT) * ((math.log(epsilon) - low) / (high - low) if high > low else 0.5)

    def y(ari: float) -> float:
        return bottom - (bottom - TOP) * min(max(ari, 0.0), 1.0)

    parts = [_text((LEFT + right) / 2, HEIGHT - 8, "epsilon"), _text(14, (TOP + bottom) / 2, "ARI")]
    for level in (0.0, 0.5, 1.0):
        parts += [f'<path d="M{LEFT} {y(level):.1f}H{right}" stroke="#ddd"/>']
        parts += [_text(LEFT - 16, y(level) + 4, f"{level:g}")]
    parts += [_text(x(e), bottom + 18, f"{e:g}") for e in budgets]
    for j, world in enumerate(worlds):
        ink, points = COLOURS[j % len(COLOURS)], []
        for e in budgets:
            found = [row["ari"] for row in private if row["world"] == world and row["epsilon"] == e]
            points += [(x(e), y(sum(found) / len(found)))] if found else []
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts += [f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2"/>']
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{ink}"/>' for a, b in points]
        parts += [f'<rect x="{right + 14}" y="{TOP + 20 * j}" width="12" height="4" fill="{ink}"/>']
        parts += [_text(right + 32, TOP + 6 + 20 * j, world, "start")]
    view, font = f'viewBox="0 0 {WIDTH} {HEIGHT}"', 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view} {font}>'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts, "</svg>\n"])


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222">{words}</text>'
