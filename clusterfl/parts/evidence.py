"""Evidence that clients belong together, by the means of each class's features: a log Bayes factor.

In whitened features the mean of class c on client i is ``mu[group, c] + b[i] + noise``, with noise of variance
``1 / w[i, c]`` in every dimension (w is the number of samples, less what privacy takes), a client effect b of variance
omega, and ``mu`` of variance tau² between groups. docs/methods/kin.md derives what follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Summaries:
    """What is known of some clients, or groups of clients, class by class."""

    weights: Tensor  # [N, C] float64: precision of the means; 0: it has no such class
    means: Tensor  # [N, C, d] float64, whitened
    size: Tensor  # [N]: clients behind it
    effect: Tensor  # [N]: the share of omega that its mean still has; 1 for one client, 1 / m for m alike
    counts: Tensor | None = None  # [N, C]: label counts, where labels tell groups apart too

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, index: Tensor) -> Summaries:
        counts = None if self.counts is None else self.counts[index]
        return Summaries(self.weights[index], self.means[index], self.size[index], self.effect[index], counts)


@dataclass(frozen=True)
class Spread:
    """How far apart things lie, in units of a class's own spread."""

    tau2: float  # between groups
    omega: Tensor  # [d]: between clients of one group, common to all classes of a client
    same: float = 0.0  # the share of classes that look the same in two groups all the same


def whitening(scatter: Tensor, freedom: float, least: float = 0.0) -> Tensor:
    """``[d, d']``: makes the pooled spread within classes the identity, with the inverse's bias taken out.

    The estimate is drawn towards a multiple of the identity as by d more samples. The inverse of an estimated
    covariance is too large by ``f / (f - d - 1)``: with few samples everything would look far apart. No direction has
    less than ``least`` of the scatter.
    """
    d = len(scatter)
    if freedom < 1 or not float(scatter.trace()) > 0:
        return torch.eye(d, dtype=torch.float64)
    ridge = scatter.trace() / freedom * torch.eye(d, dtype=torch.float64)
    values, vectors = torch.linalg.eigh((scatter.double() + ridge) / (freedom + d))
    values = values.clamp(min=max(1e-9 * float(values.max()), least / (freedom + d)))
    too_large = freedom / max(freedom - d - 1, 0.2 * freedom)
    whiten: Tensor = vectors / (values * too_large).sqrt()
    return whiten


# -- evidence ----------------------------------------------------------------------------------------------


def evidence(a: Summaries, b: Summaries, spread: Spread) -> Tensor:
    """``[A, B]``: the log Bayes factor of "one group" against "two", over the classes that both have."""
    total: Tensor = class_evidence(a, b, spread).sum(dim=-1)
    if bool((spread.omega > 0).any()):
        total = total + _effect(a, b, spread)
    if a.counts is not None and b.counts is not None:
        total = total + _label_evidence(a.counts, b.counts)
    return total


def class_evidence(a: Summaries, b: Summaries, spread: Spread) -> Tensor:
    """``[A, B, C]``: each class's part, as if clients had no effect of their own.

    The difference of two means is N(0, v) in one group and N(0, v + 2 tau²) in two, in each dimension. Where groups
    differ in some classes only, a class that looks alike says little, and one that does not says as much as ever.
    """
    v, both = variance(a, b)
    far = 2.0 * spread.tau2
    squares = torch.cdist(a.means.movedim(-2, 0), b.means.movedim(-2, 0)).square().movedim(0, -1)
    d = a.means.shape[-1]
    each = 0.5 * d * torch.log1p(far / v) - 0.5 * squares * far / (v * (v + far))
    if spread.same > 0:
        each = -torch.logaddexp(torch.tensor(math.log(spread.same)), math.log1p(-spread.same) - each)
    return torch.where(both, each, 0.0)


def variance(a: Summaries, b: Summaries) -> tuple[Tensor, Tensor]:
    wa, wb = a.weights.unsqueeze(-2), b.weights.unsqueeze(-3)
    both = (wa > 0) & (wb > 0)
    return torch.where(both, 1.0 / wa.clamp(min=1e-12) + 1.0 / wb.clamp(min=1e-12), 1.0), both


