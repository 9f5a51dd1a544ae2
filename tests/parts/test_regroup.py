"""Clients change groups."""

from __future__ import annotations

import torch

from clusterfl.parts.regroup import candidates, common_body, joined_again, mixed, renamed


def test_who_may_belong_where() -> None:
    table = torch.tensor([[5.0, -5.0, -5.0], [0.0, 0.0, -9.0], [1.0, 0.0, 0.9]])
    assert candidates(table, torch.tensor([0, 1, 0])).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_groups_that_did_not_pay_become_one_and_the_vote_is_of_their_members() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    joined = torch.tensor([True, True, False, False, False, True])
    assert joined_again(labels, joined).tolist() == [0, 0, 0, 1, 1, 0]
    assert joined_again(labels, torch.zeros(6).bool()).tolist() == labels.tolist()


def test_names_stay_where_most_members_stay() -> None:
    assert renamed(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([1, 1, 0, 0, 0])).tolist() == [1, 1, 0, 0, 2]
    assert renamed(torch.tensor([0, 0, 0, 0, 0]), torch.tensor([2, 2, 1, 0, 2])).tolist() == [0] * 5


def test_models_mix_by_mass_and_one_alone_is_itself() -> None:
    centers = {"w": torch.tensor([[0.1], [3.0]]), "steps": torch.tensor([4, 5])}
    assert torch.equal(mixed(centers, torch.tensor([7.0, 0.0]))["w"], centers["w"][0])
    both = mixed(centers, torch.tensor([1.0, 3.0]))
    assert torch.allclose(both["w"], torch.tensor([0.25 * 0.1 + 0.75 * 3.0])) and int(both["steps"]) == 4


def test_one_body_and_heads_apart() -> None:
    centers = {"body": torch.tensor([[0.0], [4.0]]), "head": torch.tensor([[1.0], [2.0]])}
    out = common_body(centers, ("head",), torch.tensor([1, 3]))
    assert out["body"].tolist() == [[3.0], [3.0]] and torch.equal(out["head"], centers["head"])
    assert torch.equal(common_body(centers, ("head",), torch.tensor([0, 0]))["body"][1], centers["body"][0])
