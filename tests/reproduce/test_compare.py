"""Ours beside the paper's: within, above, below."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterfl.reproduce.compare import Comparison, Figure, compare, spreads_in_words
from clusterfl.reproduce.spec import Experiment, load
from clusterfl.reproduce.store import write_result
from tests.reproduce.tiny import result


@pytest.mark.parametrize(
    ("metric", "paper", "ours", "void", "verdict"),
    [
        ("accuracy_mean", 90.0, (88.5,), 0, "within"),
        ("accuracy_mean", 90.0, (88.4,), 0, "below"),
        ("accuracy_mean", 90.0, (91.5,), 0, "within"),
        ("accuracy_mean", 90.0, (91.6,), 0, "above"),  # an overshoot is no reproduction
        ("accuracy_mean", 90.0, (80.0, 97.0), 0, "within"),
        ("ari", 0.95, (0.9,), 0, "within"),
        ("ari", 0.95, (0.89,), 0, "below"),
        ("ari", 0.9, (1.0,), 0, "above"),
        ("accuracy_mean", None, (99.0,), 0, None),
        ("accuracy_mean", 90.0, (), 0, None),
        ("inter_accuracy", 45.0, (), 2, "void"),
        ("inter_accuracy", 45.0, (50.0,), 1, "void"),
        ("bytes_up", 5.0, (4.0,), 0, None),
        ("accuracy_std", 5.0, (4.0,), 0, None),
    ],
)
def test_counting_rule(
    metric: str, paper: float | None, ours: tuple[float, ...], void: int, verdict: str | None
) -> None:
    assert Figure("a", "b", metric, paper, ours, void).verdict == verdict


def test_the_text_shows_both_spreads_and_the_mark() -> None:
    assert Figure("a", "b", "f1_micro", 67.6, (60.0, 62.0), spread=0.6).text == "61.00 ± 1.41 / 67.6 ± 0.6 ▽"
    assert Figure("a", "b", "f1_micro", 45.0, (93.5,)).text == "93.50 / 45 ▲"


def test_comparison_is_over_seeds_in_the_papers_unit(tiny: Experiment) -> None:
    for seed, accuracy in ((0, 0.08), (4, 0.10)):
        cell = next(c for c in tiny.cells("full", [seed]))
        write_result(cell, result(cell, accuracy_mean=accuracy, ari=None))
    found = compare(tiny, "full")
    figure = found.figures[0]
    assert (figure.row, figure.setting, figure.paper) == ("Global", "R=0.5", 10.0)
    assert figure.ours == pytest.approx((8.0, 10.0)) and figure.mean == pytest.approx(9.0)
    assert figure.text == "9.00 ± 1.41 / 10 ✓"
    assert (dict(found.verdicts), found.seeds) == ({"within": 1}, [0, 4])
    assert found.count == "1 run: 1 within; 2 seeds"
    assert compare(tiny, "laptop").results == ()
    other = list(tiny.cells("full", [0]))[1]
    write_result(other, result(other, accuracy_mean=0.5))
    assert compare(tiny, "full").count == "2 run: 1 within, 1 below; 1 to 2 seeds"


def test_the_order_of_methods_is_compared_column_by_column(tiny: Experiment) -> None:
    ours = (0.2, 0.1, 0.4, 0.3)
    figures = [
        Figure(name, "R=1.0", "accuracy_mean", paper, (100 * value,))
        for name, paper, value in zip("abcd", (20.0, 10.0, 40.0, 30.0), ours, strict=True)
    ]
    figures.append(Figure("e", "R=1.0", "accuracy_mean", 99.0, (1.0,), reading=True))  # of another row: not twice
    found = Comparison(tiny, "laptop", tuple(figures), ())
    assert found.orders == {("R=1.0", "accuracy_mean"): pytest.approx(1.0)}
    reversed_order = [replace(f, paper=-(f.paper or 0.0)) for f in figures]
    assert replace(found, figures=tuple(reversed_order)).orders["R=1.0", "accuracy_mean"] == pytest.approx(-1.0)
    assert replace(found, figures=tuple(figures[:3])).orders == {}, "three rows say too little"


def test_spreads_are_compared_with_the_papers(folder: Path) -> None:
    """Between clients where the paper prints that as a figure, else between seeds, of which one tells nothing."""
    file = folder / "some" / "table1.toml"
    text = file.read_text().replace('"ari"]', '"accuracy_std"]').replace("[10.0]", "[10.0, 9.0]")
    text = text.replace("[99.9] }", '[99.9, 20.0] }\nspread = { "R=1.0" = [0.5] }').replace('["-", -1.0]', '["-"]')
    file.write_text(text)
    e = load(file)
    cells = [[c for c in e.cells("full", [seed]) if c.row.name == "Global"] for seed in (0, 1)]
    for cell in cells[0]:
        write_result(cell, result(cell, accuracy_mean=0.5, accuracy_std=0.1))
    c = compare(e, "full")
    assert dict(c.spread(clients=True)) == {"within": 1, "narrower": 1} and not c.spread(clients=False)
    assert spreads_in_words(c) == "Spread between clients beside the paper's ±: 1 within 1.5 points, 1 narrower."
    for cell in cells[1]:
        write_result(cell, result(cell, accuracy_mean=0.6, accuracy_std=0.1))
    c = compare(e, "full")
    assert dict(c.spread(clients=False)) == {"wider": 1}
    assert spreads_in_words(c).endswith("Spread between seeds beside the paper's ±: 1 wider.")
    file.write_text(text.replace("metrics =", 'spread_of = "models"\nmetrics ='))  # FCCA's ± of its global figures
    assert not compare(load(file), "full").spread(clients=False)


def test_the_only_column_that_was_run_is_named_where_there_are_others(tiny: Experiment) -> None:
    figure = replace(tiny, kind="figure", rows=tuple(replace(row, paper={}) for row in tiny.rows))
    cell = next(c for c in figure.cells("full", [0]) if c.setting.name == "R=1.0")
    write_result(cell, result(cell, accuracy_mean=0.5))
    assert compare(figure, "full").grid()[0] == ["", "R=1.0: accuracy"]
