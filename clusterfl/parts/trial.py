"""A group must pay: in its first rounds half of its members, in turn, train the joint model and say how well it does.

Nobody gets more than one model: who has the group's in one round has the joint one in the next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PATIENCE = 3  # times as long as until it is first asked a trial may last while it is undecided


class Verdict(NamedTuple):
    """What members' scores say of their groups."""

    fails: Tensor  # [K] bool: its members do worse in it by more than chance, or all members together in their groups
    pays: bool  # all together do better in their groups by more than chance


def other_half(ids: Tensor, assign: Tensor, round: int) -> Tensor:
    """``[n]`` bool: every second one of these clients in each group, the others in the next round."""
    out = torch.zeros(len(ids), dtype=torch.bool)
    order = ids.argsort()
    for g in assign[ids].unique().tolist():
        here = order[assign[ids[order]] == g]
        out[here] = (torch.arange(len(here)) + round) % 2 == 1
    return out


def noted(errors: Tensor, joint: Tensor) -> Tensor | None:
    """``[m]``: a round's errors less what they are on average over both models; None: one of them was not tried.

    Models get better from round to round, and an error counts only beside those of its own round.
    """
    if bool(joint.all()) or not bool(joint.any()):
        return None
    return errors - 0.5 * (errors[joint].mean() + errors[~joint].mean())


def verdict(gain: Tensor, group: Tensor, k: int) -> Verdict:
    """Of how much less clients get wrong with their ``group``'s model than with the joint one.

    A sum of n differences about 0 is seldom more than twice the root of their squares' sum.
    """
    gain = gain.double()
    total = torch.zeros(k, dtype=gain.dtype).index_add_(0, group, gain)
    chance = 2.0 * torch.zeros(k, dtype=gain.dtype).index_add_(0, group, gain.square()).sqrt()
    everybody, most = float(gain.sum()), 2.0 * float(gain.square().sum().sqrt())
    asked = torch.bincount(group, minlength=k) > 0
    return Verdict(asked & ((total < -chance) | (everybody < -most)), everybody > most)
