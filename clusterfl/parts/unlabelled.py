"""Which group unlabelled samples fit: each group is a mixture of its classes, in shares of the client's own."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 10  # of expectation and maximisation


def misfits(z: Tensor, w: Tensor | None, means: Tensor, shares: Tensor) -> Tensor:
    """``[K]``: how clearly whitened features ``[n, d]`` fit a group's classes ``[K, C, d]`` worse than the best.

    It is half the square of the z-score of the log-likelihoods' differences, sample by sample: groups whose inputs look
    the same differ by the noise of their means, which a sum would take for evidence. Shares start from the group's and
    are fitted: which classes a client holds says nothing about its group.
    """
    apart = 0.5 * (z.unsqueeze(1).unsqueeze(1) - means).square().sum(dim=-1)  # [n, K, C]
    weight = torch.ones_like(z[:, 0]) if w is None else w
    held = shares > 0
    shares = torch.where(held, shares.clamp(min=1e-3), 0.0)
    each = torch.zeros_like(apart[..., 0])
    for _ in range(STEPS):
        joint = torch.where(held, shares.clamp(min=1e-30).log() - apart, -1e30)
        each = joint.logsumexp(dim=-1)  # [n, K]
        part = (joint - each.unsqueeze(-1)).exp() * weight.view(-1, 1, 1)
        shares = part.sum(dim=0) / weight.sum().clamp(min=1.0)
    n = weight.sum().clamp(min=1.0)
    worse = (each * weight.unsqueeze(1)).sum(dim=0).argmax().reshape(1)
    gap = (each.index_select(1, worse) - each) * weight.unsqueeze(1)
    mean = gap.sum(dim=0) / n
    error = ((gap - mean).square() * weight.unsqueeze(1)).sum(dim=0).sqrt() / n
    return 0.5 * (mean / error.clamp(min=1e-6)).square()
