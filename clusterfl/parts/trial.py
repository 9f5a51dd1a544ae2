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


def useless(losses: Tensor, group: Tensor, k: int, *, blurred: bool) -> Tensor:
    """``[K]`` bool: groups whose own members do worse in them than with the joint model, by more than chance; and all
    of them if that holds of their members together, or if groups are ``blurred`` and do not do better by as much.

    ``losses``: ``[n, 2]``, of the group's model and of the joint one. A sum of n differences about 0 is seldom more
    than twice the root of their squares' sum.
    """
    gain = losses[:, 1] - losses[:, 0]
    total = torch.zeros(k, dtype=gain.dtype).index_add_(0, group, gain)
    chance = 2.0 * torch.zeros(k, dtype=gain.dtype).index_add_(0, group, gain.square()).sqrt()
    asked = torch.bincount(group, minlength=k) > 0
    least = 2.0 * gain.square().sum().sqrt() * (1.0 if blurred else -1.0)
    return asked & ((total <= -chance) | (gain.sum() <= least))
