"""HypCluster: IFCA's loop and a server optimiser."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import IFCA, FedAvg, HypCluster
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.parts.server_optimizer import adam_towards, no_moments
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_method, check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row

LOCAL = SGD(lr=0.1, batch=10, epochs=1)


def test_one_hypothesis_is_fedavg() -> None:
    check_same(HypCluster(k=1, local=LOCAL, start="independent"), FedAvg(LOCAL))


def test_plain_server_steps_are_ifca() -> None:
    check_same(HypCluster(k=2, local=LOCAL), IFCA(k=2, local=LOCAL, start="loss-pp", weights="size"))


def test_half_a_step_goes_half_the_way() -> None:
    task, population, whole = small_task(), small_population(), HypCluster(k=2, local=LOCAL)
    start = whole.init(task, Serial(task, population).cohort(torch.arange(12), keys.key(1)), keys.key(7))
    full = play(whole, Serial(task, population), 1, state=start).centers
    half = play(HypCluster(k=2, local=LOCAL, server_lr=0.5), Serial(task, population), 1, state=start).centers
    for n, old in start.centers.items():
        torch.testing.assert_close(half[n], (old + full[n]) / 2)


def test_adam_is_torchs() -> None:
    """Three steps on two clusters, the second of which rests once."""
    task = small_task()
    centers = task.init_stack(keys.key(0), 2)
    first, second = no_moments(centers, task.params), no_moments(centers, task.params)
    steps = torch.zeros(2, dtype=torch.int64)
    theirs = [{n: t.clone() for n, t in row(centers, k).items()} for k in range(2)]
    optimizers = [torch.optim.Adam(list(t.values()), lr=0.1, eps=1e-4) for t in theirs]
    for t in range(3):
        target = task.init_stack(keys.key(5 + t), 2)
        steps = steps + 1
        new, first, second = adam_towards(centers, target, first, second, steps, 0.1)
        for k in range(2):
            for n, p in theirs[k].items():
                p.grad = centers[n][k] - target[n][k]
            optimizers[k].step()
            for n, p in theirs[k].items():
                torch.testing.assert_close(new[n][k], p, rtol=1e-3, atol=1e-5)
        centers = new


def test_an_empty_cluster_keeps_model_and_moments() -> None:
    task, population = small_task(), small_population()
    method = HypCluster(k=2, local=LOCAL, server="adam", server_lr=0.01)
    state = play(method, Serial(task, population))
    gone = frozenset((state.assign == 1).nonzero().flatten().tolist())
    assert 0 < len(gone) < 12
    after = play(method, Flaky(Serial(task, population), 0.0, gone), 1, state=state)
    assert int(after.steps[1]) == int(state.steps[1]) and int(after.steps[0]) == int(state.steps[0]) + 1
    for n in task.params:
        for mine, before in ((after.centers, state.centers), (after.first, state.first), (after.second, state.second)):
            assert torch.equal(mine[n][1], before[n][1])
        assert not torch.equal(after.centers[n][0], state.centers[n][0])


def test_with_adam_it_conforms() -> None:
    check_method(HypCluster(k=2, local=LOCAL, server="adam", server_lr=0.01))


def test_finds_rotations() -> None:
    population = build(DataConfig(clients=16, clusters=4, unseen=4, samples=150), keys.key(0))
    task = Task(build_model("mlp", population.input_shape, 10, widths=(32,)), 10)
    out = Simulation(HypCluster(), population, Stacked(task, population), Schedule(8, eval_every=8)).run()
    assert out.clusters is not None and out.clusters.ari == 1.0
    assert out.unseen is not None and float(out.unseen.mean()) > 0.8


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="server='rmsprop' should"):
        HypCluster(server="rmsprop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="server_lr=0"):
        HypCluster(server_lr=0)
