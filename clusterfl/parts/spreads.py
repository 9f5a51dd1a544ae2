"""How far apart groups and clients lie, measured from the clients' class means."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clusterfl.parts.evidence import Spread, Summaries, others, pooled

FLOOR = 0.02  # the least tau²: groups nearer than a seventh of a class's own spread are not worth a model
CLEAR = 1.5  # times the most that noise alone spreads clients in one direction


@dataclass(frozen=True)
class Own:
    """The spread of class means between clients of one group that is each class's own, beside noise."""

    values: Tensor  # [d]: variances
    vectors: Tensor  # [d, d]: along these directions
    typical: float  # samples of a class

    @staticmethod
    def none(d: int) -> Own:
        return Own(torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64), 1.0)

    @property
    def size(self) -> float:
        return float(self.values.mean())

    def soften(self, s: Summaries) -> Summaries:
        """Whitened anew, by noise and own spread together; weights are what both leave, on average over dimensions."""
        if not self.size:
            return s
        grown = 1.0 + self.typical * self.values
        per_sample = ((1.0 + s.weights.unsqueeze(-1) * self.values) / grown).mean(dim=-1)
        return replace(s, weights=s.weights / per_sample, means=s.means @ (self.vectors / grown.sqrt()))


@dataclass(frozen=True)
class Groups:
    """Groups, and what they were found with."""

    labels: Tensor  # [N]
    spread: Spread
    basis: Tensor  # [r, r]: means are compared along these directions, those of the client effect
    own: Own
    among: Tensor | None = None  # [d, r]: the only directions in which groups differ; None: they may in all

    @property
    def within(self) -> float:
        """The variance between members of one group beside noise, in the units of tau²."""
        own = self.own.values / (1.0 + self.own.typical * self.own.values)
        return float(own.mean() + self.spread.omega.mean())

    def turned(self, s: Summaries) -> Summaries:
        """Summaries as they are compared."""
        soft = self.own.soften(along(s, self.among))
        return replace(soft, means=soft.means @ self.basis)


def along(s: Summaries, directions: Tensor | None) -> Summaries:
    return s if directions is None else replace(s, means=s.means @ directions)


def measured(
    s: Summaries, labels: Tensor, *, effect: bool = True, own: bool = True, among: Tensor | None = None
) -> Groups:
    """These groups, and how far apart groups and clients lie if the groups are right."""
    s = along(s, among)
    d = s.means.shape[-1]
    found = own_spread(s, labels) if own else Own.none(d)
    soft = found.soften(s)
    values, basis = torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)
    if effect:
        values, basis = variances(client_effect(soft, labels), len(s))
    return Groups(labels, Spread(between_groups(soft, float(values.mean())), values), basis, found, among)


def clear_directions(s: Summaries) -> Tensor | None:
    """``[d, r]``: the few directions in which clients lie further apart than noise would put them; None: no such, or
    more than half of all.

    Each class mean's difference from that of all other clients, in units of its noise, has variance 1 in every
    direction by chance, and the largest variance found among n of them is about ``(1 + sqrt(d / n))²`` (Marchenko and
    Pastur).
    """
    rest = others(s, torch.zeros(len(s), dtype=torch.int64), pooled(s, torch.zeros(len(s), dtype=torch.int64), 1))
    use = (s.weights > 0) & (rest.weights > 0)
    noise = 1.0 / s.weights.clamp(min=1e-12) + 1.0 / rest.weights.clamp(min=1e-12)
    left = torch.where(use.unsqueeze(-1), (s.means - rest.means) / noise.sqrt().unsqueeze(-1), 0.0)
    n, d = int(use.sum()), s.means.shape[-1]
    values, vectors = torch.linalg.eigh(torch.einsum("ncd,nce->de", left, left) / max(n, 1))
    clear = values > CLEAR * (1.0 + math.sqrt(d / max(n, 1))) ** 2
    return vectors[:, clear] if 0 < int(clear.sum()) <= d // 2 else None


