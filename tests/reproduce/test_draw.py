"""Figures are drawn from the results there are, and say so where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfl.errors import ClusterflError
from clusterfl.reproduce.draw import draw, shown, stale
from clusterfl.reproduce.page import picture_name
from clusterfl.reproduce.spec import Experiment, load_all
from clusterfl.reproduce.stamp import read_stamp, write_stamp
from clusterfl.reproduce.store import Results, write_result
from tests.reproduce.tiny import result

FIGURE = """
citation = "x"
title = "Curves"
kind = "figure"
uses = "some.table1"
report = "clusterfl.report.figures:{report}"
{more}
"""


def figure(folder: Path, report: str, more: str = "") -> tuple[Experiment, list[Experiment]]:
    (folder / "some" / "fig2.toml").write_text(FIGURE.format(report=report, more=more))
    every = load_all(folder)
    return next(e for e in every if e.table == "fig2"), every


@pytest.mark.parametrize(
    ("report", "held"),
    [
        ("accuracy_curves", {"curve": [[1, 0.4], [2, 0.5]]}),
        ("inter_curves", {"inter_curve": [[2, 0.5]]}),
        ("megabytes", {}),
        ("by_setting", {}),
        ("by_clusters", {}),
    ],
)
def test_a_figure_is_drawn_from_results(folder: Path, tiny: Experiment, report: str, held: dict[str, object]) -> None:
    e, every = figure(folder, report, 'shows = ["R=1.0"]')
    path = folder / "fig.png"
    with pytest.raises(ClusterflError, match=r"some.fig2 shows what some.table1 runs, of which there is no result yet"):
        draw(e, every, path)
    for cell in tiny.cells("full", [0]):
        figures = {
            "accuracy_mean": 0.5,
            "accuracy_top5_weighted": 0.5,
            "global_weighted": 0.4,
            "accuracy_std": 0.1,
            "bytes_up": 1e6,
            "bytes_down": 2e6,
        }
        write_result(cell, {**result(cell, **figures), **held})
    assert [r["setting"] for r in shown(e, every)] == ["R=1.0", "R=1.0"]
    e, every = figure(folder, report, 'shows = ["R=1.0"]\nlines = ["Global"]')
    assert [r["row"] for r in shown(e, every)] == ["Global"]
    assert draw(e, every, path) == path and path.read_bytes().startswith(b"\x89PNG")


def test_what_a_figure_needs_may_be_there_at_another_scale(folder: Path, tiny: Experiment) -> None:
    e, every = figure(folder, "inter_curves", 'needs = "inter_curve"')
    full, laptop = (next(iter(tiny.cells(scale, [0]))) for scale in ("full", "laptop"))
    write_result(full, result(full, accuracy_mean=0.5))
    assert shown(e, every) == []
    write_result(laptop, {**result(laptop, accuracy_mean=0.5), "inter_curve": [[1, 0.3]]})
    assert [r["inter_curve"] for r in shown(e, every)] == [[[1, 0.3]]]


def test_a_figure_is_of_the_scale_that_shows_most_of_it(folder: Path, tiny: Experiment) -> None:
    e, every = figure(folder, "by_clusters")
    full = next(iter(tiny.cells("full", [0])))
    write_result(full, result(full, accuracy_mean=0.5))
    assert {r["scale"] for r in shown(e, every)} == {"full"}
    for cell in tiny.cells("laptop", [0]):
        write_result(cell, result(cell, accuracy_mean=0.4))
    assert {r["scale"] for r in shown(e, every)} == {"laptop"} and len(shown(e, every)) == 3
    for cell in tiny.cells("full", [0]):
        write_result(cell, result(cell, accuracy_mean=0.5))
    assert {r["scale"] for r in shown(e, every)} == {"full"}


def test_a_figure_knows_what_it_shows(folder: Path, tiny: Experiment) -> None:
    e, every = figure(folder, "by_clusters")
    path = folder / "fig.png"
    cells = list(tiny.cells("full", [0]))
    write_result(cells[0], result(cells[0], accuracy_mean=0.5, global_weighted=0.4))
    draw(e, every, path)
    assert not stale(e, every, path)
    write_result(cells[1], result(cells[1], accuracy_mean=0.5, global_weighted=0.4))
    assert stale(e, every, path), "another result is there"
    draw(e, every, path)
    assert not stale(e, every, path)
    write_result(cells[1], result(cells[1], accuracy_mean=0.6, global_weighted=0.4))
    assert stale(e, every, path), "and another figure"
    write_stamp(path, "first")
    write_stamp(path, "second")
    assert read_stamp(path) == "second" and path.read_bytes().count(b"clusterfl-shows") == 1


def test_committed_figures_show_todays_results() -> None:
    root = Path(__file__).parent.parent.parent
    every = load_all(root / "experiments")
    held = {folder: Results(folder) for folder in {e.folder for e in every}}
    pictures = [(e, root / "docs" / "figures" / picture_name(e)) for e in every if e.report]
    drawn = [(e, path) for e, path in pictures if path.exists()]
    old = [e.name for e, path in drawn if stale(e, every, path, held[e.folder])]
    assert drawn and not old, f"drawn from other results: clusterfl reproduce {' | '.join(old)}"
