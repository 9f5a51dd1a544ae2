"""Groups of clients by their updates: distances, agglomerative clustering, CFL's bipartition.

Rows are clients in ascending order of their ids; groups are numbered by first appearance, so that the
numbers do not depend on the order in which clients answered.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Metric = Literal["l1", "l2", "cosine"]
Linkage = Literal["ward", "single", "complete", "average"]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """``[m, k]``: the cosine of every row of ``a`` with every row of ``b``; 0 where one of them is zero."""
    left, right = (x / x.norm(dim=1, keepdim=True).clamp(min=1e-300) for x in (a.double(), b.double()))
    found: Tensor = left @ right.T
    return found.clamp(-1.0, 1.0)


def distances(a: Tensor, b: Tensor, metric: Metric) -> Tensor:
    """``[m, k]`` between the rows; a row of zeros is at cosine distance 1 from every row."""
    if metric == "cosine":
        return 1.0 - cosine(a, b)
    name = {"l1": "cityblock", "l2": "euclidean"}[metric]
    from scipy.spatial.distance import cdist  # here, so that nodes start without SciPy

    return torch.from_numpy(cdist(a.double().numpy(), b.double().numpy(), name))


def agglomerate(
    points: Tensor, *, metric: Metric, linkage: Linkage, k: int | None = None, threshold: float | None = None
) -> Tensor:
    """Group numbers ``[m]`` of the rows: ``k`` groups, or merged until they are ``threshold`` apart."""
    if linkage != "ward":
        return merge(distances(points, points, metric), linkage=linkage, k=k, threshold=threshold)
    if len(points) < 2:
        return torch.zeros(len(points), dtype=torch.int64)
    # ward works on the rows themselves, not on their distances
    from sklearn.cluster import AgglomerativeClustering

    tree = AgglomerativeClustering(n_clusters=k, distance_threshold=threshold, metric="euclidean", linkage=linkage)
    return numbered(tree.fit_predict(_turned(points).numpy()))


def merge(apart: Tensor, *, linkage: Linkage, k: int | None = None, threshold: float | None = None) -> Tensor:
    """Group numbers ``[m]`` out of distances ``[m, m]``: ``k`` groups, or merged until they are ``threshold`` apart."""
    if len(apart) < 2:
        return torch.zeros(len(apart), dtype=torch.int64)
    from sklearn.cluster import AgglomerativeClustering

    tree = AgglomerativeClustering(n_clusters=k, distance_threshold=threshold, metric="precomputed", linkage=linkage)
    return numbered(tree.fit_predict(_apart(apart.double()).numpy()))


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> Tensor:
    """``[m]`` bool, False for the first row: the cut in two whose largest similarity across is the least.

    The largest similarity across any cut is at least the weakest edge of the maximum spanning tree, and
    removing that edge attains it. This is single linkage, and the CFL paper's bipartition. Complete linkage, which is
    often used in its place, is not optimal in this sense.
    """
    if len(similarity) < 2:
        raise ValueError(f"similarity={len(similarity)} rows should be at least 2")
    from sklearn.cluster import AgglomerativeClustering

    tree = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage=linkage)
    return numbered(tree.fit_predict(_apart(1.0 - similarity.double()).numpy())) == 1


def separation(similarity: Tensor, leaves: Tensor) -> float:
    """How much more alike a client is to the nearest of its own side than anybody is to the other side.

    A side counts with its median client, the worse side counts, and a client alone on its side is like
    nobody (0). Two real groups have friends on their own side; noise does not.
    """
    across = similarity[leaves][:, ~leaves].max()
    friends = []
    for side in (leaves, ~leaves):
        own = similarity[side][:, side].clone().fill_diagonal_(-torch.inf)
        friends.append(own.max(dim=1).values.median() if len(own) > 1 else torch.zeros_like(across))
    return float(torch.stack(friends).min() - across)


def _apart(d: Tensor) -> Tensor:
    """Distances as scikit-learn wants them: symmetric to the bit, none below zero."""
    return ((d + d.T) / 2).clamp(min=0.0).fill_diagonal_(0.0)


def _turned(points: Tensor) -> Tensor:
    """The rows in the coordinates of their own span: the same distances, far fewer columns."""
    x = points.double() - points.double().mean(dim=0)
    if x.shape[1] <= 2 * x.shape[0]:
        return x
    left, scale, _ = torch.linalg.svd(x, full_matrices=False)
    turned: Tensor = left * scale
    return turned


def numbered(labels: npt.NDArray[Any]) -> Tensor:
    """The same groups, numbered by first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse])
