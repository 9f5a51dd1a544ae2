"""Scores: against plain loops and scikit-learn, in every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from torch import nn

from clusterfl import keys
from clusterfl.data.population import Population, Shards
from clusterfl.engines import Pool, Serial, Stacked, Wire
from clusterfl.engines.base import BaseEngine
from clusterfl.evaluate import evaluate, personal_models, row_scores, score
from clusterfl.method import Method, Served
from clusterfl.methods import IFCA, FedPer, Local
from clusterfl.parts.local import SGD
from clusterfl.scores import Metric, class_counts, class_f1
from clusterfl.task import Task
from clusterfl.testing import CLIENTS, assert_close, assert_equal, play, small_population, small_task
from clusterfl.tree import concat, row

POPULATION, TASK = small_population(), small_task()


def test_scores_agree_between_engines_and_with_a_plain_loop() -> None:
    models = TASK.init_stack(keys.key(4), 3)
    ids, index = torch.arange(14), torch.arange(14) % 3
    scores = [score(make(TASK, POPULATION), models, index, ids) for make in (Serial, Stacked)]
    assert_close(scores[0], scores[1], "scores")
    for i in range(14):
        x, y = POPULATION.test.of(i)
        logits = TASK.logits({n: t[int(index[i])] for n, t in models.items()}, x)
        right = int((logits.argmax(1) == y).sum())
        loss = float(nn.functional.cross_entropy(logits, y, reduction="sum"))
        got = scores[0]
        assert (got.sums["correct"][i], got.samples[i]) == (right, len(y))
        assert float(got.sums["loss"][i]) == pytest.approx(loss, rel=1e-5)
        assert float(got.accuracy[i]) == right / len(y)
        assert float(got.mean_loss[i]) == pytest.approx(loss / len(y), rel=1e-5)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_f1_of_a_client(pairs: list[tuple[int, int]], padding: int) -> None:
    """Classes that are neither answered nor true do not count, nor does padding."""
    y, said = np.array(pairs).T
    w = torch.tensor([1.0] * len(pairs) + [0.0] * padding)
    padded = (torch.tensor(np.append(t, np.full(padding, t[0]))) for t in (said, y))
    counts = class_counts(*padded, w, 6)
    assert float(class_f1(counts)) == pytest.approx(f1_score(y, said, average="macro"))
    few = class_counts(torch.tensor(said), torch.tensor(y.clip(max=2)), torch.ones(len(y)), 3)  # 3 and 4: no class
    assert float(class_f1(few)) == pytest.approx(f1_score(y.clip(max=2), said.clip(max=3), average="macro"))


def test_a_client_without_samples_has_no_f1() -> None:
    assert bool(class_f1(torch.zeros(3, 2, 4)).isnan().all())


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


def test_scores_of_clients_that_share_samples_and_models_are_those_of_each_alone() -> None:
    """Whatever their sizes; a client without test samples has none."""
    x, y = keys.normal(keys.key(1), 40, 6), keys.randint(keys.key(2), TASK.classes, 40)
    held = [keys.choice(keys.fold_in(keys.key(3), i % 5), 40, (i % 5) * 3) for i in range(23)]
    shards = Shards.from_rows(x, y, held)
    population = Population(shards, shards, 23, TASK.classes)
    engine, models = Serial(TASK, population), TASK.init_stack(keys.key(4), 3)
    ids, index = keys.permutation(keys.key(5), 23), torch.arange(23) % 3
    together = score(engine, models, index, ids, metrics=TASK.metrics)
    for j, i in enumerate(ids.tolist()):
        alone = score(engine, models, index[j : j + 1], ids[j : j + 1], metrics=TASK.metrics)
        assert float(together.samples[j]) == len(held[i])
        for name, values in together.by_name().items():
            torch.testing.assert_close(values[j : j + 1], alone.by_name()[name], rtol=1e-6, atol=1e-7, equal_nan=True)
        x_i, y_i = shards.of(i)
        rows = row_scores(TASK, row(models, int(index[j])), x_i, y_i)
        assert float(together.sums["correct"][j]) == float(rows["correct"].sum())
    assert bool(together.accuracy[held_nothing(held, ids)].isnan().all())


def held_nothing(held: list[torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    return torch.tensor([not len(held[i]) for i in ids.tolist()])


def test_a_metric_without_a_stacked_form_is_made_client_by_client() -> None:
    plain = Metric("spread", lambda outputs, y: outputs.std())
    stacked = Metric("spread", plain.of, stacked=lambda outputs, y: outputs.flatten(1).std(dim=1))
    engine, models = Serial(TASK, POPULATION), TASK.init_stack(keys.key(4), 2)
    ids = torch.arange(CLIENTS)
    found = [score(engine, models, ids % 2, ids, metrics=[m]).of("spread") for m in (plain, stacked)]
    torch.testing.assert_close(*found)
