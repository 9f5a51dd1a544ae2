"""Ditto against a computation by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clusterfl import keys
from clusterfl.data import DataConfig, build
from clusterfl.engines import Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.method import Single
from clusterfl.methods import Ditto, FedAvg, Local
from clusterfl.models import build_model
from clusterfl.parts.aggregate import Median
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_method, check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import row, stack

from . import golden
from .points import TARGETS, TRUTH, point_task, points
from .small import LOCAL

STEP = SGD(lr=0.25, batch=8)  # one step a round, on all eight samples of a client

# `Server.train` of litian96/ditto, flearn/trainers_MTL/ditto.py, with lam = .7 and a learner in numpy (float64) in
# place of TensorFlow's, on the problem of golden.py with two clients, twice: the global model, then the clients' own
AUTHORS = (
    [[-0.028702, 0.025971, -0.058514, -0.127227, 0.014122, 0.068275, -0.382323, 0.752677, 0.254736, -0.367821,
      -0.012317, -0.495365, -0.298296, -0.116824, -0.124756],
     [0.214016, 0.084066, 0.213682, 0.137390, -0.213061, 0.140795, -0.054213, 0.705260, 0.239200, -0.498436,
      -0.612624, -0.712565, -0.215595, -0.243563, -0.080718],
     [-0.424879, -0.004223, -0.070847, -0.361008, 0.149066, 0.004774, -0.617887, 0.767066, 0.515968, -0.274126,
      0.235579, -0.275973, -0.343539, -0.086960, -0.109377]],
    [[0.154987, -0.000729, -0.260327, -0.123784, 0.023283, 0.080115, -0.493200, 0.726478, 0.061885, -0.352961,
      0.300372, -0.472610, -0.312171, -0.078360, -0.149344],
     [0.399725, 0.036331, -0.097288, 0.126050, -0.172312, 0.138541, -0.134718, 0.714767, 0.012743, -0.448447,
      -0.221148, -0.710733, -0.249047, -0.182737, -0.108092],
     [-0.231512, -0.030395, -0.211950, -0.321246, 0.188415, 0.023076, -0.669146, 0.781854, 0.283253, -0.266257,
      0.427942, -0.330524, -0.374968, -0.041203, -0.123704]],
)  # fmt: skip


def test_two_rounds_are_those_of_the_authors_code() -> None:
    engine, method = golden.engine(golden.TWO), Ditto(golden.STEPS, lam=0.7, weights="uniform")
    state = Single(row(golden.models(1), 0))
    for r in (0, 1):
        state = method.round(state, engine.cohort(torch.arange(2), keys.key(r), r))
        own = [{n: engine.states()[i][f"own/{n}"] for n in state.theta} for i in range(2)]
        found = golden.numbers(stack([state.theta, *own]))
        np.testing.assert_allclose(found, AUTHORS[r], atol=2e-6)


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
