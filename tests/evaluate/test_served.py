"""Models that clients really use: scores against plain loops and scikit-learn, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn

from clusterfl import keys
from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.evaluate.served import evaluate, personal_models, visits
from clusterfl.method import Method, Served
from clusterfl.methods import IFCA, FedPer, Local
from clusterfl.parts.local import SGD
from clusterfl.scores import Metric
from clusterfl.task import Task
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLIENTS, play, small_population, small_task
from clusterfl.tree import concat, row

POPULATION, TASK = small_population(), small_task()


def answers(method: Method, served: Served, engine: BaseEngine) -> list[tuple[np.ndarray, np.ndarray]]:
    """Labels and answers of every client under the model that it uses, found without the engine's scoring."""
    parts = personal_models(engine, method, served, torch.arange(CLIENTS), keys.key(3))
    own = concat([models for _, models in parts])
    task, found = small_task(), []
    for i in range(CLIENTS):
        x, y = small_population().test.of(i)
        with torch.no_grad():
            found.append((y.numpy(), task.logits(row(own, i), x).argmax(1).numpy()))
    return found


@pytest.mark.parametrize("make", [Serial, Stacked, Wire, Pool], ids=lambda make: make.__name__)
def test_f1_in_every_engine(make: type[BaseEngine]) -> None:
    rule = SGD(batch=10)
    ids = torch.arange(CLIENTS)
    with make(small_task(), small_population()) as engine:
        for method in (IFCA(k=2, local=rule), Local(local=rule), FedPer(local=rule)):
            engine.set_states({})
            served = method.serve(play(method, engine), ids)
            found = answers(method, served, engine)
            scores = evaluate(engine, method, served, ids, keys.key(3), metrics=engine.task.metrics)
            plain = evaluate(engine, method, served, ids, keys.key(3))
            assert_equal((scores.sums, scores.samples), (plain.sums, plain.samples), "asking for more changes nothing")
            assert not plain.whole and set(scores.whole) == {"f1", "auc", "log_loss"}
            for i, (y, said) in enumerate(found):
                assert float(scores.sums["correct"][i]) == (y == said).sum()
                assert float(scores.of("f1")[i]) == pytest.approx(f1_score(y, said, average="macro"))


@pytest.mark.parametrize("make", [Serial, Stacked, Wire, Pool], ids=lambda make: make.__name__)
def test_scores_of_numbers_in_every_engine(make: type[BaseEngine]) -> None:
    """Shared and personal models, with a metric of the caller's own, against plain arithmetic."""
    own = Metric("farthest", farthest, "lower")
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    task, population = Task(net, loss="mse", metrics=[own]), small_population(kind="regression")
    ids, rule = torch.arange(CLIENTS), SGD(batch=10)
    with make(task, population) as engine:
        for method in (IFCA(k=2, local=rule), FedPer(local=rule)):
            engine.set_states({})
            served = method.serve(play(method, engine), ids)
            scores = evaluate(engine, method, served, ids, keys.key(3), metrics=task.metrics)
            models = concat([m for _, m in personal_models(engine, method, served, ids, keys.key(3))])
            for i in range(CLIENTS):
                x, y = population.test.of(i)
                with torch.no_grad():
                    off = (task.logits(row(models, i), x).squeeze(1) - y).double()
                expected = {"rmse": off.square().mean().sqrt(), "mae": off.abs().mean(), "farthest": off.abs().max()}
                expected |= {"loss": off.square().mean(), "r2": 1 - off.square().sum() / (y - y.mean()).square().sum()}
                assert set(scores.by_name()) == set(expected)
                for name, value in expected.items():
                    assert float(scores.of(name)[i]) == pytest.approx(float(value), rel=1e-4), name


def farthest(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs.squeeze(1) - y).abs().max()


def test_outputs_that_are_not_numbers_are_never_right() -> None:
    """NaN once counted as class 0: accuracy .5 where half of the labels are 0."""
    models = {n: t * torch.nan for n, t in TASK.init_stack(keys.key(4), 1).items()}
    ids, index = torch.arange(CLIENTS), torch.zeros(CLIENTS, dtype=torch.int64)
    for make in (Serial, Stacked):
        for personal in (False, True):
            served = Served(models, index, personal=personal)
            found = evaluate(make(TASK, POPULATION), IFCA(k=1), served, ids, keys.key(0), metrics=TASK.metrics)
            assert not found.sums["correct"].any() and not found.of("f1").any()


@pytest.mark.parametrize(("guests", "hosts"), [(5, 5), (9, 1), (1, 9), (2, 300), (60, 40), (300, 7), (7, 300)])
def test_guests_visit_the_clients_of_a_group_evenly(guests: int, hosts: int) -> None:
    """What is said of models abroad is of a whole group, not of those of its members that numbers happen to hit."""
    ids = torch.arange(100, 100 + hosts)
    found = torch.stack(list(visits(guests, ids)))
    counts = (found.flatten() - 100).bincount(minlength=hosts)
    assert found.shape[1] == guests and int(counts.min()) >= 1 and int(counts.max() - counts.min()) <= 1
    assert all(len(mine.unique()) == len(mine) for mine in found.T), "a guest visits nobody twice"
    if guests * hosts <= 100:
        assert set(counts.tolist()) == {guests}
    assert not list(visits(0, ids))
