"""Rules of aggregation that withstand lying clients, and k-means with robust centres.

A stack ``[m]`` of client models goes in, one model comes out. Robust rules count every client once: the
sizes that clients declare are not trusted. Tolerance is per cluster: a cluster of three withstands nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Fields
from clusterfl.keys import Key
from clusterfl.parts.aggregate import MeanBy, clusters_of, mean_all, mean_by
from clusterfl.parts.assign import nearest
from clusterfl.tree import Tree, concat, flat, row, rows, stack, take

log = logging.getLogger(__name__)

Rule = Literal["mean", "median", "trimmed", "krum", "multi-krum"]


def check_rule(rule: str, attackers: float) -> None:
    """Raises where a method's ``aggregate`` or ``attackers`` has no meaning."""
    if rule not in get_args(Rule):
        raise ValueError(f"aggregate={rule!r} should be one of {', '.join(get_args(Rule))}")
    if not 0.0 <= attackers < 0.5:
        raise ValueError(f"attackers={attackers} should be at least 0 and below 0.5")


def count(attackers: float, n: int) -> int:
    """The most liars among ``n`` clients if their share is at most ``attackers``."""
    return int(attackers * n + 1e-9)


# -- one model out of many ------------------------------------------------------------------------------


def median(models: Tree) -> Tree:
    """The median of every coordinate, halfway between the middle two where their number is even."""
    m = rows(models)
    return _by_coordinate(models, lambda ordered: (ordered[(m - 1) // 2] + ordered[m // 2]) / 2)


def trimmed_mean(models: Tree, cut: int) -> Tree:
    """The mean of every coordinate without its ``cut`` smallest and ``cut`` largest values (Yin et al., 2018)."""
    m = rows(models)
    if not 0 <= 2 * cut < m:
        raise ValueError(f"cut={cut} should be at least 0 and below half of the {m} clients")
    return _by_coordinate(models, lambda ordered: ordered[cut : m - cut].mean(dim=0))


def krum(models: Tree, f: int, keep: int = 1) -> Tree:
    """Krum (Blanchard et al., 2017): the model whose n - f - 2 nearest others are nearest to it.

    With ``keep`` above 1, Multi-Krum: the mean of the ``keep`` best. Ties go to the first client.
    """
    n = rows(models)
    if f < 0 or n < 2 * f + 3:
        raise ValueError(f"f={f} should be at least 0 with n >= 2f + 3 clients, and there are n={n}")
    if not 1 <= keep <= n - f:
        raise ValueError(f"keep={keep} should be at least 1 and at most n - f = {n - f}")
    points = flat(models).double()
    # not by the expansion of |a - b|^2, which cancels; a model that is not finite is far from everybody
    squares = torch.stack([(points - p).square().sum(dim=1) for p in points]).nan_to_num(nan=torch.inf)
    scores = squares.fill_diagonal_(torch.inf).sort(dim=1).values[:, : n - f - 2].sum(dim=1)
    best = scores.argsort(stable=True)[:keep]
    return mean_all(take(models, best.sort().values))


def _by_coordinate(models: Tree, f: Callable[[Tensor], Tensor]) -> Tree:
    """``f`` on the ordered values of floating tensors (NaN goes last); integer buffers are the last client's."""
    return {n: f(t.sort(dim=0).values) if t.is_floating_point() else t[-1] for n, t in models.items()}


# -- by cluster -----------------------------------------------------------------------------------------


def combine(models: Tree, rule: Rule, attackers: float) -> Tree:
    """One model by a robust rule, where at most the share ``attackers`` of the clients lies.

    Too few clients for Krum's n >= 2f + 3 get the coordinate median, which needs only n >= 2f + 1.
    """
    n = rows(models)
    f = count(attackers, n)
    if rule in ("krum", "multi-krum") and n >= 2 * f + 3:
        return krum(models, f, 1 if rule == "krum" else n - f - 2)
    if rule in ("krum", "multi-krum"):
        log.info("n=%d clients are too few for Krum with f=%d: their coordinate median is taken", n, f)
        return median(models)
    return median(models) if rule == "median" else trimmed_mean(models, f)


def aggregate_by(
    theta: Tree,
    s: Tensor,
    *,
    old: Tree,
    rule: Rule = "mean",
    attackers: float = 0.2,
    weights: Tensor | None = None,
) -> Tree:
    """The models with ``s = k`` made one by ``rule``, for every k; an empty cluster keeps ``old[k]``.

    ``weights`` are for the mean alone.
    """
    if rule == "mean":
        return mean_by(theta, s, old=old, weights=weights)
    found = []
    for k in range(rows(old)):
        members = (s == k).nonzero().flatten()
        found.append(combine(take(theta, members), rule, attackers) if len(members) else row(old, k))
    return stack(found)


class CombineBy:
    """As :class:`MeanBy` for a robust rule. It has to hold every model until the last has come."""

    def __init__(
        self, old: Tree, rule: Rule, attackers: float, *, field: str = "theta", by: str | Tensor | None = None
    ) -> None:
        self.old, self.rule, self.attackers, self.field, self.by = old, rule, attackers, field, by
        self.consumes: tuple[str, ...] = (field,)
        self.parts: list[Tree] = []
        self.labels: list[Tensor] = []

    def add(self, ids: Tensor, fields: Fields) -> None:
        theta = fields[self.field]
        assert isinstance(theta, dict)
        self.parts.append(theta)
        self.labels.append(clusters_of(self.by, ids, fields))

    def result(self) -> Tree:
        """The new centres."""
        if not self.parts:
            return self.old
        s = torch.cat(self.labels)
        return aggregate_by(concat(self.parts), s, old=self.old, rule=self.rule, attackers=self.attackers)


def combiner(
    rule: Rule, attackers: float, old: Tree, *, by: str | Tensor | None = None, weights: str | None = None
) -> MeanBy | CombineBy:
    """What replies go into: the streaming mean, or all of them for a robust rule."""
    return MeanBy(old, by=by, weights=weights) if rule == "mean" else CombineBy(old, rule, attackers, by=by)


# -- clustering -----------------------------------------------------------------------------------------


def trimmed_kmeans(
    points: Tensor, k: int, key: Key, *, attackers: float = 0.2, seedings: int = 100, iterations: int = 50
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm with robust centres: labels ``[m]`` and centres ``[k, P]``.

    The share ``attackers`` of the points that is farthest from all centres moves none of them, and of the
    others the same share of every coordinate is cut from each end. The start is the best of many k-means++
    seedings, by the distances of the points that are kept: a seed on an outlier does not pay.
    """
    squares = nearest(points, points)
    kept = len(points) - count(attackers, len(points))
    best, least = torch.arange(k), torch.inf
    for draws in keys.uniform(key, seedings, k).double():
        seeds = _plus_plus(squares, kept, draws)
        cost = float(squares[:, seeds].min(dim=1).values.sort().values[:kept].sum())
        if cost < least:
            best, least = seeds, cost
    centers, scores = points[best], squares[:, best]
    labels = scores.argmin(dim=1)
    for _ in range(iterations):
        near = scores.min(dim=1).values.argsort(stable=True)[:kept].sort().values
        members = [near[labels[near] == j] for j in range(k)]
        centers = torch.stack([_center(points[at], centers[j], attackers) for j, at in enumerate(members)])
        scores = nearest(points, centers)
        before, labels = labels, scores.argmin(dim=1)
        if torch.equal(before, labels):
            break
    return labels, centers


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
    return trimmed_mean({"": members}, count(attackers, len(members)))[""]
