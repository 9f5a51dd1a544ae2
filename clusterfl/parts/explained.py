"""How well groups explain their members: each client's class means, given those of the rest of its group."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from clusterfl.parts.evidence import Summaries, others, pooled
from clusterfl.parts.spreads import Groups, along, clear_directions, measured


def explained(s: Summaries, found: Groups) -> float:
    """The log density of every client given the others, less log K for saying which group it is in.

    Of a group's class mean the rest of its members tell something, and that of everybody, about which groups vary by
    tau², the remainder. Groups that follow nothing but chance are poor at this: they have fewer members each to tell
    from. Means that were whitened anew are compared as they were before. In directions in which groups do not differ
    everybody is in one.
    """
    if found.among is None:
        return _density(s, found)
    elsewhere = along(s, torch.linalg.svd(found.among).U[:, found.among.shape[1] :])
    one = measured(elsewhere, torch.zeros_like(found.labels))
    return _density(s, found) + _density(elsewhere, one)


def _density(s: Summaries, found: Groups) -> float:
    t, labels, spread = found.turned(s), found.labels, found.spread
    k, d = int(labels.max()) + 1, t.means.shape[-1]
    rest = others(t, labels, pooled(t, labels, k))
    all_others = others(t, torch.zeros_like(labels), pooled(t, torch.zeros_like(labels), 1))
    use = (t.weights > 0) & (all_others.weights > 0)
    precision = rest.weights + 1.0 / spread.tau2
    told = rest.weights.unsqueeze(-1) * rest.means + all_others.means / spread.tau2
    left = torch.where(use.unsqueeze(-1), t.means - told / precision.unsqueeze(-1), 0.0)
    p = torch.where(use, 1.0 / (1.0 / t.weights.clamp(min=1e-12) + 1.0 / precision), 0.0)
    plain = d * torch.where(use, (p.clamp(min=1e-12) / (2.0 * math.pi)).log(), 0.0).sum(dim=1)
    plain = 0.5 * (plain - (p.unsqueeze(-1) * left.square()).sum(dim=(1, 2)))
    e = (t.effect + rest.effect).unsqueeze(1) * spread.omega  # as in evidence: all classes of a client share it
    grown = 1.0 + e * p.sum(dim=1, keepdim=True)
    shared = 0.5 * (e * (p.unsqueeze(-1) * left).sum(dim=1).square() / grown - grown.log()).sum(dim=1)
    stretch = 0.5 * float((1.0 + found.own.typical * found.own.values).log().sum()) * use.sum(dim=1)
    return float((plain + shared - stretch).sum()) - len(t) * math.log(k)


def fitted(s: Summaries, labels: Tensor) -> Groups:
    """These groups, as they differ in all directions or in a few clear ones, whichever explains clients better."""
    few = clear_directions(s)
    looks = [measured(s, labels)] + ([] if few is None else [measured(s, labels, among=few)])
    return max(looks, key=partial(explained, s))


def blurred(s: Summaries, labels: Tensor) -> bool:
    """Whether members of one group lie more than half as far apart as groups do, or one group explains them as well."""
    found, one = fitted(s, labels), fitted(s, torch.zeros_like(labels))
    return found.within > 0.5 * found.spread.tau2 or explained(s, found) <= explained(s, one)
