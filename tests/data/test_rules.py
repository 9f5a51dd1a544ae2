"""Clients by a rule are the clients of the list that it stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.rules import Drawn, Shared
from clusterfl.engines import Pool, Serial, Stacked
from clusterfl.errors import DataError
from clusterfl.evaluate.served import evaluate
from clusterfl.methods.fedavg import FedAvg
from clusterfl.testing import CLASSES, assert_equal, play, small_population, small_task
from tests.engines.probe import RULE

POOL = small_population().train
PARTS = torch.tensor([0, 60]), torch.tensor([60, 40])


def every_third(ids: Tensor, within: Tensor) -> Tensor:
    return (ids + 3 * within) % 100


def made(clients: int = 12, train: Any = None, **more: Any) -> Population:
    train = Drawn(keys.key(1), *PARTS) if train is None else train
    settings: dict[str, Any] = {"samples": 9, "test_samples": list(range(clients)), "classes": CLASSES, **more}
    return Population.from_rule(POOL.x, POOL.y, train, every_third, clients=clients, **settings)


def listed(population: Population) -> Population:
    """The same clients with all of their rows in a list."""
    sides = {side: replace(s, rows=s.listed) for side in ("train", "test") for s in [getattr(population, side)]}
    return replace(population, **sides)


@pytest.mark.parametrize("engine", [Serial, Stacked, lambda *a: Pool(*a, workers=1)], ids=["serial", "stacked", "pool"])
def test_a_rule_trains_and_scores_as_its_list_does(engine: Any) -> None:
    method, ids, found = FedAvg(local=RULE), torch.arange(12), []
    for population in (made(), listed(made())):
        with engine(small_task(), population) as running:
            state = play(method, running)
            found.append([state, evaluate(running, method, method.serve(state, ids), ids, keys.key(1))])
    assert_equal(*found, "rule and list")


@pytest.mark.parametrize(
    "train", [None, every_third, Shared(torch.arange(30), torch.tensor([0, 9, 18]), torch.arange(12) % 2)]
)
def test_a_rule_is_the_same_data_as_its_list(train: Any) -> None:
    by_rule = made(train=train)
    by_list = listed(by_rule)
    assert isinstance(by_list.train.rows, Tensor) and not isinstance(by_rule.train.rows, Tensor)
    assert by_rule.digest == by_list.digest
    some = torch.tensor([7, 2, 11, 2])
    for mine, theirs in ((by_rule.train, by_list.train), (by_rule.test, by_list.test)):
        assert torch.equal(mine.same, theirs.same)
        chosen = mine.select(some)
        assert torch.equal(chosen.listed, theirs.select(some).listed) and torch.equal(
            chosen.same, theirs.select(some).same
        )
        assert torch.equal(chosen.select(torch.tensor([3, 0])).listed, theirs.select(some[[3, 0]]).listed)
        assert_equal(list(mine.of(5)), list(theirs.of(5)), "a client's samples")


def test_groups_that_hold_the_same_are_the_same() -> None:
    shared = Shared(torch.tensor([4, 5, 4, 5, 6, 7]), torch.tensor([0, 2, 4]), torch.tensor([2, 1, 0, 2]))
    assert made(4, shared, samples=2, test_samples=1).train.same.tolist() == [0, 1, 1, 0]


def test_clients_draw_from_their_group_and_differ() -> None:
    train = made(400).train
    rows = train.listed.reshape(400, 9)
    assert (rows[::2] < 60).all() and (rows[1::2] >= 60).all() and (rows < 100).all()
    assert len(rows.unique(dim=0)) == 400 and len(rows[::2].unique()) == 60 and len(rows[1::2].unique()) == 40


def test_a_crowd_takes_no_list() -> None:
    crowd = made(200_000, test_samples=3, unseen=10)
    engine = Stacked(small_task(), crowd)
    ids = torch.tensor([0, 77_777, 199_989])
    got = engine.cohort(ids, keys.key(0)).run(FedAvg(local=RULE).train, {"theta": small_task().init(keys.key(0))})
    assert len(got) == 3 and not isinstance(crowd.train.rows, Tensor) and crowd.clients == 199_990
    assert crowd.train.of(199_999)[0].shape == (9, *POOL.x.shape[1:])


@pytest.mark.parametrize("wrong", [lambda ids, within: within - 1, lambda ids, within: ids + 1000])
def test_rows_that_the_pool_does_not_have_are_refused(wrong: Any) -> None:
    with pytest.raises(DataError, match=f"at least 0 and below the {len(POOL.y)} of the pool"):
        made(train=wrong).train.of(0)


def test_wrong_sizes_are_refused() -> None:
    for many in ([1, 2], -1):
        with pytest.raises(ValueError, match="samples should be a number of samples for each of the 12 clients"):
            made(samples=many)
    with pytest.raises(ValueError, match="unseen=12"):
        made(unseen=12)
    with pytest.raises(ValueError, match="as many as the samples"):
        Population.from_rule(
            POOL.x, POOL.y[1:], every_third, every_third, clients=2, samples=1, test_samples=1, classes=3
        )
    with pytest.raises(ValueError, match="another type would have to be copied"):
        x = np.zeros((3, 2))
        Population.from_rule(x, POOL.y[:3], every_third, every_third, clients=2, samples=1, test_samples=1, classes=3)
