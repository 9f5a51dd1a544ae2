"""Ours beside the paper's: within, above, below."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterfl.reproduce.compare import Comparison, Figure, compare
from clusterfl.reproduce.spec import Experiment
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
