"""Small pictures for a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from clusterfl.runs.terminal import chart, clusters, curve


def test_a_curve_rises_from_the_bottom_left_to_the_top_right() -> None:
    lines = curve([0.0, 1.0], width=4, height=2)
    assert [len(line) for line in lines] == [4, 4]
    assert lines[1][0] != "\u2800" and lines[0][0] == "\u2800" and lines[0][-1] != "\u2800" and lines[1][-1] == "\u2800"
    assert curve([0.5, 0.5, float("nan")], 3, 1) != curve([], 3, 1) == ["   "]


def test_names_ends_and_clusters() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100)
    console.print(chart([0.1, 0.5], "mean accuracy"))
    console.print(clusters(dict.fromkeys(range(10), (0.5, 2))))
    said = text.getvalue()
    assert "mean accuracy" in said and "0.500" in said and "0.100" in said
    assert "cluster 7" in said and "cluster 8" not in said and "and 2 more" in said and "2 clients" in said
