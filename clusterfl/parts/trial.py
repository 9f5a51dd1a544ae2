"""A group must pay: in its first rounds half of its members train the joint model, and then some compare both."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.keys import Key

JURY = 8  # members that speak for a group: each downloads one more model, once


def other_half(ids: Tensor, assign: Tensor, round: int) -> Tensor:
    """``[n]`` bool: every second one of these clients in each group, the others in the next round."""
    out = torch.zeros(len(ids), dtype=torch.bool)
    order = ids.argsort()
    for g in assign[ids].unique().tolist():
        here = order[assign[ids[order]] == g]
        out[here] = (torch.arange(len(here)) + round) % 2 == 1
    return out


def jury(ids: Tensor, assign: Tensor, key: Key) -> Tensor:
    """Some of these clients, at most :data:`JURY` of each group, in ascending order."""
    ids = ids.sort().values[keys.permutation(key, len(ids))]
    chosen = [ids[assign[ids] == g][:JURY] for g in assign[ids].unique().tolist()]
    return torch.cat(chosen).sort().values if chosen else ids


def useless(losses: Tensor, group: Tensor, k: int) -> Tensor:
    """``[K]`` bool: all groups if their members together do no better in them than with the joint model; else those
    whose own members do worse, by more than chance.

    ``losses``: ``[n, 2]``, of the group's model and of the joint one. A sum of n differences about 0 is as large as the
    root of their squares' sum by chance.
    """
    gain = losses[:, 1] - losses[:, 0]
    total = torch.zeros(k, dtype=gain.dtype).index_add_(0, group, gain)
    chance = torch.zeros(k, dtype=gain.dtype).index_add_(0, group, gain.square()).sqrt()
    asked = torch.bincount(group, minlength=k) > 0
    return asked & ((total <= -chance) | (gain.sum() <= 0))
