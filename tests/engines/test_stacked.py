"""Stacked clients: who goes together, and that padding changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clusterfl import keys
from clusterfl.call import Call
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Plan, Serial, Stacked
from clusterfl.engines.chunks import stacking
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.ifca import IFCA
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close
from clusterfl.testing.small import play, small_task
from tests.engines.probe import RULE, Probe


@pytest.mark.parametrize("spread", [1.25, 4.0])
def test_clients_of_like_size_are_stacked(spread: float) -> None:
    sizes = torch.tensor([100, 7, 90, 30, 1, 60, 28, 2000, 99])
    call = Call(Probe(), "count", torch.arange(len(sizes)), {}, {}, keys.key(0), 0)
    plan = Plan(stacked=True, chunk=3, spread=spread)
    got = [sizes[p].tolist() for p in stacking(call, sizes, {}, plan, exact=False)]
    if spread == 1.25:
        assert got == [[2000], [100, 90, 99], [60], [7, 30, 28], [1]]
    else:  # up to 32 samples any sizes go together, as many as a chunk holds
        assert got == [[2000], [100, 90, 99], [30, 60, 28], [7, 1]]
    assert [sizes[p].tolist() for p in stacking(call, torch.full_like(sizes, 5), {}, plan, exact=True)] != []


@pytest.mark.parametrize("rule", [RULE, SGD(lr=0.1, batch=7, steps=9, momentum=0.9, weight_decay=0.01)])
def test_stacked_equals_serial_for_clients_of_very_unlike_size(rule: SGD) -> None:
    sizes = [3, 50, 7, 51, 49, 20, 21, 1, 64, 33, 8, 9]
    parts = []
    for i, n in enumerate(sizes):
        k = keys.fold_in(keys.key(9), i)
        parts.append((keys.normal(k, n, 6), keys.randint(keys.fold_in(k, 1), 3, n)))
    population = Population(Shards.from_parts(parts), Shards.from_parts(parts), 12, 3)
    method = FedAvg(local=rule)
    assert_close(
        play(method, Serial(small_task(), population)), play(method, Stacked(small_task(), population)), "ragged"
    )


def test_stacked_clients_may_have_channels_last() -> None:
    x, y = keys.normal(keys.key(0), 60, 2, 12, 12), keys.randint(keys.key(1), 3, 60)
    shards = Shards.from_rows(x, y, list(torch.arange(60).split(20)))
    population = Population(shards, shards, 3, 3)

    def task() -> Task:
        return Task(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)), 3)

    method = IFCA(k=2, local=RULE)
    one = play(method, Serial(task(), population))
    together = play(method, Serial(task(), population, Plan(stacked=True, chunk=2, channels_last=True)))
    assert torch.equal(one.assign, together.assign)
    assert_close(one.centers, together.centers, "stacked, channels last", 1e-5)
