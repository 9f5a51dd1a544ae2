"""Comparisons: figures over seeds, and the tables that show them."""

from __future__ import annotations

from clusterfl.runs.compare import FIGURES, REACHED, figures, row
from clusterfl.runs.compare_tables import reached


def test_reached_says_how_many_seeds_got_there() -> None:
    runs = [dict.fromkeys(FIGURES, 0) | {"seed": s, "k": 1, "assignments": {}} for s in range(3)]
    spent: list[int | None] = [2_000_000, None, 4_000_000]
    entry = row("fedavg", [r | {REACHED: b} for r, b in zip(runs, spent, strict=True)], figures(0.9))
    assert reached(entry) == "3.00 ± 1.41 (2 of 3)"
