"""Groups of clients by their updates: cosines, agglomerative clustering, CFL's bipartition.

Rows are clients in ascending order of their ids; labels are numbered by first appearance, so that they do
not depend on the order in which clients answered.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

Metric = Literal["l1", "l2", "cosine"]
Linkage = Literal["ward", "single", "complete", "average"]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """``[m, k]``: the cosine of every row of ``a`` with every row of ``b``; 0 where one of them is zero."""
    left, right = (x / x.norm(dim=1, keepdim=True).clamp(min=1e-300) for x in (a.double(), b.double()))
    return (left @ right.T).clamp(-1.0, 1.0)


def distances(points: Tensor, metric: Metric) -> Tensor:
    """``[m, m]`` between the rows; a row of zeros is at cosine distance 1 from every other."""
    if metric == "cosine":
        d = 1.0 - cosine(points, points)
        return d.fill_diagonal_(0.0)
    found = pdist(points.double().numpy(), {"l1": "cityblock", "l2": "euclidean"}[metric])
    return torch.from_numpy(squareform(found, checks=False))


def agglomerate(
    points: Tensor, *, metric: Metric, linkage: Linkage, k: int | None = None, threshold: float | None = None
) -> Tensor:
    """Labels ``[m]`` of the rows: ``k`` groups, or as many as are ``threshold`` or more apart."""
    if len(points) < 2:
        return torch.zeros(len(points), dtype=torch.int64)
    tree = AgglomerativeClustering(
        n_clusters=k,
        distance_threshold=threshold,
        metric="euclidean" if linkage == "ward" else "precomputed",
        linkage=linkage,
    )
    # Ward works on the rows themselves
    found = tree.fit_predict((_turned(points) if linkage == "ward" else distances(points, metric)).numpy())
    return _by_appearance(found)


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> Tensor:
    """``[m]`` bool, first row False: two non-empty groups with the least possible largest similarity across.

    The largest similarity across a cut is an edge of the maximum spanning tree, so the best cut removes the
    tree's weakest edge: that is single linkage on ``-similarity``, and CFL's Algorithm 1. Complete linkage
    (what the authors run) is not optimal in this sense, but is less drawn to cutting off a lone client.
    """
    m = len(similarity)
    if m < 2:
        raise ValueError(f"similarity={m} rows should be at least 2")
    apart = (1.0 - similarity.double()).clamp(min=0.0).fill_diagonal_(0.0)
    tree = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage=linkage)
    return _by_appearance(tree.fit_predict(apart.numpy())) == 1


def _turned(points: Tensor) -> Tensor:
    """The rows in the coordinates of their own span: the same distances, far fewer columns."""
    x = points.double() - points.double().mean(dim=0)
    if x.shape[1] <= 2 * x.shape[0]:
        return x
    left, scale, _ = torch.linalg.svd(x, full_matrices=False)
    return left * scale


def _by_appearance(labels: np.ndarray) -> Tensor:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return torch.from_numpy(rank[inverse])
