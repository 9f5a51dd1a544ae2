"""FedSGD is gradient descent on the pooled data."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial, Stacked
from clusterfl.methods import FedSGD
from clusterfl.parts.local import SGD
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.testing.small import play, small_population, small_task


@pytest.mark.parametrize("engine", [Serial, Stacked])
@pytest.mark.parametrize("rule", [SGD(lr=0.3), SGD(lr=0.3, weight_decay=0.05), SGD(lr=0.3, clip=0.05, lr_decay=0.5)])
def test_equals_centralised_sgd_on_the_pooled_batch(engine: type[Serial], rule: SGD) -> None:
    task, population = small_task(), small_population()
    got = play(FedSGD(rule), engine(task, population), rounds=3).theta
    x, y = (torch.cat([population.train.of(i)[j] for i in range(population.clients)]) for j in (0, 1))
    theta = {n: t.clone().requires_grad_() for n, t in first_net(task, keys.key(7)).items()}
    for t in range(3):
        optimizer = torch.optim.SGD(theta.values(), lr=rule.rate(t), weight_decay=rule.weight_decay)
        optimizer.zero_grad()
        nn.functional.cross_entropy(functional_call(task.module, theta, (x,)), y).backward()
        if rule.clip is not None:
            nn.utils.clip_grad_norm_(theta.values(), rule.clip)
        optimizer.step()
    for n, t in theta.items():
        torch.testing.assert_close(got[n], t.detach(), rtol=1e-5, atol=1e-6)


def test_shards_longer_than_a_piece() -> None:
    """The gradient of 1,300 samples is put together from pieces of 500."""
    x, y = keys.normal(keys.key(0), 1300, 6), keys.randint(keys.key(1), 3, 1300)
    shards = Shards.from_parts([(x, y), (x[:70], y[:70])])
    task, population = small_task(), Population(shards, shards, 2, 3)
    got = play(FedSGD(SGD(lr=0.5)), Serial(task, population), rounds=1).theta
    start = first_net(task, keys.key(7))
    theta = {n: t.clone().requires_grad_() for n, t in start.items()}
    pooled_x, pooled_y = torch.cat([x, x[:70]]), torch.cat([y, y[:70]])
    nn.functional.cross_entropy(functional_call(task.module, theta, (pooled_x,)), pooled_y).backward()
    for n, t in theta.items():
        assert t.grad is not None
        torch.testing.assert_close(got[n], start[n] - 0.5 * t.grad, rtol=1e-5, atol=1e-6)


def test_batch_norm_buffers_are_averaged() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    task, population = Task(module, 3), small_population(ragged=False)
    theta = play(FedSGD(), Serial(task, population), rounds=1).theta
    assert int(theta["1.num_batches_tracked"]) == 1
    assert float(theta["1.running_mean"].abs().sum()) > 0
