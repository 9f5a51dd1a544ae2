"""Groups on trial."""

from __future__ import annotations

import torch

from clusterfl import keys
from clusterfl.parts.trial import JURY, jury, other_half, useless


def test_a_jury_has_some_of_each_group() -> None:
    assign = torch.cat([torch.zeros(50), torch.ones(3)]).long()
    chosen = jury(torch.arange(53).flip(0), assign, keys.key(0))
    assert (assign[chosen] == 0).sum() == JURY and chosen[-3:].tolist() == [50, 51, 52]
    assert torch.equal(chosen, jury(torch.arange(53), assign, keys.key(0)))
    assert not len(jury(torch.zeros(0, dtype=torch.int64), assign, keys.key(0)))


def test_half_of_each_group_is_away_and_in_the_next_round_the_other_half() -> None:
    assign = torch.tensor([0, 1, 0, 1, 0, 1, 2])
    ids = torch.tensor([6, 5, 4, 3, 2, 1, 0])
    now, then = (other_half(ids, assign, r) for r in (0, 1))
    assert torch.equal(now, ~then)
    assert [int(now[assign[ids] == g].sum()) for g in (0, 1, 2)] == [1, 1, 0]


def test_a_group_fails_when_its_members_do_better_with_the_joint_model_by_more_than_chance() -> None:
    """Group 0 gains, 1 loses, 2 cannot say, 3 was not asked, 4 sees no difference at all."""
    gains = {0: [0.6, 0.7, 0.6], 1: [-0.1, -0.2, -0.1, -0.1, -0.2], 2: [-0.2, 0.19, -0.1, 0.08], 4: [0.0]}
    group = torch.tensor([g for g, some in gains.items() for _ in some])
    losses = torch.tensor([[1.0, 1.0 + gain] for some in gains.values() for gain in some]).double()
    losses[-1, 1] = losses[-1, 0]
    clear = useless(losses, group, 5, blurred=False)
    assert clear.tolist() == [False, True, False, False, True]
    asked = [True, True, True, False, True]
    assert useless(losses, group, 5, blurred=True).tolist() == asked  # together they gain no more than by chance
    assert useless(losses[3:8], group[3:8], 5, blurred=False).tolist() == [False, True, False, False, False]
    more = torch.cat([losses, losses[:3], losses[:3]]), torch.cat([group, group[:3], group[:3]])
    assert torch.equal(useless(*more, 5, blurred=True), clear)
