"""FedProx is FedAvg on a loss with a quadratic pull."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial
from clusterfl.methods import FedAvg, FedProx
from clusterfl.parts.local import SGD
from clusterfl.parts.start import first_net
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

LOCAL = SGD(lr=0.1, batch=10, epochs=2, momentum=0.5)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_without_pull_it_is_fedavg(weights: str) -> None:
    check_same(FedProx(LOCAL, mu=0.0, weights=weights), FedAvg(LOCAL, weights=weights))  # type: ignore[arg-type]


def test_against_the_objective_itself() -> None:
    """One client, full batches: gradient descent on ``loss + mu / 2 |w - w_t|^2`` by autograd."""
    x, y = small_population().train.of(0)
    shards = Shards.from_parts([(x, y)])
    task = small_task()
    got = play(FedProx(SGD(lr=0.2, batch=1000, epochs=5), mu=0.7), Serial(task, Population(shards, shards, 1, 3)), 2)
    theta = first_net(task, keys.key(7))
    for _ in range(2):
        start = theta
        w = {n: t.clone().requires_grad_() for n, t in start.items()}
        optimizer = torch.optim.SGD(w.values(), lr=0.2)
        for _ in range(5):
            optimizer.zero_grad()
            pull = torch.stack([(w[n] - start[n]).square().sum() for n in w]).sum()
            (nn.functional.cross_entropy(functional_call(task.module, w, (x,)), y) + 0.35 * pull).backward()
            optimizer.step()
        theta = {n: t.detach() for n, t in w.items()}
    for n, t in theta.items():
        torch.testing.assert_close(got.theta[n], t, rtol=1e-5, atol=1e-6)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="mu=-1"):
        FedProx(mu=-1)
