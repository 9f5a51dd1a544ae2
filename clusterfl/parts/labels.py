"""Which labels a client holds."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.client import Client


def label_ratios(me: Client) -> Tensor:
    """``[C]``: the share of every class in the client's training data, p_i(y)."""
    return one_hot_labels(me).sum(dim=0) / me.size.clamp(min=1.0)


def one_hot_labels(me: Client) -> Tensor:
    """``[n, C]``: each training sample's weight, under its label."""
    y, w = me.train.y, me.train.w
    hot = (y.unsqueeze(1) == torch.arange(me.task.classes, device=y.device)).float()
    return hot if w is None else hot * w.unsqueeze(1)
