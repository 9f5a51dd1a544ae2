"""Intervals, tests and ranks against numbers worked out by hand or by SciPy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from clusterfl.report.trees import joined
from clusterfl.runs.statistics import Interval, holm, ranks, standing


def test_an_interval_is_students() -> None:
    over = Interval.of([1.0, 2.0, 3.0])
    assert over.mean == 2.0 and over.half == pytest.approx(4.302652 * 1.0 / math.sqrt(3), rel=1e-6)
    assert math.isnan(Interval.of([1.0]).half) and Interval.of([math.nan]).values == ()


def test_holm() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_the_best_and_those_that_cannot_be_told_from_it() -> None:
    values = {
        "good": {0: 0.90, 1: 0.92, 2: 0.91, 3: 0.93},
        "near": {0: 0.91, 1: 0.90, 2: 0.92, 3: 0.91},
        "bad": {0: 0.50, 1: 0.53, 2: 0.52, 3: 0.52},
        "once": {0: 0.2},
        "same gap": {0: 0.80, 1: 0.82, 2: 0.81, 3: 0.83},
    }
    found = standing(values, higher=True)
    raw = {n: stats.ttest_rel(list(values["good"].values()), list(values[n].values())).pvalue for n in ("near", "bad")}
    assert found.best == "good" and found.p["near"] == pytest.approx(raw["near"])
    assert found.p["bad"] == pytest.approx(2 * raw["bad"])
    assert found.p["once"] is None and found.p["same gap"] is None
    assert found.tied("near") and not any(found.tied(n) for n in ("good", "bad", "once", "same gap"))
    assert standing(values, higher=False).best == "once"


def test_ranks_and_the_critical_distance() -> None:
    table = {"a": [0.9, 0.8, 0.9, 0.7], "b": [0.5, 0.9, 0.5, 0.5], "c": [0.1, 0.1, 0.5, 0.1], "d": [0.0, 0.0, 0.0, 0.0]}
    found = ranks(table, higher=True)
    assert found is not None and found.blocks == 4
    assert found.mean == {"a": 1.25, "b": 1.875, "c": 2.875, "d": 4.0}
    assert found.distance == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 4)), abs=1e-3)  # Demšar, 2006, table 5
    assert found.p == pytest.approx(stats.friedmanchisquare(*table.values()).pvalue)
    assert ranks({"a": [1.0]}, higher=True) is None and ranks({"a": [1.0], "b": [2.0]}, higher=True) is None


def test_ties_in_a_row_are_joined_once() -> None:
    assert joined([1.0, 1.5, 2.2, 4.0], 1.0) == [(0, 1), (1, 2)]
    assert joined([1.0, 1.5, 1.9], 1.0) == [(0, 2)]
    assert joined([1.0, 3.0], 1.0) == []
