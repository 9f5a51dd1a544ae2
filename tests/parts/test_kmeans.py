"""k-means: against brute force, and with robust centres among outliers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from clusterfl import keys
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.kmeans import _trimmed_means, kmeans, trimmed_kmeans


def test_kmeans_agrees_with_brute_force() -> None:
    """The rotation into the rows' own space changes no distance: the best of all partitions is found."""
    points = torch.cat([keys.normal(keys.key(j), 3, 40) * 0.3 + 2.0 * j for j in range(2)])
    found = kmeans(points, 2, keys.key(0))

    def inertia(labels: np.ndarray) -> float:
        x = points.double().numpy()
        return float(
            sum(((x[labels == c] - x[labels == c].mean(0)) ** 2).sum() for c in range(2) if (labels == c).any())
        )

    best = min(inertia(np.array([int(b) for b in f"{n:06b}"])) for n in range(1, 63))
    assert inertia(found.numpy()) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_trimmed_kmeans_ignores_outliers(seed: int) -> None:
    truth = torch.arange(24) % 4
    blobs = 10.0 * torch.eye(4, 30)[truth] + keys.normal(keys.key(seed), 24, 30)
    blobs[:2] = torch.tensor([[1e4], [-1e4]])  # two of cluster 0 and 1 lie
    labels, centers = trimmed_kmeans(blobs, 4, keys.key(seed), attackers=0.2)
    honest = labels[2:]
    assert len(honest.unique()) == 4
    assert all(len(honest[truth[2:] == k].unique()) == 1 for k in range(4))
    assert float(centers.abs().max()) < 20
    again = trimmed_kmeans(blobs, 4, keys.key(seed), attackers=0.2)
    assert torch.equal(again[0], labels) and torch.equal(again[1], centers)


def test_trimmed_kmeans_of_equal_points() -> None:
    labels, centers = trimmed_kmeans(torch.ones(6, 3), 2, keys.key(0))
    assert torch.equal(labels, torch.zeros(6, dtype=torch.int64)) and bool(torch.isfinite(centers).all())


@pytest.mark.parametrize("liars", [0.0, 100.0, 1e12])
@pytest.mark.parametrize("seed", range(5))
def test_trimmed_kmeans_finds_groups_below_the_noise_of_many_coordinates(seed: int, liars: float) -> None:
    """Two points of a group are hardly nearer than any other two: seeds by their distances alone miss groups."""
    truth = torch.arange(200) % 4
    groups = 0.3 * keys.normal(keys.fold_in(keys.key(seed), "groups"), 4, 1000)
    points = groups[truth] + keys.normal(keys.fold_in(keys.key(seed), "noise"), 200, 1000)
    points[::10] += liars * keys.normal(keys.fold_in(keys.key(seed), "liars"), 20, 1000)
    honest = torch.arange(200) % 10 > 0
    labels, _ = trimmed_kmeans(points, 4, keys.key(seed), attackers=0.2)
    assert adjusted_rand_score(truth[honest], labels[honest]) > 0.95


def test_trimmed_means_are_those_of_the_coordinates() -> None:
    """Distances to means come from the distances of the points alone."""
    points = keys.normal(keys.key(1), 30, 5)
    squares = squared_distances(points, points)
    scores = _trimmed_means(squares, squares[:, [3, 8, 21]], attackers=0.2)
    kept = scores.min(dim=1).values.argsort()[:24]  # the last means are of those that were near the means before
    means = torch.stack([points[[i for i in kept.tolist() if scores[i].argmin() == j]].mean(dim=0) for j in range(3)])
    torch.testing.assert_close(squared_distances(points, means), scores)
