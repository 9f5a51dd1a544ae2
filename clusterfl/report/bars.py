"""Stacked bars: which classes the clients of each cluster hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusterfl.report.svg import Html, colour, el, group, picture, said, shortened, text

WIDTH = 1160.0


def stacked(rows: Sequence[str], classes: Sequence[str], counts: np.ndarray, *, title: str) -> Html:
    """One bar of full length for each row; the width of a part is its share."""
    legend, top = _legend(classes)
    left, tall, gap = 14.0 + 7.4 * min(max(map(len, rows), default=0), 18), 22.0, 9.0
    parts = list(legend)
    for i, row in enumerate(rows):
        y, x = top + i * (tall + gap), left
        total = float(counts[i].sum()) or 1.0
        parts.append(text(left - 8, y + tall / 2 + 4, shortened(row, 18), "end", "tick"))
        for c, count in enumerate(counts[i]):
            wide = (WIDTH - left - 12) * float(count) / total
            if wide > 0:
                told = f"{row}, {classes[c]}\n{said(float(count) / total, 'share')}\n{int(count):,} samples"
                bar = el("rect", x=x, y=y, width=max(wide - 1, 0.5), height=tall, rx=2, class_="bar", data_t=told)
                parts.append(group([bar], class_=_shade(c)))
                if wide > 9 * len(classes[c]) + 6:
                    parts.append(text(x + wide / 2, y + tall / 2 + 4, classes[c], "middle", "value inside"))
            x += wide
    return picture(WIDTH, top + len(rows) * (tall + gap) + 2, parts, title)


def _shade(c: int) -> str:
    return f"{colour(c)} turn{c // 10 % 3}"


def _legend(classes: Sequence[str], most: int = 30) -> tuple[list[Html], float]:
    parts: list[Html] = []
    x, y = 14.0, 14.0
    for c, name in enumerate(classes[:most]):
        name = shortened(name, 16)
        needed = 30.0 + 7.6 * len(name)
        if x > 14 and x + needed > WIDTH:
            x, y = 14.0, y + 19
        mark = el("rect", x=x, y=y - 10, width=12, height=12, rx=3, class_="bar")
        parts.append(group([mark, text(x + 18, y, name, "start", "name")], class_=_shade(c)))
        x += needed
    if len(classes) > most:
        parts.append(text(x, y, f"and {len(classes) - most} more", "start", "name"))
    return parts, y + 16
