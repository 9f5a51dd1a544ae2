"""Groups on trial."""

from __future__ import annotations

import torch

from clusterfl.parts.trial import noted, other_half, verdict


def test_half_of_each_group_is_away_and_in_the_next_round_the_other_half() -> None:
    assign = torch.tensor([0, 1, 0, 1, 0, 1, 2])
    ids = torch.tensor([6, 5, 4, 3, 2, 1, 0])
    now, then = (other_half(ids, assign, r) for r in (0, 1))
    assert torch.equal(now, ~then)
    assert [int(now[assign[ids] == g].sum()) for g in (0, 1, 2)] == [1, 1, 0]


def test_an_error_counts_beside_those_of_its_round() -> None:
    """What all get better by from round to round is nobody's gain, however many have either model."""
    joint, errors = torch.tensor([False, True, True, False, False]), torch.tensor([0.5, 0.7, 0.9, 0.3, 0.4])
    found = noted(errors, joint)
    assert found is not None and torch.allclose(found, torch.tensor([-0.1, 0.1, 0.3, -0.3, -0.2]))
    later = noted(errors - 0.25, joint)
    assert later is not None and torch.allclose(later, found)
    assert noted(errors, torch.ones(5, dtype=torch.bool)) is None
    assert noted(errors, torch.zeros(5, dtype=torch.bool)) is None


def test_a_group_fails_when_its_members_do_better_with_the_joint_model_by_more_than_chance() -> None:
    """Group 0 gains, 1 loses, 2 cannot say, 3 was not asked, 4 sees no difference at all."""
    gains = {0: [0.6, 0.7, 0.6, 0.6, 0.5] * 2, 1: [-0.1, -0.2, -0.1, -0.1, -0.2], 2: [-0.2, 0.19, -0.1, 0.08], 4: [0.0]}
    group = torch.tensor([g for g, some in gains.items() for _ in some])
    fails, pays = verdict(torch.tensor([gain for some in gains.values() for gain in some]), group, 5)
    assert fails.tolist() == [False, True, False, False, False] and pays


def test_all_groups_fail_when_their_members_together_lose_by_more_than_chance() -> None:
    group, gain = torch.tensor([0, 1, 0, 1, 0, 2]), torch.tensor([-0.1, -0.1, -0.15, -0.1, -0.08, -0.05])
    fails, pays = verdict(gain, group, 4)
    assert fails.tolist() == [True, True, True, False] and not pays
    fails, pays = verdict(-gain, group, 4)
    assert not bool(fails.any()) and pays


def test_gains_and_losses_by_chance_decide_nothing() -> None:
    for gains in ([0.2, -0.1, -0.1], [0.3], [-0.3], [0.0, 0.0], []):
        fails, pays = verdict(torch.tensor(gains), torch.ones(len(gains), dtype=torch.int64), 3)
        assert not bool(fails.any()) and not pays
