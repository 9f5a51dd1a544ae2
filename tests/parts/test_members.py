"""A model of one's own is taken only where it pays."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.parts.holdout import folds
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.members import Personal, own_model
from clusterfl.testing.small import small_task

TASK = small_task()
MODEL = TASK.init(keys.key(2))
SURER_BUT_WRONG = (17, 0.03)  # the loss falls, and two more samples are wrong


def client(n: int = 20, *, odd: bool = False) -> Client:
    """All of one class, so that a head that says so is better; ``odd``: labels that have nothing to do with inputs."""
    x, y = keys.normal(keys.key(1), n, 6), torch.zeros(n, dtype=torch.int64)
    if odd:
        y = (keys.uniform(keys.key(3), n) * 3).long()
    shard = Shard(x, y, torch.arange(n), n)
    return Client(TASK, shard, shard, keys.key(0), smallest=n)


@pytest.mark.parametrize("how", ["head", "steps"])
def test_training_that_pays_is_kept_whole(how: Personal) -> None:
    rule = SGD(lr=0.1, batch=5, epochs=1)
    own, only = own_model(client(), MODEL, how, rule, 0.2), TASK.head if how == "head" else None
    whole = sgd(client(), MODEL, rule, only=only)  # on the samples that were held out for the question, too
    for name, t in own.items():
        assert torch.equal(t, whole[name])
        assert torch.equal(t, MODEL[name]) is (how == "head" and name not in TASK.head)


@pytest.mark.parametrize("how", ["none", "head", "steps"])
def test_training_that_does_not_pay_is_not(how: Personal) -> None:
    for name, t in own_model(client(odd=True), MODEL, how, SGD(lr=0.1, batch=5, epochs=1), 0.2).items():
        assert torch.equal(t, MODEL[name])


@pytest.mark.parametrize("lr", [1e-3, 0.03, 0.3])
@pytest.mark.parametrize("seed", [1, 4, 9, 17])
def test_a_gain_pays_if_it_is_more_than_its_standard_error_and_no_more_is_wrong(lr: float, seed: int) -> None:
    x, y = keys.normal(keys.key(seed), 40, 6), (keys.uniform(keys.key(seed + 1), 40) * 4).clamp(max=2).long()
    shard = Shard(x, y, torch.arange(40), 40)
    me, rule = Client(TASK, shard, shard, keys.key(0), smallest=40), SGD(lr=lr, batch=8, epochs=1)
    falls, right = [], 0
    for rest, kept in folds(me, 0.2):
        after = sgd(rest, MODEL, rule, only=TASK.head)
        for seen, labels, _ in kept.train.pieces():
            old, new = TASK.logits(MODEL, seen), TASK.logits(after, seen)
            falls.append((TASK.per_sample(old, labels) - TASK.per_sample(new, labels)).double())
            right += int((new.argmax(1) == labels).sum()) - int((old.argmax(1) == labels).sum())
    fall = torch.cat(falls)
    assert len(fall) == 40
    own = own_model(me, MODEL, "head", rule, 0.2)
    taken = not all(torch.equal(own[name], MODEL[name]) for name in MODEL)
    by_loss = bool(fall.mean() > fall.std() / 40**0.5)
    assert taken is (by_loss and right >= 0)
    if (seed, lr) == SURER_BUT_WRONG:
        assert by_loss and not taken


@pytest.mark.parametrize("length", [0, 5])
def test_without_samples_a_client_uses_its_groups_model(length: int) -> None:
    """Alone, and padded among clients with some."""
    n = torch.tensor(0) if length else 0
    rows = torch.zeros(length, dtype=torch.int64)
    shard = Shard(keys.normal(keys.key(1), 5, 6), torch.zeros(5, dtype=torch.int64), rows, n, bool(length))
    me = Client(TASK, shard, shard, keys.key(0), smallest=0)
    for name, t in own_model(me, MODEL, "head", SGD(lr=0.1, batch=5, epochs=1), 0.2).items():
        assert torch.equal(t, MODEL[name])
