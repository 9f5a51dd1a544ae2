"""MD-ICFL: its round by hand, its traps, its recovery of clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods.fedavg import FedAvg
from clusterfl.methods.md_icfl import MDICFL, MDState
from clusterfl.metrics import clustering
from clusterfl.models import build_model
from clusterfl.parts.distances import outputs
from clusterfl.parts.local import SGD, Train
from clusterfl.parts.pseudo import search
from clusterfl.record import Outcome, Schedule
from clusterfl.task import Task
from clusterfl.testing import check_method
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLASSES, CLIENTS, play, small_population, small_task
from clusterfl.tree import row, take
from tests.helpers import alone, by_hand

LOCAL = SGD(lr=0.1, batch=10, epochs=1)
QUICK = MDICFL(k=2, local=LOCAL, samples=2, iterations=5, warmup=0)
KEY = keys.key(5)


# -- the round ---------------------------------------------------------------------------------------


def test_a_round_is_algorithm_1_by_hand() -> None:
    population, task = small_population(), small_task()
    engine = Serial(task, population)
    state = play(QUICK, engine, rounds=0)
    ids = torch.tensor([0, 3, 4, 7, 9])
    after = QUICK.round(state, engine.cohort(ids, KEY))

    cohort = engine.cohort(ids, KEY)  # the same key: the same draws
    theta = cohort.run(QUICK.train, theta=take(state.centers, state.assign[ids]))["theta"]
    x = QUICK.pseudo(state, cohort).x.double().numpy()
    s = []
    for m, i in enumerate(ids.tolist()):
        y = population.train.of(i)[1].numpy()
        d = np.zeros(2)
        for j in range(2):
            for k in range(CLASSES):
                gap = np.abs(by_hand(row(theta, m), x[j, k]) - by_hand(row(state.centers, j), x[j, k]))
                d[j] += np.mean(y == k) * gap.sum(axis=1).mean()
        s.append(int(d.argmin()))
    assert after.assign[ids].tolist() == s
    others = [i for i in range(CLIENTS) if i not in ids.tolist()]
    assert torch.equal(after.assign[others], state.assign[others])
    for name, t in after.centers.items():
        for j in range(2):
            members = [m for m in range(len(ids)) if s[m] == j]
            mean = theta[name][members].mean(dim=0) if members else state.centers[name][j]
            torch.testing.assert_close(t[j], mean, rtol=1e-5, atol=1e-6)


VARIANTS: dict[str, dict[str, Any]] = {
    "strong": {"privacy": "strong"},
    "generator": {"sampler": "generator", "generator_hidden": 8, "generator_batch": 6},
    "warm": {"warm": True, "warm_iterations": 2},
    "warm generator": {"sampler": "generator", "generator_hidden": 8, "warm": True, "warm_iterations": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_conform(variant: str) -> None:
    # a generator's weights are in a warm state, and Adam enlarges the rounding of small gradients
    check_method(replace(QUICK, **VARIANTS[variant]), tolerance=1e-4 if variant == "warm generator" else 1e-5)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_one_cluster_is_fedavg(privacy: Any) -> None:
    one = replace(QUICK, k=1, start="independent", privacy=privacy)
    check_method(one, counterpart=FedAvg(local=LOCAL, weights="uniform"))


def test_one_cluster_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MDICFL, "pseudo", lambda *_: pytest.fail("searched"))
    one, engine = replace(QUICK, k=1), Serial(small_task(), small_population())
    served = one.admit(play(one, engine, rounds=2), engine.cohort(torch.arange(3), KEY))
    assert served.index.tolist() == [0, 0, 0]


@pytest.mark.parametrize("engine", [Serial, Stacked])
def test_models_with_batch_norm(engine: type[Serial]) -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    population = small_population(ragged=False)
    before = play(QUICK, engine(Task(net, CLASSES), population), rounds=1)
    assert all(bool(torch.isfinite(t).all()) for t in before.centers.values())
    # sampling and distances run in evaluation mode: one sample's answer does not depend on the others
    task = Task(net, CLASSES)
    x = keys.normal(KEY, 5, 6)
    theta = row(before.centers, 0)
    torch.testing.assert_close(outputs(task, theta, x, 1)[:2], outputs(task, theta, x[:2], 1))


def test_clients_stay_where_they_started_in_the_warm_up() -> None:
    waiting = replace(QUICK, warmup=2)
    engine = Serial(small_task(), small_population())
    start = play(waiting, engine, rounds=0)
    state = play(waiting, engine, rounds=2)
    assert torch.equal(state.assign, start.assign) and "MDICFL.ratios" not in engine.traffic.up
    trained = play(replace(QUICK, warmup=9), Serial(small_task(), small_population()), rounds=2)
    assert_equal(state.centers, trained.centers, "the warm-up's length does not matter while it lasts")
    assert not torch.equal(trained.centers["0.weight"], start.centers["0.weight"])
    play(waiting, engine, rounds=3)
    assert "MDICFL.ratios" in engine.traffic.up


# -- clusters ----------------------------------------------------------------------------------------


def digits(shift: str = "rotate", **more: Any) -> Population:
    return build(DataConfig(source="digits", shift=shift, clients=16, clusters=4, samples=150, **more), keys.key(0))


def learn(method: MDICFL, population: Population, rounds: int = 4) -> tuple[Outcome, Simulation]:
    task = Task(build_model("mlp", population.input_shape, population.classes, widths=(32,)), population.classes)
    schedule = Schedule(rounds=rounds, eval_every=rounds)
    simulation = Simulation(method, population, Stacked(task, population), schedule)
    return simulation.run(), simulation


FAST = MDICFL(samples=10, iterations=40, warmup=0)  # a third of the paper's samples, and fewer steps


def ari(outcome: Outcome) -> float:
    assert outcome.clusters is not None
    return outcome.clusters.ari


def test_recovers_rotations_and_unseen_clients() -> None:
    population = digits(unseen=8)
    outcome, _ = learn(FAST, population)
    assert ari(outcome) == 1.0
    assert population.truth is not None and outcome.unseen_assign is not None
    assert clustering(outcome.unseen_assign, population.truth[population.clients :]).ari == 1.0
    # an unseen client gets the very cluster that its fellows have
    for i, s in enumerate(outcome.unseen_assign.tolist()):
        mates = population.truth[: population.clients] == population.truth[population.clients + i]
        assert outcome.served.index[mates].unique().tolist() == [s]


@pytest.mark.parametrize(
    "method",
    [
        replace(FAST, privacy="strong", warm=True, warm_iterations=10),
        replace(FAST, sampler="generator", iterations=100, warm=True, warm_iterations=20),
    ],
    ids=["strong, warm", "generator"],
)
def test_variants_recover_swapped_labels(method: MDICFL) -> None:
    outcome, _ = learn(method, digits("permute_labels"), rounds=3)
    assert ari(outcome) == 1.0


def test_a_small_perceptron_does_not_leave_the_papers_random_start() -> None:
    """It need not be so: LeNets move (docs/initialisation.md)."""
    population = digits()
    outcome, simulation = learn(replace(FAST, start="independent"), population)
    first = simulation.records[0].assign
    assert all(torch.equal(r.assign, first) for r in simulation.records)
    assert [r.logged.get("moved", 0.0) for r in simulation.records] == [0.0] * 5
    assert ari(outcome) < 0.2


@pytest.mark.parametrize("k", [1, 5, 6])
def test_other_numbers_of_clusters(k: int) -> None:
    outcome, _ = learn(replace(FAST, k=k, samples=5, iterations=20), digits(), rounds=2)
    assert 1 <= outcome.clusters_found <= k
    assert ari(outcome) > 0.7 if k > 4 else ari(outcome) == 0.0


def test_an_empty_cluster_keeps_its_model() -> None:
    task, population = small_task(), small_population()
    engine = Serial(task, population)
    start = play(replace(QUICK, k=3), engine, rounds=0)
    # cluster 2 answers with certainty where the others do not, so that nobody is near it
    lost = {
        n: torch.cat([t[:2], 50.0 * keys.normal(keys.fold_in(KEY, n), 1, *t.shape[1:])])
        for n, t in start.centers.items()
    }
    state = MDState(lost, start.assign % 2, start.p)
    after = play(replace(QUICK, k=3), engine, rounds=2, state=state)
    assert 2 not in after.assign
    assert_equal(row(after.centers, 2), row(lost, 2), "the empty cluster")


def test_warm_goes_on_from_what_was_found() -> None:
    task, population = small_task(), small_population()
    warm = replace(QUICK, warm=True, warm_iterations=3)
    engine = Serial(task, population)
    first = play(warm, engine, rounds=1)
    assert_equal(first.centers, play(QUICK, engine, rounds=1).centers, "the first round starts from noise")
    cohort = engine.cohort(torch.arange(CLIENTS), KEY)
    x = warm.pseudo(first, cohort).x
    me = alone(task, (6,))
    assert first.found is not None
    for j in range(2):
        hand = search(me, row(first.centers, j), warm.searcher, row(first.found, j), 3)["x"]
        torch.testing.assert_close(x[j], hand)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"privacy": "none"}, "privacy='none' should be 'weak' or 'strong'"),
        ({"sampler": "gan"}, "sampler='gan' should be 'back-search' or 'generator'"),
        ({"samples": 0}, "samples=0 should be at least 1"),
        ({"k": 0}, "k=0 should be at least 1"),
        ({"iterations": 0}, "iterations=0 should be at least 1"),
        ({"rate": 0.0}, "rate=0.0 should be above 0"),
        ({"penalty": -1.0}, "penalty=-1.0 should be at least 0"),
        ({"sampler": "generator", "generator_batch": 1}, "generator_batch=1 should be at least 2"),
    ],
)
def test_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDICFL(**wrong)


def test_trains_as_plain_sgd() -> None:
    engine = Serial(small_task(), small_population())
    theta = engine.task.init(KEY)
    ids = torch.arange(3)
    mine = engine.cohort(ids, KEY).run(QUICK.train, {"theta": theta})["theta"]
    plain = engine.cohort(ids, KEY).run(Train(LOCAL).train, {"theta": theta})["theta"]
    assert_equal(mine, plain, "local training")
