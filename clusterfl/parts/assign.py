"""Which centre a model is nearest to."""

from __future__ import annotations

import torch
from torch import Tensor

COLUMNS = 8192  # a block of a hundred models in float64 stays in a cache


def nearest(models: Tensor, centers: Tensor) -> Tensor:
    """Squared Euclidean distances ``[m, K]`` of the rows of ``models`` to those of ``centers``.

    ``|a - b|^2 = |a|^2 - 2ab + |b|^2``, in float64 and with the centres' mean as origin, so that little
    cancels: models of one run lie close together, far from zero. Equal centres get equal distances to the bit.
    """
    scores = torch.zeros(len(models), len(centers), dtype=torch.float64)
    for a, b in zip(models.split(COLUMNS, dim=1), centers.split(COLUMNS, dim=1), strict=True):
        origin = b.double().mean(dim=0)
        left, right = a.double() - origin, b.double() - origin
        # one product per centre: inside one matrix product, equal columns may round differently
        cross = torch.stack([left @ c.clone() for c in right], dim=1)
        scores += left.square().sum(dim=1, keepdim=True) - 2.0 * cross + right.square().sum(dim=1)
    return scores.clamp(min=0.0)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """``[m, K]``: KL(p_i || q_k) summed over samples, from log-probabilities ``[m, n, C]`` and ``[K, n, C]``."""
    p, own, other = log_p.double().exp().flatten(1), log_p.double().flatten(1), log_q.double().flatten(1)
    return torch.stack([(p * (own - q)).sum(dim=1) for q in other], dim=1).clamp(min=0.0)
