"""IFCA: the least loss on training data decides, and nothing else."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.engines import Serial, Stacked
from clusterfl.method import Clusters
from clusterfl.methods import IFCA
from clusterfl.parts.local import SGD
from clusterfl.testing.small import CLIENTS, UNSEEN, small_population, small_task
from clusterfl.tree import row

LOCAL = SGD(lr=0.05, batch=10)


@pytest.mark.parametrize("engine", [Serial, Stacked])
def test_the_least_loss_on_training_data_decides(engine: type[Serial]) -> None:
    """By hand. The opposite sign, or the loss on test data, would choose other centres."""
    task, population, k = small_task(), small_population(), 3
    centers = {n: 2.0 * t for n, t in task.init_stack(keys.key(2), k).items()}
    wanted = []
    for i in range(CLIENTS + UNSEEN):
        x, y = population.train.of(i)
        with torch.no_grad():
            loss = [torch.nn.functional.cross_entropy(task.logits(row(centers, j), x), y) for j in range(k)]
        wanted.append(int(torch.stack(loss).argmin()))
    assert len(set(wanted)) > 1
    method, made = IFCA(k=k, local=LOCAL), engine(task, population)
    start = Clusters(centers, torch.zeros(CLIENTS, dtype=torch.int64))
    after = method.round(start, made.cohort(torch.arange(CLIENTS), keys.key(0)))
    assert after.assign.tolist() == wanted[:CLIENTS]
    new = method.admit(start, made.cohort(torch.arange(CLIENTS, CLIENTS + UNSEEN), keys.key(0)))
    assert new.index.tolist() == wanted[CLIENTS:]


def test_nobody_in_a_cluster_leaves_its_model() -> None:
    task = small_task()
    centers = task.init_stack(keys.key(2), 2)
    centers = {n: torch.stack([t[0], 50.0 + t[1]]) for n, t in centers.items()}  # the second fits nobody
    engine = Serial(task, small_population())
    start = Clusters(centers, torch.zeros(CLIENTS, dtype=torch.int64))
    after = IFCA(k=2, local=LOCAL).round(start, engine.cohort(torch.arange(CLIENTS), keys.key(0)))
    assert after.assign.tolist() == [0] * CLIENTS
    assert all(torch.equal(t[1], after.centers[n][1]) for n, t in centers.items())
