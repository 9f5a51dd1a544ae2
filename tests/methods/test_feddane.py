"""FedDANE: the corrected local problem."""

from __future__ import annotations

import pytest
import torch

from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Flaky, Serial
from clusterfl.methods import FedDANE, FedProx, FedSGD
from clusterfl.parts.local import SGD
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import play, small_population, small_task


def test_one_full_step_is_fedsgd() -> None:
    """At w_t the correction turns every client's own gradient into the mean gradient."""
    task, population = small_task(), small_population()
    dane = play(FedDANE(SGD(lr=0.3, batch=1000, steps=1), mu=0.5), Serial(task, population), rounds=3).theta
    plain = play(FedSGD(SGD(lr=0.3)), Serial(task, population), rounds=3).theta
    for n, t in plain.items():
        torch.testing.assert_close(dane[n], t, rtol=1e-5, atol=1e-6)


def test_of_one_client_it_is_fedprox() -> None:
    """Of one client the mean gradient is its own, and nothing is left to correct."""
    shards = Shards.from_parts([small_population().train.of(0)])
    population, local = Population(shards, shards, 1, 3), SGD(lr=0.1, batch=50, epochs=2)
    task = small_task()
    dane = play(FedDANE(local, mu=0.3, weights="uniform"), Serial(task, population))
    prox = play(FedProx(local, mu=0.3, weights="uniform"), Serial(task, population))
    # one batch holds all samples, so their order, which differs by the extra exchange, changes rounding alone
    for n, t in prox.theta.items():
        torch.testing.assert_close(dane.theta[n], t, rtol=1e-5, atol=1e-6)


def test_only_those_who_sent_a_gradient_train() -> None:
    task, population = small_task(), small_population()
    engine = Flaky(Serial(task, population), 0.4)
    play(FedDANE(SGD(batch=10)), engine, rounds=1)
    gradients, model = engine.traffic.down["FedDANE.gradient"], engine.traffic.down["FedDANE.solve"]
    answered = engine.traffic.up["FedDANE.gradient"] // (task.size + 4)
    assert gradients == 12 * task.size and model == answered * 2 * task.size and answered < 12


def test_twice_the_same() -> None:
    task, population = small_task(), small_population()
    runs = [play(FedDANE(SGD(batch=10)), Serial(task, population)) for _ in range(2)]
    assert_equal(runs[0], runs[1], "feddane")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"mu=-0\.1"):
        FedDANE(mu=-0.1)
