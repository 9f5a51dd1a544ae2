"""Thousands of models grouped by sketches and a sample: as the exact clusterings do, where groups are clear."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from clusterfl import keys
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.hierarchy import Linkage, Metric, agglomerate, cosine, distances
from clusterfl.parts.kmeans import kmeans, sketched_trimmed_kmeans, trimmed_kmeans
from clusterfl.parts.sketch import Moves, group, sample_of
from clusterfl.tree import Tree, flat, repeat, subtract, take

TRUTH = torch.arange(1500) % 3


def models(truth: Tensor = TRUTH, apart: float = 0.5, seed: int = 0) -> tuple[Tree, Tree]:
    """One start, and models that moved from it in their group's direction, each with noise of its own."""
    key = keys.key(seed)
    start = {"a": keys.normal(keys.fold_in(key, "a"), 20, 30), "b": keys.normal(keys.fold_in(key, "b"), 40)}
    moved: Tree = {}
    for n, t in start.items():
        groups = apart * keys.normal(keys.fold_in(key, n, "groups"), int(truth.max()) + 1, *t.shape)
        moved[n] = t + groups[truth] + keys.normal(keys.fold_in(key, n, "noise"), len(truth), *t.shape)
    return moved, start


def moves(truth: Tensor = TRUTH, **kind: float) -> Moves:
    theta, start = models(truth, **kind)  # type: ignore[arg-type]
    return Moves.of(theta, start, ("a", "b"))


def test_blocks_are_the_rows_of_the_whole_matrix_to_the_bit() -> None:
    theta, start = models(TRUTH[:300])
    held = Moves.of(theta, start, ("a", "b"))
    whole = flat(subtract(theta, repeat(start, 300)))
    assert torch.equal(held.matrix(), whole) and torch.equal(torch.cat([x for _, x in held.blocks()]), whole)
    assert torch.equal(held.norms(), whole.norm(dim=1)) and torch.equal(held.mean(), whole.mean(dim=0))
    some = torch.tensor([7, 3, 299])
    part = held.only(some).only(torch.tensor([2, 0]))
    assert torch.equal(held.matrix(some), whole[some]) and torch.equal(part.matrix(), whole[[299, 7]])
    means = held.means(TRUTH[:300], 4)
    expected = torch.stack([whole[TRUTH[:300] == j].mean(dim=0) for j in range(3)])
    torch.testing.assert_close(means[:3], expected, rtol=0, atol=1e-5)
    assert not means[3].any()


def test_models_may_begin_from_different_centres() -> None:
    theta, start = models(TRUTH[:40])
    centers = take(repeat(start, 2), torch.arange(2))
    centers["a"][1] += 1.0
    began = torch.arange(40) % 2
    held = Moves(theta, centers, began, ("a", "b"))
    assert torch.equal(held.matrix(), flat(subtract(theta, take(centers, began))))


def test_a_sketch_keeps_distances_and_cosines() -> None:
    held = moves(TRUTH[:200])
    whole, sketch = held.matrix(), held.sketch(keys.key(3))
    # 200 models span a space of 200 axes: nothing is lost
    torch.testing.assert_close(squared_distances(sketch, sketch), squared_distances(whole, whole), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(cosine(sketch, sketch), cosine(whole, whole), rtol=0, atol=1e-4)
    some = held.sketch(keys.key(3), absolute=True)
    torch.testing.assert_close(some, whole)  # all coordinates, where there are so few


@pytest.mark.parametrize(
    ("metric", "linkage"), [("l2", "ward"), ("l2", "complete"), ("cosine", "average"), ("l1", "average")]
)
def test_agglomeration_of_a_sample_agrees_with_that_of_everybody(metric: Metric, linkage: Linkage) -> None:
    held, cut = moves(), partial(agglomerate, metric=metric, linkage=linkage, k=3)
    found = group(held, cut, partial(distances, metric=metric), keys.key(1), k=3, absolute=metric == "l1")
    assert adjusted_rand_score(cut(held.matrix()[:600]), found[:600]) == 1.0
    assert adjusted_rand_score(TRUTH, found) == 1.0


def test_kmeans_of_a_sample_agrees_with_that_of_everybody_where_groups_overlap() -> None:
    held = moves(apart=0.1)
    seed = keys.key(2)
    found = group(held, lambda points: kmeans(points, 3, seed, 5), squared_distances, seed, k=3)
    exact = kmeans(held.matrix(), 3, seed, 5)
    assert 0.3 < adjusted_rand_score(TRUTH, exact) < 1.0  # it is not an easy case
    assert adjusted_rand_score(exact, found) > 0.75


def test_trimmed_kmeans_of_sketches_withstands_the_same_liars() -> None:
    theta, start = models()
    liars = torch.arange(0, 1500, 10)
    theta["a"][liars] += 100.0 * keys.normal(keys.key(9), len(liars), 20, 30)
    held = Moves.of(theta, start, ("a", "b"))
    honest = torch.ones(1500, dtype=torch.bool)
    honest[liars] = False
    s, centers = sketched_trimmed_kmeans(held, 3, keys.key(4), attackers=0.2)
    exact, expected = trimmed_kmeans(held.matrix(), 3, keys.key(4), attackers=0.2)
    assert adjusted_rand_score(exact[honest], s[honest]) == 1.0 == adjusted_rand_score(TRUTH[honest], s[honest])
    order = [int(s[exact == j].mode().values) for j in range(3)]
    torch.testing.assert_close(centers[order], expected, rtol=0, atol=0.1)  # means of 400


def test_a_sample_is_large_enough_for_its_groups() -> None:
    assert len(sample_of(500, 4, keys.key(0))) == 500 and len(sample_of(5000, 4, keys.key(0))) == 1000
    assert len(sample_of(5000, 200, keys.key(0))) == 2000


def test_means_of_groups_that_lost_everybody_stay() -> None:
    held = replace(moves(TRUTH[:30]))
    old = torch.ones(2, held.width)
    assert torch.equal(held.means(torch.zeros(30, dtype=torch.int64), 2, old=old)[1], old[1])
