"""Models that clients share: scores against plain loops, in every engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial, Stacked
from clusterfl.evaluate.procedures import row_scores
from clusterfl.evaluate.shared import score
from clusterfl.scores import Metric
from clusterfl.testing.compare import assert_close
from clusterfl.testing.small import CLIENTS, small_population, small_task
from clusterfl.tree import row

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
