"""Ditto against a computation by hand."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import Ditto, FedAvg, Local
from clusterfl.models import build_model
from clusterfl.parts.aggregate import Median
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_method, check_same
from clusterfl.testing.small import play, small_population, small_task

from .points import TARGETS, TRUTH, point_task, points
from .small import LOCAL

STEP = SGD(lr=0.25, batch=8)  # one step a round, on all eight samples of a client


def test_two_rounds_by_hand() -> None:
    """A client's loss is |w - x|^2 / 2, so that v moves by lr ((x - v) + lam (w - v)) and w by lr (x - w)."""
    task, population = point_task(), points()
    engine, lam = Serial(task, population), 2.0
    means = torch.stack([population.train.of(i)[0].mean(dim=0) for i in range(16)])
    w = play(Ditto(STEP, lam=lam), engine, 0).theta["w"]
    v = w.expand(16, 3)
    for rounds in (1, 2):
        engine.set_states({})
        state = play(Ditto(STEP, lam=lam), engine, rounds)
        v = v + 0.25 * ((means - v) + lam * (w - v))
        w = (w + 0.25 * (means - w)).mean(dim=0)
        torch.testing.assert_close(state.theta["w"], w)
        torch.testing.assert_close(torch.stack([engine.states()[i]["own/w"] for i in range(16)]), v)


def test_own_models_end_between_the_clients_target_and_the_global_model() -> None:
    """The minimum of |v - x|^2 / 2 + lam / 2 |v - w|^2 is (x + lam w) / (1 + lam), and w ends in the mean."""
    engine = Serial(point_task(), points(noise=0.0))
    play(Ditto(STEP, lam=1.0), engine, 60)
    for i, group in enumerate(TRUTH.tolist()):
        torch.testing.assert_close(engine.states()[i]["own/w"], TARGETS[group] / 2.0, atol=1e-3, rtol=0.0)


def test_the_global_model_is_fedavgs() -> None:
    check_same(Ditto(LOCAL, lam=0.7), FedAvg(LOCAL))
    check_same(Ditto(LOCAL, weights="uniform", aggregate=Median()), FedAvg(LOCAL, "uniform", Median()))
    check_method(Ditto(LOCAL, weights="uniform"))


def test_without_lam_clients_train_alone_from_the_first_model() -> None:
    engine, alone = Serial(small_task(), small_population()), Serial(small_task(), small_population())
    play(Ditto(LOCAL, lam=0.0), engine, 2)
    first = play(Ditto(LOCAL, lam=0.0), engine, 0).theta
    alone.set_states({i: {f"theta/{n}": t for n, t in first.items()} for i in range(12)})
    play(Local(LOCAL), alone, 2)
    for i in range(12):
        for n in first:
            assert torch.equal(engine.states()[i][f"own/{n}"], alone.states()[i][f"theta/{n}"])


def test_on_clients_that_differ_it_is_better_than_the_global_model() -> None:
    population = build(DataConfig(clients=12, unseen=4, clusters=4, shift="swap_labels", samples=60), keys.key(0))
    task = Task(build_model("mlp", (1, 8, 8), 10, widths=[32]), 10)
    found = Simulation(Ditto(LOCAL, lam=0.1), population, Stacked(task, population), Schedule(15, eval_every=15)).run()
    assert found.accuracy.mean > found.global_accuracy + 0.03
    assert found.unseen is not None and float(found.unseen.mean()) > found.global_accuracy


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"lam=-0\.1 should be at least 0"):
        Ditto(lam=-0.1)
