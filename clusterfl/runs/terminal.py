"""Small pictures for a terminal: a curve in dots, a bar for each cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a Braille cell, by row and column
COLOURS = ("blue", "dark_orange", "green", "red", "magenta", "cyan", "deep_pink3", "orange4", "grey62", "yellow3")
CLUSTERS = 8  # that have a bar


def curve(values: Sequence[float], width: int = 44, height: int = 5) -> list[str]:
    """Lines of Braille dots, the lowest value at the bottom; two dots across and four down in a character."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return [" " * width] * height
    low, high = min(known), max(known)
    cells = [[0] * width for _ in range(height)]
    across, down = 2 * width, 4 * height
    before: int | None = None
    for x in range(across):
        at = x * (len(values) - 1) / (across - 1)
        left = values[int(at)]
        value = left + (at - int(at)) * (values[min(int(at) + 1, len(values) - 1)] - left)
        if not math.isfinite(value):
            continue
        y = round((value - low) / (high - low) * (down - 1)) if high > low else 0
        for step in range(min(y, y if before is None else before), max(y, y if before is None else before) + 1):
            row = down - 1 - step
            cells[row // 4][x // 2] |= DOTS[row % 4][x % 2]
        before = y
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def chart(values: Sequence[float], name: str) -> Text:
    """A curve with its name and its ends."""
    known = [v for v in values if math.isfinite(v)]
    text = Text().append(f"{name}\n", style="dim")
    lines = curve(values)
    for j, line in enumerate(lines):
        end = (
            f" {max(known):.3f}" if j == 0 and known else f" {min(known):.3f}" if j + 1 == len(lines) and known else ""
        )
        text.append(line, style="blue").append(f"{end}\n", style="dim")
    return text


def clusters(by_cluster: Mapping[int, tuple[float, int]], width: int = 20) -> Table:
    """A bar for each cluster: the mean of its clients, and how many they are."""
    table = Table.grid(padding=(0, 1))
    longest = max([1.0, *(mean for mean, _ in by_cluster.values() if math.isfinite(mean))])  # errors may be above 1
    for k, (mean, size) in sorted(by_cluster.items())[:CLUSTERS]:
        full = round(width * max(mean, 0.0) / longest) if math.isfinite(mean) else 0
        bar = Text("━" * full, style=COLOURS[k % len(COLOURS)]).append("━" * (width - full), style="grey30")
        table.add_row(
            f"cluster {k}", bar, f"{mean:.3f}" if math.isfinite(mean) else "-", Text(f"{size} clients", "dim")
        )
    if len(by_cluster) > CLUSTERS:
        table.add_row(Text(f"and {len(by_cluster) - CLUSTERS} more", style="dim"))
    return table
