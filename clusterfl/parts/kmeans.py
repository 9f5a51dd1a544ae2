"""k-means over the rows of a matrix: plain, with many restarts, and with robust centres."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.keys import Key
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.robust import liars, trimmed_mean
from clusterfl.parts.sketch import Moves, sample_of

log = logging.getLogger(__name__)

MANY = 4_000_000  # numbers, from which single precision has to do
STEPS = 50  # turns of trimmed k-means, if nobody stops moving before


def kmeans(points: Tensor, k: int, key: Key, restarts: int = 20) -> Tensor:
    """k-means labels of the rows; the restart with the least inertia wins.

    Many more columns than rows are first rotated into the rows' own space (distances are unchanged).
    """
    if k == 1:
        return torch.zeros(len(points), dtype=torch.int64)
    from sklearn.cluster import KMeans  # here, so that worker processes start without scikit-learn
    from sklearn.exceptions import ConvergenceWarning

    wide, many = points.shape[1] > 2 * len(points), points.numel() > MANY
    # thousands of clients: single precision, and no copies that nobody needs
    x = points.to(torch.float32 if many and not wide else torch.float64, copy=True).numpy()
    del points
    x -= x.mean(axis=0)
    if wide:
        left, scale, _ = np.linalg.svd(x, full_matrices=False)
        x = left * scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(k, n_init=restarts, random_state=keys.seed32(key), copy_x=False).fit_predict(x)
    if len(np.unique(found)) < k:
        log.warning("k=%d: so few clients differ that only %d clusters have any", k, len(np.unique(found)))
    return torch.as_tensor(found, dtype=torch.int64)


def trimmed_kmeans(
    points: Tensor, k: int, key: Key, *, attackers: float = 0.2, seedings: int = 50, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm with robust centres: labels ``[m]`` and centres ``[k, P]``.

    The share ``attackers`` of the points that is farthest from all centres moves none of them, and of the
    others the same share of every coordinate is cut from each end. The start is the best end of many k-means++
    seedings (:func:`_best_start`), or it is given.
    """
    if start is None:
        squares = squared_distances(points, points, origin=points.median(dim=0).values)  # liars pull the mean away
        seeds, scores = _best_start(squares, k, key, attackers, seedings)
        centers = points[seeds]
    else:
        centers, scores = start, squared_distances(points, start)
    labels = scores.argmin(dim=1)
    for _ in range(STEPS):
        near = untrimmed(scores, attackers)
        members = [near[labels[near] == j] for j in range(k)]
        centers = torch.stack([_center(points[at], centers[j], attackers) for j, at in enumerate(members)])
        scores = squared_distances(points, centers)
        before, labels = labels, scores.argmin(dim=1)
        if torch.equal(before, labels):
            break
    return labels, centers


def sketched_trimmed_kmeans(moves: Moves, k: int, key: Key, *, attackers: float) -> tuple[Tensor, Tensor]:
    """As :func:`trimmed_kmeans`, for thousands of models: it begins with a sample's sketches and goes on with
    everybody's; the centres are then made once, in all coordinates, and everybody goes to the nearest."""
    points = moves.sketch(keys.fold_in(key, "sketch"))
    sample = sample_of(len(moves), k, key)
    _, first = trimmed_kmeans(points[sample], k, key, attackers=attackers)
    labels, last = trimmed_kmeans(points, k, key, attackers=attackers, start=first)
    near = untrimmed(squared_distances(points, last), attackers)
    zero = torch.zeros(moves.width)
    centers = torch.stack([_center(moves.only(near[labels[near] == j]).matrix(), zero, attackers) for j in range(k)])
    return moves.assign(centers, squared_distances)[0], centers


def untrimmed(scores: Tensor, attackers: float) -> Tensor:
    """The points that are kept, in ascending order: all but the share that is farthest from all centres."""
    kept = len(scores) - liars(attackers, len(scores))
    return scores.min(dim=1).values.argsort(stable=True)[:kept].sort().values


