"""CLoVE: loss vectors, their clusters, and models matched to them."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import CLoVE, FedAvg
from clusterfl.methods.clove import Vectors, matched
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

from .points import LOCAL as POINT
from .points import TARGETS, TRUTH, point_task, points
from .small import LOCAL


def test_matching_by_hand() -> None:
    """Model 1 is the best for both clusters, but only one of them can have it: 1 + 3 is less than 4 + 2."""
    losses = torch.tensor([[3.0, 2.0], [3.0, 2.0], [4.0, 1.0]])
    assert matched(losses, torch.tensor([0, 0, 1]), 2).tolist() == [0, 0, 1]
    assert matched(losses, torch.tensor([1, 1, 0]), 2).tolist() == [0, 0, 1]  # whatever the clusters are called


def test_matching_is_the_best_of_all() -> None:
    losses, clusters = keys.uniform(keys.key(0), 12, 4), torch.arange(12) % 4
    found = float(losses.gather(1, matched(losses, clusters, 4).unsqueeze(1)).sum())
    every = [float(losses.gather(1, torch.tensor(p)[clusters].unsqueeze(1)).sum()) for p in permutations(range(4))]
    assert found == pytest.approx(min(every))


def test_groups_are_told_apart_by_models_that_suit_nobody() -> None:
    """Two models on one side of all targets: IFCA's least loss is model 0 for everybody; the vectors still differ."""
    task, population = point_task(), points(targets=TARGETS[[0, 1, 0, 1]])
    centers = {"w": torch.tensor([[9.0, 1.0, 0.0], [20.0, -2.0, 0.0]])}
    engine, nobody = Serial(task, population), torch.zeros(16, dtype=torch.bool)
    state = Vectors(centers, torch.zeros(16, dtype=torch.int64), 0, nobody)
    losses = torch.stack([((TARGETS[g] - centers["w"]) ** 2).sum(dim=1) / 2 for g in (0, 1)])
    assert losses.argmin(dim=1).tolist() == [0, 0]
    after = CLoVE(k=2, local=POINT).round(state, engine.cohort(torch.arange(16), keys.key(1)))
    assert clustering(after.assign, TRUTH % 2).ari == 1.0
    # the second model goes to the group that loses least by it: 256 + 25 - (25 + 4) against 256 + 1 - (25 + 16)
    assert after.assign[TRUTH == 1].unique().tolist() == [1]


def test_turned_digits_are_found_from_a_random_start() -> None:
    population = build(DataConfig(clients=24, unseen=4, clusters=4, shift="rotate", samples=60), keys.key(0))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    method = CLoVE(local=LOCAL)
    found = Simulation(method, population, Stacked(task, population), Schedule(12, eval_every=12)).run()
    assert found.unseen_assign is not None
    assert clustering(torch.cat([found.served.index, found.unseen_assign]), population.truth).ari == 1.0


def test_stable_clusters_cost_one_model() -> None:
    task = small_task()
    engine = Serial(task, small_population())
    method = CLoVE(k=2, patience=2, local=LOCAL)
    state, spent = play(method, engine, 0), []
    for t in range(6):
        before = engine.traffic.total_down
        state = method.round(state, engine.cohort(torch.arange(12), keys.fold_in(keys.key(3), t), t))
        spent.append((engine.traffic.total_down - before) // (12 * task.size))
    first = spent.index(1)
    assert spent == [3] * first + [1] * (6 - first) and first >= 3  # K + 1, until two rounds were calm
    late = Vectors(state.centers, state.assign, state.calm, state.known & (torch.arange(12) > 0))
    placed = method.round(late, engine.cohort(torch.arange(12), keys.key(4), 6))
    assert placed.known.all() and torch.equal(placed.assign[1:], late.assign[1:])


def test_fewer_clients_than_clusters_take_their_least_loss() -> None:
    losses = torch.tensor([[2.0, 1.0, 3.0], [1.0, 2.0, 3.0]])
    assert CLoVE(k=3).cluster(losses, keys.key(0)).tolist() == [1, 0]


def test_one_cluster_is_fedavg() -> None:
    check_same(CLoVE(k=1, local=LOCAL), FedAvg(LOCAL))
    assert CLoVE(k=1).cost(small_task()) == FedAvg().cost(small_task())


def test_settings_are_checked() -> None:
    for options in ({"k": 0}, {"patience": -1}, {"restarts": 0}, {"weights": "x"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            CLoVE(**options)  # type: ignore[arg-type]
