"""Clustering of updates, against brute force and against SciPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as scipy_linkage
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from clusterfl import keys
from clusterfl.parts.hierarchy import agglomerate, bipartition, cosine, distances, separation


def across(similarity: Tensor, leaves: Tensor) -> float:
    return float(similarity[leaves][:, ~leaves].max())


def best_cut(similarity: Tensor) -> float:
    """The least largest similarity across any cut in two, by trying them all."""
    cuts = (torch.tensor([False, *cut]) for cut in product([False, True], repeat=len(similarity) - 1) if any(cut))
    return min(across(similarity, cut) for cut in cuts)


def updates(seed: int, m: int, p: int = 4) -> Tensor:
    return keys.normal(keys.key(seed), m, p)


@given(seed=st.integers(0, 10_000), m=st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_the_bipartition_is_the_best_of_all(seed: int, m: int) -> None:
    similarity = cosine(updates(seed, m), updates(seed, m))
    leaves = bipartition(similarity)
    assert leaves.any() and not leaves.all() and not leaves[0]
    assert across(similarity, leaves) == pytest.approx(best_cut(similarity), abs=1e-12)


def test_complete_linkage_is_not_the_optimum() -> None:
    """What implementations run in place of Algorithm 1 cuts worse for some clients."""
    worse = 0
    for seed in range(30):
        similarity = cosine(updates(seed, 7), updates(seed, 7))
        gap = across(similarity, bipartition(similarity, "complete")) - best_cut(similarity)
        assert gap >= -1e-12
        worse += gap > 1e-6
    assert worse > 0


@pytest.mark.parametrize("rows", [torch.zeros(5, 3), torch.ones(5, 3), torch.eye(5)])
def test_a_bipartition_without_any_difference_is_still_one(rows: Tensor) -> None:
    similarity = cosine(rows, rows)
    assert similarity.isfinite().all()
    for linkage in ("single", "complete"):
        leaves = bipartition(similarity, linkage)
        assert leaves.any() and not leaves.all()
    assert separation(similarity, bipartition(similarity)) <= 0


def test_one_client_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        bipartition(torch.ones(1, 1))


def test_cosine_of_nothing_is_zero() -> None:
    found = cosine(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [-6.0, -8.0]]))
    assert torch.equal(found[0], torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(found[1], torch.tensor([1.0, -1.0], dtype=torch.float64))


def test_separation_by_hand() -> None:
    similarity = torch.tensor(
        [
            [1.0, 0.9, 0.1, 0.2],
            [0.9, 1.0, 0.0, 0.3],
            [0.1, 0.0, 1.0, 0.7],
            [0.2, 0.3, 0.7, 1.0],
        ]
    )
    pairs = torch.tensor([False, False, True, True])
    assert separation(similarity, pairs) == pytest.approx(0.7 - 0.3)
    alone = torch.tensor([False, False, False, True])  # 3 has no friend on its side
    assert separation(similarity, alone) == pytest.approx(0.0 - 0.7)


def test_noise_is_not_separated_and_groups_are() -> None:
    noise = updates(3, 8, 200)
    groups = torch.cat([torch.ones(4, 200), -torch.ones(4, 200)]) + noise
    for rows, clear in ((noise, False), (groups, True)):
        similarity = cosine(rows, rows)
        assert (separation(similarity, bipartition(similarity)) > 0.3) is clear


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
def test_agglomerate_agrees_with_scipy(metric: str, linkage: str) -> None:
    if linkage == "ward" and metric != "l2":
        return
    rows = updates(11, 14, 60)
    name = {"l1": "cityblock", "l2": "euclidean", "cosine": "cosine"}[metric]
    tree = scipy_linkage(rows.double().numpy(), linkage, name)
    for k in (1, 2, 5):
        ours = agglomerate(rows, metric=metric, linkage=linkage, k=k)
        assert adjusted_rand_score(fcluster(tree, k, "maxclust"), ours) == 1.0
    height = float(np.median(tree[:, 2])) * 1.0001
    ours = agglomerate(rows, metric=metric, linkage=linkage, threshold=height)
    assert adjusted_rand_score(fcluster(tree, height, "distance"), ours) == 1.0


def test_groups_are_numbered_by_first_appearance() -> None:
    rows = torch.tensor([[9.0], [0.0], [9.1], [0.1], [5.0]])
    assert agglomerate(rows, metric="l2", linkage="average", k=3).tolist() == [0, 1, 0, 1, 2]
    assert agglomerate(rows[:1], metric="l2", linkage="average", k=1).tolist() == [0]


def test_zero_updates_have_cosine_distances() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1], [0.0, 0.0]])
    assert distances(rows, rows, "cosine").isfinite().all()
    assert agglomerate(rows, metric="cosine", linkage="average", k=3).tolist() == [0, 1, 1, 2]
