"""PFA: groups by the sparsity of activations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import PFA, FedAvg
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def test_one_group_is_fedavg() -> None:
    check_same(PFA(k=1, local=LOCAL, group_round=2), FedAvg(LOCAL), rounds=4)


def test_until_it_groups_it_is_fedavg() -> None:
    check_same(PFA(k=3, local=LOCAL, group_round=5), FedAvg(LOCAL), rounds=4)


@pytest.mark.parametrize("engine", [Serial, Stacked])
def test_sparsity_by_hand(engine: type[Serial]) -> None:
    task, population = small_task(), small_population()
    theta, units = task.init(keys.key(0)), torch.tensor([1, 4, 6])
    cohort = engine(task, population).cohort(torch.arange(12), keys.key(0))
    got = cohort.run(PFA().sparsity, {"theta": theta, "units": units})["zeros"]
    for i in range(12):
        x = population.train.of(i)[0].double().numpy()
        before = x @ theta["0.weight"].double().numpy().T + theta["0.bias"].double().numpy()
        np.testing.assert_allclose(got[i], (before <= 0).mean(axis=0)[units.numpy()], atol=1e-6)


def digits() -> tuple[Task, Simulation]:
    population = build(DataConfig(clients=16, clusters=4, unseen=4, samples=150), keys.key(0))
    task = Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10)
    method = PFA(group_round=3)
    return task, Simulation(method, population, Stacked(task, population), Schedule(6, eval_every=6))


def test_finds_rotations() -> None:
    _, simulation = digits()
    out = simulation.run()
    assert out.clusters is not None and out.clusters.ari == 1.0
    assert out.records[2].assign.unique().numel() == 1 and out.records[3].assign.unique().numel() == 4
    assert simulation.population.truth is not None and out.unseen_assign is not None
    together = torch.cat([out.served.index, out.unseen_assign])
    truth = simulation.population.truth
    assert all(len(together[truth == k].unique()) == 1 for k in range(4))


def test_who_was_away_is_placed_later_as_if_it_had_been_there() -> None:
    task, population = small_task(), small_population()
    method = PFA(k=2, local=LOCAL, group_round=1)
    everybody = play(method, Serial(task, population), 1)
    away = Flaky(Serial(task, population), 0.0, frozenset({2, 7}))
    state = play(method, away, 1)
    assert state.grouped and (~state.known).nonzero().flatten().tolist() == [2, 7]
    after = play(method, Serial(task, population), 1, state=state)
    assert bool(after.known.all()) and bool(everybody.known.all())
    assert torch.equal(after.homes, state.homes) and torch.equal(after.assign[state.known], state.assign[state.known])


def test_it_waits_for_enough_clients() -> None:
    state = play(PFA(k=3, local=LOCAL, group_round=1), Serial(small_task(), small_population()), 2, some=1 / 12)
    assert not state.grouped


def test_a_model_without_relu_is_refused() -> None:
    population = small_population()
    with pytest.raises(ValueError, match="model should have a ReLU layer"):
        play(PFA(k=2), Serial(Task(build_model("mclr", (6,), 3), 3), population))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="group_round=0"):
        PFA(group_round=0)
