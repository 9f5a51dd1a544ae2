"""How far models are from each other: by their weights, or by what they answer.

Shapes: x [..., *shape] inputs with any leading axes; h [..., C] the answers of the models to compare with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.task import Task
from clusterfl.tree import Tree

COLUMNS = 8192  # a block of a hundred models in float64 stays in a cache
ROWS = 1024  # models at a time: copies in float64 of thousands would be as large as the models
PIECE = 500  # inputs at a time: batches over about a thousand cost more per input


def squared_distances(models: Tensor, centers: Tensor, *, origin: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances ``[m, K]`` of the rows of ``models`` to those of ``centers``.

    ``|a - b|^2 = |a|^2 - 2ab + |b|^2``, in float64 and with the centres' mean as origin, or another ``[P]``, so that
    little cancels: models of one run lie close together, far from zero. Equal centres get equal distances to the bit.
    """
    scores = torch.zeros(len(models), len(centers), dtype=torch.float64)
    for low in range(0, models.shape[1], COLUMNS):
        part = slice(low, low + COLUMNS)
        some = centers[:, part].double()
        zero = some.mean(dim=0) if origin is None else origin[part].double()
        right = some - zero
        for out, rows in zip(scores.split(ROWS), models.split(ROWS), strict=True):
            left = rows[:, part].double() - zero
            # one product per centre: inside one matrix product, equal columns may round differently
            cross = torch.stack([left @ c.clone() for c in right], dim=1)
            out += left.square().sum(dim=1, keepdim=True) - 2.0 * cross + right.square().sum(dim=1)
    return scores.clamp(min=0.0)


def outputs(task: Task, theta: Tree, x: Tensor, leading: int) -> Tensor:
    """Probabilities ``[..., C]`` of inputs with ``leading`` axes before a sample's own."""
    flat = x.flatten(0, leading - 1)
    found = torch.cat([task.probabilities(theta, piece) for piece in flat.split(PIECE)])
    return found.reshape(*x.shape[:leading], found.shape[-1])


def class_distance(task: Task, theta: Tree, x: Tensor, h: Tensor) -> Tensor:
    """MD-ICFL's class-wise model distance ``[K, C]`` (its eq. 5, as the mean that eq. 4 asks for).

    ``x`` ``[K, C, M, *shape]`` are the pseudo samples of K centres and ``h`` ``[K, C, M, C]`` the centres'
    own answers to them, which are the same for every client: entry (j, k) is the mean L1 gap between the
    answers of ``theta`` and of centre j on j's samples of class k.
    """
    return (outputs(task, theta, x, 3) - h).abs().sum(dim=-1).mean(dim=-1)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """``[m, K]``: KL(p_i || q_k) summed over samples, from log-probabilities ``[m, n, C]`` and ``[K, n, C]``."""
    p, own, other = log_p.double().exp().flatten(1), log_p.double().flatten(1), log_q.double().flatten(1)
    return torch.stack([(p * (own - q)).sum(dim=1) for q in other], dim=1).clamp(min=0.0)
