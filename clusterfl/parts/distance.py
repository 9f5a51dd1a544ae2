"""Distances between models by what they answer (function space).

Shapes: x [..., *shape] inputs with any leading axes; h [..., C] the answers of the models to compare with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.task import Task
from clusterfl.tree import Tree

PIECE = 500  # inputs at a time: batches over about a thousand cost more per input


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


def label_ratios(me: Client) -> Tensor:
    """``[C]``: the share of every class in the client's training data, p_i(y)."""
    return by_label(me).sum(dim=0) / me.size.clamp(min=1.0)


def by_label(me: Client) -> Tensor:
    """``[n, C]``: each training sample's weight, under its label."""
    y, w = me.train.y, me.train.w
    hot = (y.unsqueeze(1) == torch.arange(me.task.classes, device=y.device)).float()
    return hot if w is None else hot * w.unsqueeze(1)
