"""Dots on a map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clusterfl.report.svg import Html, Scale, colour, el, group, line, picture, text

WIDTH, HEIGHT = 560.0, 360.0


@dataclass(frozen=True)
class Dot:
    name: str
    x: float
    y: float
    colour: int
    size: float = 1.0  # relative: the area of the dot


def scatter(dots: Sequence[Dot], *, title: str, x_name: str, y_name: str, named: int = 14) -> Html:
    """Axes without numbers: what counts is who is near whom."""
    across = Scale(*_wide([d.x for d in dots]), 40.0, WIDTH - 40)
    up = Scale(*_wide([d.y for d in dots]), HEIGHT - 40, 24.0)
    parts = [line(28, HEIGHT - 28, WIDTH - 12, HEIGHT - 28, "axis"), line(28, 12, 28, HEIGHT - 28, "axis")]
    parts.append(text(WIDTH / 2, HEIGHT - 8, x_name, "middle", "axis-name"))
    middle = HEIGHT / 2
    parts.append(text(16, middle, y_name, "middle", "axis-name", transform=f"rotate(-90 16 {middle:.0f})"))
    largest = max((d.size for d in dots), default=1.0) or 1.0
    words: list[tuple[float, float, float]] = []  # (from, to, height) of the names that are there already
    for d in dots:
        x, y = across(d.x), up(d.y)
        r = 4.0 + (8.0 * math.sqrt(max(d.size, 0.0) / largest) if len(dots) <= named else 1.0)
        marks = [el("circle", cx=x, cy=y, r=r, class_="dot", fill_opacity="0.85", data_t=d.name)]
        if len(dots) <= named:
            side = "end" if x > WIDTH * 0.75 else "start"
            start = x - r - 5 if side == "end" else x + r + 5
            low, high = sorted((start, start + 7.4 * len(d.name) * (-1 if side == "end" else 1)))
            if not any(low < b and a < high and abs(y - c) < 13 for a, b, c in words):  # pointing at the dot tells it
                words.append((low, high, y))
                marks.append(text(start, y + 4, d.name, side, "name"))
        parts.append(group(marks, class_=colour(d.colour)))
    return picture(WIDTH, HEIGHT, parts, title)


def _wide(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    air = 0.08 * (high - low) or 0.5
    return low - air, high + air
