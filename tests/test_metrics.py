"""Metrics against scikit-learn and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from clusterfl.metrics import (
    Figures,
    bottom_rounds,
    bytes_to_reach,
    clustering,
    intra_inter,
    matched_accuracy,
    top_rounds,
)
from clusterfl.scores import RMSE

labels = st.lists(st.integers(0, 3), min_size=2, max_size=12)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=14))
@settings(max_examples=150, deadline=None)
def test_clustering(pairs: list[tuple[int, int]]) -> None:
    a, t = np.array(pairs).T
    got = clustering(torch.tensor(a), torch.tensor(t))
    assert got.ari == pytest.approx(adjusted_rand_score(t, a))
    assert got.nmi == pytest.approx(normalized_mutual_info_score(t, a))
    best = max(
        np.mean([dict(enumerate(names))[x] == y for x, y in zip(a, t, strict=True)])
        for names in itertools.permutations(range(4))
    )
    assert matched_accuracy(a, t) == got.matched == pytest.approx(best)


def test_ari_by_hand() -> None:
    """The pair-counting definition, on a case small enough to count."""
    a, t = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]
    pairs = list(itertools.combinations(range(6), 2))
    both = sum(a[i] == a[j] and t[i] == t[j] for i, j in pairs)
    ones, twos = sum(a[i] == a[j] for i, j in pairs), sum(t[i] == t[j] for i, j in pairs)
    expected = ones * twos / len(pairs)
    ari = (both - expected) / ((ones + twos) / 2 - expected)
    assert clustering(torch.tensor(a), torch.tensor(t)).ari == pytest.approx(ari)


def test_names_of_clusters_do_not_matter() -> None:
    truth = torch.tensor([0, 0, 1, 1, 2, 2])
    for names in itertools.permutations([5, 1, 9]):
        got = clustering(torch.tensor(names)[truth], truth)
        assert got.ari == got.nmi == got.matched == 1.0
    split = clustering(torch.tensor([0, 1, 2, 3, 4, 5]), truth)
    assert split.ari == 0.0 and split.matched == 0.5


def test_accuracy() -> None:
    per = torch.tensor([0.5, 1.0, torch.nan, 0.0, 0.25, 0.75, 0.5])
    sizes = torch.tensor([10, 20, 5, 30, 0, 10, 10])
    got = Figures.of(per, sizes)
    known = np.array([0.5, 1.0, 0.0, 0.25, 0.75, 0.5])
    assert got.mean == pytest.approx(known.mean())
    assert got.weighted == pytest.approx((5 + 20 + 0 + 0 + 7.5 + 5) / 80)
    assert got.std == pytest.approx(known.std())
    assert got.bottom5 == pytest.approx(np.sort(known)[:5].mean())
    assert math.isnan(Figures.of(torch.full((3,), torch.nan), torch.ones(3)).mean)


def test_where_lower_is_better() -> None:
    per, sizes = torch.arange(7.0), torch.ones(7)
    assert Figures.of(per, sizes, RMSE).bottom5 == 4.0 and Figures.of(per, sizes).bottom5 == 2.0
    assert top_rounds([3.0, 1.0, 2.0], 2, RMSE) == 1.5 and top_rounds([3.0, 1.0, 2.0], 2) == 2.5
    assert bytes_to_reach(0.5, [0.9, float("nan"), 0.4, 0.3], [0, 10, 20, 30], RMSE) == 20
    assert bytes_to_reach(0.1, [0.9, 0.4], [0, 10], RMSE) is None


def test_top_rounds() -> None:
    assert top_rounds([0.1, 0.9, float("nan"), 0.5, 0.6, 0.7, 0.8]) == pytest.approx(0.7)
    assert top_rounds([0.2, 0.4]) == pytest.approx(0.3)
    assert math.isnan(top_rounds([]))


@given(labels, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_intra_inter(assign: list[int], seed: int) -> None:
    cross = torch.rand(len(assign), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    alive = sorted(set(assign))
    home: list[float] = []
    abroad: list[float] = []
    for j in alive:
        members = [i for i, a in enumerate(assign) if a == j]
        for k in alive:
            mean = float(np.mean([float(cross[i, k]) for i in members]))
            (home if j == k else abroad).append(mean)
    intra, inter = intra_inter(cross, torch.tensor(assign))
    assert intra == pytest.approx(np.mean(home))
    assert inter is None if len(alive) == 1 else inter == pytest.approx(np.mean(abroad))


def test_bytes_to_reach() -> None:
    accuracy, spent = [0.1, 0.85, float("nan"), 0.9, 0.8, 0.95], [0, 10, 20, 30, 40, 50]
    assert bytes_to_reach(0.9, accuracy, spent) == 30
    assert bytes_to_reach(0.1, accuracy, spent) == 0
    assert bytes_to_reach(0.91, accuracy, spent) == 50
    assert bytes_to_reach(0.96, accuracy, spent) is None and bytes_to_reach(0.5, [], []) is None


def test_the_bottom_of_the_best_rounds_is_rank_by_rank() -> None:
    per_round = [torch.tensor([0.5, 0.1, 0.9]), torch.tensor([0.2, 0.3, float("nan")])]
    # ranks: (0.1, 0.5) and (0.2, 0.3); the best single round of each: 0.2 and 0.5
    assert bottom_rounds(per_round, worst=2, best=1) == pytest.approx((0.2 + 0.5) / 2)
    assert bottom_rounds(per_round, worst=2, best=2) == pytest.approx(((0.1 + 0.2) + (0.5 + 0.3)) / 4)
    assert math.isnan(bottom_rounds([]))