def _best_start(squares: Tensor, k: int, key: Key, attackers: float, seedings: int) -> tuple[Tensor, Tensor]:
    """Seeds ``[k]`` and squared distances ``[m, k]`` to the means that plain trimmed k-means reaches from them.

    Of many seedings that wins whose kept points are nearest to their means in the end: where the noise of many
    coordinates is larger than the distances of groups, seeds that miss one look no worse than others. Half of them are
    drawn, and first compared, along the k axes in which the points differ most, where there is less of that noise;
    the others by all coordinates, for liars may own those axes.
    """
    kept = len(squares) - liars(attackers, len(squares))
    flattened = _along_axes(squares, k, kept)
    best, least = (torch.arange(k), squares[:, :k]), torch.inf
    for draws in keys.uniform(key, seedings, k).double():
        for away in (flattened, squares):
            seeds = _plus_plus(away, kept, draws)
            scores = _trimmed_means(squares, away[:, seeds], attackers)
            cost = float(scores.min(dim=1).values.sort().values[:kept].sum())
            if cost < least:
                best, least = (seeds, scores), cost
    return best


def _along_axes(squares: Tensor, k: int, kept: int) -> Tensor:
    """Squared distances ``[m, m]`` along the points' k principal axes (classical scaling).

    The origin is the mean of the ``kept`` most central points, and for the axes none counts for more than the median
    one: liars may be anywhere.
    """
    central = squares.median(dim=1).values.argsort(stable=True)[:kept]
    away = squares[:, central].mean(dim=1)
    gram = 0.5 * (away + away.unsqueeze(1) - squares - away[central].mean())
    norms = gram.diagonal().clamp(min=0.0).sqrt()
    scale = (norms.median() / norms.clamp(min=1e-300)).clamp(max=1.0)
    values, vectors = torch.linalg.eigh(scale.unsqueeze(1) * gram * scale)
    clear = values > 1e-10 * values[-1].clamp(min=1e-300)
    axes = (vectors / values.clamp(min=1e-300).sqrt())[:, clear][:, -k:]
    along = gram @ (scale.unsqueeze(1) * axes)
    return squared_distances(along, along)


def _trimmed_means(squares: Tensor, scores: Tensor, attackers: float) -> Tensor:
    """Lloyd's algorithm with means of the points that are kept, by the points' distances alone: ``[m, k]``, squared
    distances to the last means, as |x - mean|^2 = mean_i |x - x_i|^2 - mean_ij |x_i - x_j|^2 / 2."""
    labels = scores.argmin(dim=1)
    for _ in range(STEPS):
        near = untrimmed(scores, attackers)
        belongs = torch.zeros_like(scores)
        belongs[near, labels[near]] = 1.0
        counts = belongs.sum(dim=0)
        share = belongs / counts.clamp(min=1.0)
        away = squares @ share
        scores = torch.where(counts > 0, (away - 0.5 * (share * away).sum(dim=0)).clamp(min=0.0), scores)
        before, labels = labels, scores.argmin(dim=1)
        if torch.equal(before, labels):
            break
    return scores


def _plus_plus(squares: Tensor, kept: int, draws: Tensor) -> Tensor:
    """k-means++ among the points themselves: the next seed is drawn by its squared distance to the nearest.

    No distance counts for more than the ``kept``-th, or outliers would always be drawn.
    """
    last = len(squares) - 1
    seeds = [min(int(draws[0] * len(squares)), last)]
    far = squares[:, seeds[0]]
    for draw in draws[1:]:
        mass = far.clamp(max=float(far.kthvalue(kept).values)).cumsum(dim=0)
        seeds.append(min(int(torch.searchsorted(mass, draw * mass[-1], right=True)), last))
        far = torch.minimum(far, squares[:, seeds[-1]])
    return torch.tensor(seeds)


def _center(members: Tensor, old: Tensor, attackers: float) -> Tensor:
    if not len(members):
        return old
    return trimmed_mean({"": members}, liars(attackers, len(members)))[""]