def client_effect(s: Summaries, labels: Tensor) -> Tensor:
    """``[d, d]``: the covariance of what a client's classes have in common, apart from its group's means.

    Residuals of two different classes of one client share the client effect and no noise.
    """
    k, d = int(labels.max()) + 1, s.means.shape[-1]
    groups = pooled(s, labels, k)
    held = s.weights > 0
    others = (groups.weights[labels] - s.weights) / groups.weights[labels].clamp(min=1e-12)
    use = held & (others > 1e-6)
    left = torch.where(use.unsqueeze(-1), s.means - groups.means[labels], 0.0)  # a client's own part is in the mean
    p = torch.where(use, s.weights / (1.0 + s.weights), 0.0)  # classes of a few samples are mostly noise
    y = left * p.unsqueeze(-1)
    total = y.sum(dim=1)
    cross = total.T @ total - torch.einsum("ncd,nce->de", y, y)
    shrunk = others * p
    pairs = float((shrunk.sum(dim=1).square() - shrunk.square().sum(dim=1)).sum())
    return cross / pairs if pairs > 1.0 else torch.zeros(d, d, dtype=s.means.dtype)


def between_groups(s: Summaries, omega: float) -> float:
    """tau²: the variance of class means between clients, less their noise and the client effect; at least a floor."""
    use = (s.weights > 0).double()
    m = use.sum(dim=0)
    centre = (s.means * use.unsqueeze(-1)).sum(dim=0) / m.clamp(min=1.0).unsqueeze(-1)
    squares = ((s.means - centre).square().mean(dim=-1) * use).sum(dim=0)
    noise = torch.where(s.weights > 0, 1.0 / s.weights.clamp(min=1e-12), 0.0).sum(dim=0) / m.clamp(min=1.0)
    free = (m - 1.0).clamp(min=0.0)
    excess = (squares - free * noise).sum() / free.sum().clamp(min=1.0)
    return max(float(excess) - omega, omega, FLOOR)


def own_spread(s: Summaries, labels: Tensor) -> Own:
    """Residuals of a client's class means from those of the rest of its group, less noise and the client effect."""
    groups = pooled(s, labels, int(labels.max()) + 1).take(labels)
    rest = groups.weights - s.weights
    use = (s.weights > 0) & (rest > 1e-6 * groups.weights)
    if not bool(use.any()):
        return Own.none(s.means.shape[-1])
    rest = torch.where(use, rest, 1.0)
    means = (groups.weights.unsqueeze(-1) * groups.means - s.weights.unsqueeze(-1) * s.means) / rest.unsqueeze(-1)
    noise = 1.0 / s.weights.clamp(min=1e-12) + 1.0 / rest
    others = 1.0 + 1.0 / (groups.size - s.size).clamp(min=1.0).unsqueeze(1)
    trust = torch.where(use, 1.0 / (noise + FLOOR).square(), 0.0)
    left = torch.where(use.unsqueeze(-1), s.means - means, 0.0)
    d = s.means.shape[-1]
    covariance = torch.einsum("nc,ncd,nce->de", trust / others, left, left)
    covariance = covariance - (trust * noise / others).sum() * torch.eye(d, dtype=torch.float64)
    covariance = covariance / trust.sum() - client_effect(s, labels)
    values, vectors = variances(covariance, int(use.sum()))
    return Own(values, vectors, float(s.weights[s.weights > 0].median()))


def variances(covariance: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a covariance that was estimated from n differences.

    It is drawn towards a multiple of the identity as by d more of them. Noise spreads eigenvalues to both sides of what
    they are. The negative ones are dropped, and the others made smaller by as much: their sum has no bias, so that
    there is no spread where there is none.
    """
    d = len(covariance)
    whole = covariance.trace().clamp(min=0.0)
    values, vectors = torch.linalg.eigh((n * covariance + whole * torch.eye(d, dtype=covariance.dtype)) / (n + d))
    values = values.clamp(min=0.0)
    return values * (whole / values.sum().clamp(min=1e-12)).clamp(max=1.0), vectors