def _effect(a: Summaries, b: Summaries, spread: Spread) -> Tensor:
    """What the client effect changes: differences of one pair share it in all classes (Sherman and Morrison)."""
    v, both = variance(a, b)
    e = (a.effect.unsqueeze(-1) + b.effect.unsqueeze(-2)).unsqueeze(-1) * spread.omega
    total = torch.zeros(v.shape[:-1], dtype=v.dtype)
    for sign, s in ((1.0, v), (-1.0, v + 2.0 * spread.tau2)):
        p = both / s
        common = torch.einsum("...abc,...acd->...abd", p, a.means) - torch.einsum("...abc,...bcd->...abd", p, b.means)
        grown = 1.0 + e * p.sum(dim=-1, keepdim=True)
        total = total + sign * 0.5 * (e * common.square() / grown - grown.log()).sum(dim=-1)
    return total


def _label_evidence(a: Tensor, b: Tensor) -> Tensor:
    """The same for label counts: one multinomial against two, each with a uniform prior."""
    a, b = a.unsqueeze(-2), b.unsqueeze(-3)
    return _log_beta(a + b) - _log_beta(a) - _log_beta(b) + _log_beta(torch.zeros_like(a))


def _log_beta(counts: Tensor) -> Tensor:
    alpha = counts + 1.0
    return torch.lgamma(alpha).sum(dim=-1) - torch.lgamma(alpha.sum(dim=-1))


def pooled(s: Summaries, labels: Tensor, k: int) -> Summaries:
    """The groups' summaries: means weighted by their precision, so that a group has every class of its members."""

    def sums(values: Tensor) -> Tensor:
        return torch.zeros(k, *values.shape[1:], dtype=values.dtype).index_add_(0, labels, values)

    weights = sums(s.weights)
    means = sums(s.weights.unsqueeze(-1) * s.means) / weights.clamp(min=1e-12).unsqueeze(-1)
    mass = s.weights.sum(dim=1)
    effect = sums(mass.square() * s.effect) / sums(mass).square().clamp(min=1e-12)
    return Summaries(weights, means, sums(s.size), effect, None if s.counts is None else sums(s.counts))


def same_classes(groups: Summaries, spread: Spread) -> float:
    """The share of classes, over pairs of groups, in which they look the same."""
    _, both = variance(groups, groups)
    pairs = both & torch.ones(both.shape[:2], dtype=torch.bool).triu(1).unsqueeze(-1)
    each = class_evidence(groups, groups, replace(spread, same=0.0))
    return min(float((each > 0)[pairs].double().mean()), 0.99) if bool(pairs.any()) else 0.0


def to_groups(s: Summaries, labels: Tensor, spread: Spread) -> Tensor:
    """``[N, K]``: the evidence that each client is one with each group, from its own group itself left out.

    Which groups there are is known here, and so is in how many classes they differ.
    """
    groups = pooled(s, labels, int(labels.max()) + 1)
    spread = replace(spread, same=same_classes(groups, spread))
    parts = torch.arange(len(s)).split(2048)
    return torch.cat([_left_out(s.take(part), labels[part], groups, spread) for part in parts])


def _left_out(s: Summaries, labels: Tensor, groups: Summaries, spread: Spread) -> Tensor:
    table = evidence(s, groups, spread)
    rows = evidence(_alone(s), _alone(others(s, labels, groups)), spread).reshape(-1)
    return table.scatter(1, labels.unsqueeze(1), rows.unsqueeze(1))


def others(s: Summaries, labels: Tensor, groups: Summaries) -> Summaries:
    """Each client's group without itself."""
    own = groups.take(labels)
    rest = (own.weights - s.weights).clamp(min=0.0)
    rest = torch.where(rest > 1e-9 * own.weights, rest, 0.0)
    left = own.weights.unsqueeze(-1) * own.means - s.weights.unsqueeze(-1) * s.means
    means = left / rest.clamp(min=1e-12).unsqueeze(-1) * (rest > 0).unsqueeze(-1)
    counts = None if own.counts is None or s.counts is None else own.counts - s.counts
    return Summaries(rest, means, own.size - s.size, own.effect, counts)


def _alone(s: Summaries) -> Summaries:
    """Each row as a table of one row, so that rows are compared with rows."""
    counts = None if s.counts is None else s.counts.unsqueeze(1)
    return Summaries(s.weights.unsqueeze(1), s.means.unsqueeze(1), s.size.unsqueeze(1), s.effect.unsqueeze(1), counts)
