"""Ours beside the paper's: what counts as reproduced."""

from __future__ import annotations

import pytest

from clusterfl.reproduce.compare import Figure, compare
from clusterfl.reproduce.spec import Experiment
from clusterfl.reproduce.store import write_result
from tests.reproduce.tiny import result


@pytest.mark.parametrize(
    ("metric", "paper", "ours", "void", "reproduced"),
    [
        ("accuracy_mean", 90.0, (88.5,), 0, True),
        ("accuracy_mean", 90.0, (88.4,), 0, False),
        ("accuracy_mean", 90.0, (99.0,), 0, True),
        ("accuracy_mean", 90.0, (80.0, 97.0), 0, True),
        ("ari", 0.95, (0.9,), 0, True),
        ("ari", 0.95, (0.89,), 0, False),
        ("accuracy_mean", None, (99.0,), 0, None),
        ("accuracy_mean", 90.0, (), 0, None),
        ("inter_accuracy", 45.0, (), 2, False),
        ("inter_accuracy", 45.0, (50.0,), 1, False),
        ("bytes_up", 5.0, (4.0,), 0, None),
    ],
)
def test_counting_rule(
    metric: str, paper: float | None, ours: tuple[float, ...], void: int, reproduced: bool | None
) -> None:
    assert Figure("a", "b", metric, paper, ours, void).reproduced is reproduced


def test_comparison_is_over_seeds_in_the_papers_unit(tiny: Experiment) -> None:
    for seed, accuracy in ((0, 0.08), (4, 0.10)):
        cell = next(c for c in tiny.cells("full", [seed]))
        write_result(cell, result(cell, accuracy_mean=accuracy, ari=None))
    found = compare(tiny, "full")
    figure = found.figures[0]
    assert (figure.row, figure.setting, figure.paper) == ("Global", "R=0.5", 10.0)
    assert figure.ours == pytest.approx((8.0, 10.0)) and figure.mean == pytest.approx(9.0)
    assert figure.text == "9.00 ± 1.41 / 10 ✓"
    assert (found.reproduced, found.compared, found.seeds) == (1, 1, [0, 4])
    assert found.count == "1 of 1 figures reproduced, 2 seeds"
    assert compare(tiny, "laptop").results == ()
    other = list(tiny.cells("full", [0]))[1]
    write_result(other, result(other, accuracy_mean=0.5))
    assert compare(tiny, "full").count == "1 of 2 figures reproduced, 1 to 2 seeds"
