"""Mixtures of K models on a client: how far each model is responsible for each sample, and training by it.

Shapes: losses and q [K, n]; pi [K], how much each model counts on this client.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clusterfl.client import Batch, Client
from clusterfl.parts import perceptron
from clusterfl.parts.local import SGD, Gradient, gradient, sgd
from clusterfl.tree import Tree, row, rows, stack


def sample_losses(me: Client, centers: Tree) -> Tensor:
    """``[K, n]``: the loss of every model on every training sample, in evaluation mode."""
    found = [_losses(me, centers, x, y) for x, y, _ in me.train.pieces()]
    return torch.cat(found, dim=1) if found else torch.zeros(rows(centers), 0, device=me.key.device)


def _losses(me: Client, centers: Tree, x: Tensor, y: Tensor) -> Tensor:
    if me.task.dense is not None:
        return perceptron.losses(me.task.dense, centers, x, y, squared=me.task.squared)

    def one(theta: Tree) -> Tensor:
        return me.task.per_sample(me.task.logits(theta, x), y)

    if me.stacked:
        together: Tensor = torch.func.vmap(one)(centers)
        return together
    return torch.stack([one(row(centers, k)) for k in range(rows(centers))])


def uniform(me: Client, centers: Tree) -> Tensor:
    """``[K]``: all models count alike."""
    k = rows(centers)
    return torch.full((k,), 1.0 / k, device=me.key.device)


def e_step(pi: Tensor, losses: Tensor) -> Tensor:
    """``q[k, i]``, in proportion to ``pi[k] exp(-losses[k, i])``; its sum over k is 1."""
    return torch.softmax(pi.log().unsqueeze(1) - losses, dim=0)


def m_step(me: Client, q: Tensor) -> Tensor:
    """``pi[k]``: the mean of ``q[k]`` over the client's samples."""
    w = me.train.w
    return (q if w is None else q * w).sum(dim=1) / me.size.clamp(min=1.0)


def fit_pi(me: Client, losses: Tensor, steps: int) -> Tensor:
    """The mixture of models as they are that fits the client's samples: ``steps`` of EM, from equal shares.

    A client without samples keeps equal shares.
    """
    k = losses.shape[0]
    pi = torch.full((k,), 1.0 / k, device=me.key.device)
    for _ in range(steps):
        pi = torch.where(me.size > 0, m_step(me, e_step(pi, losses)), pi)
    return pi


def train_mixture(me: Client, centers: Tree, q: Tensor, local: SGD) -> Tree:
    """Every model after local training on all samples, each sample's loss weighed by ``q[k]``: a stack [K]."""
    if rows(centers) == 1:  # all weights are 1
        return stack([sgd(me, row(centers, 0), local)])
    return stack([sgd(me, row(centers, k), local, weighted(q[k])) for k in range(rows(centers))])


def weighted(q: Tensor) -> Gradient:
    """The gradient of the batch's mean of ``q * loss``, for weights ``q`` ``[n]`` of the client's samples."""

    def grad(me: Client, theta: Tree, batch: Batch) -> Tree:
        assert batch.places is not None
        there = torch.ones_like(q[batch.places]) if batch.w is None else batch.w
        share = q[batch.places] * there
        got = gradient(me, theta, batch._replace(w=share))  # of sum(share * loss) / max(sum(share), 1)
        scale: Any = share.sum().clamp(min=1.0) / there.sum().clamp(min=1.0)
        return {n: g * scale for n, g in got.items()}

    return grad
