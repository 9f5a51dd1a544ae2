"""FL+HC: FedAvg, one clustering, FedAvg in each cluster."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import FLHC, FedAvg
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task

from .points import LOCAL, TARGETS, TRUTH, point_task, points

SMALL = {"local": LOCAL, "start_round": 4}


def test_it_is_fedavg_until_the_clustering_round() -> None:
    check_same(FLHC(k=2, start_round=3, local=LOCAL), FedAvg(LOCAL), rounds=3)


@pytest.mark.parametrize("linkage", ["ward", "single", "complete", "average"])
@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
def test_planted_groups_are_found_by_every_distance(metric: str, linkage: str) -> None:
    if linkage == "ward" and metric != "l2":
        return
    found = play(FLHC(k=4, metric=metric, linkage=linkage, **SMALL), Serial(point_task(), points()), 20)
    assert clustering(found.assign, TRUTH).ari == 1.0
    for i, group in enumerate(TRUTH.tolist()):
        torch.testing.assert_close(found.centers["w"][found.assign[i]], TARGETS[group], atol=0.05, rtol=0.0)


@pytest.mark.parametrize(("threshold", "k"), [(0.5, 4), (3.5, 2), (9.0, 1)])
def test_a_threshold_finds_k(threshold: float, k: int) -> None:
    """Updates are 0.51 of the way to the target: groups are 3.06 apart in pairs, the pairs 4.5 to 5.1."""
    method = FLHC(threshold=threshold, metric="l2", linkage="complete", **SMALL)
    assert method.k is None
    assert play(method, Serial(point_task(), points()), 6).k == k


def test_the_clustering_happens_once() -> None:
    engine = Serial(point_task(), points())
    early = play(FLHC(k=2, **SMALL), engine, 5)
    late = play(FLHC(k=2, **SMALL), engine, 12)
    assert torch.equal(early.assign, late.assign)
    assert torch.equal(early.fork.moves, late.fork.moves)


def test_cluster_models_are_size_weighted_means() -> None:
    """The clustering round's models are not wasted: they are the clusters' first round."""
    task, population = small_task(), small_population()
    method = FLHC(k=2, start_round=0, local=LOCAL)
    engine = Serial(task, population)
    ids = torch.arange(population.clients)
    state = play(method, engine, 1)
    root = keys.key(7)
    start = method.init(task, engine.cohort(ids, keys.fold_in(root, "init")), root)
    cohort = engine.cohort(ids, keys.fold_in(root, "round", 0), 0)
    got = cohort.run(method.train, theta={n: t.repeat(12, *([1] * (t.dim() - 1))) for n, t in start.centers.items()})
    sizes = population.train.sizes[:12].double()
    for k in range(2):
        mine = state.assign == k
        for n, t in got["theta"].items():
            w = (sizes[mine] / sizes[mine].sum()).reshape(-1, *([1] * (t.dim() - 1)))
            torch.testing.assert_close(
                state.centers[n][k].double(), (t[mine].double() * w).sum(dim=0), atol=1e-6, rtol=0
            )


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_clients_that_missed_it_are_placed_when_they_are_next_asked(drop: float) -> None:
    population = points(unseen=4)
    engine = Flaky(Serial(point_task(), population), drop)
    found = Simulation(FLHC(k=4, **SMALL), population, engine, Schedule(25, 0.6, eval_every=25)).run()
    assert found.state.placed.all()
    assert found.unseen_assign is not None
    known = torch.cat([found.served.index, found.unseen_assign]) if drop == 0 else found.served.index
    assert clustering(known, TRUTH[: len(known)]).ari == 1.0


def test_it_waits_for_k_clients() -> None:
    state = play(FLHC(k=4, **SMALL), Serial(point_task(), points()), 10, some=3 / 16)
    assert state.fork is None and state.k == 1


@pytest.mark.parametrize("shift", ["rotate", "swap_labels"])
def test_planted_clusters_are_found_with_default_settings(shift: str) -> None:
    population = build(DataConfig(clients=24, unseen=4, clusters=4, shift=shift, test_samples=200), keys.key(5))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    found = Simulation(FLHC(), population, Stacked(task, population), Schedule(20, eval_every=20)).run()
    assert found.unseen_assign is not None
    assert clustering(torch.cat([found.records[-1].assign, found.unseen_assign]), population.truth).ari == 1.0
    assert found.accuracy.mean > 0.85


def test_wrong_settings_say_so() -> None:
    wrong = [{"k": 0}, {"k": None}, {"threshold": -1.0}, {"start_round": -1}, {"metric": "l1", "linkage": "ward"}]
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            FLHC(**options)
