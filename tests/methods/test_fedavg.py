"""FedAvg: the mean is weighted by how many samples clients have, buffers and all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clusterfl import keys
from clusterfl.engines import Serial, Stacked
from clusterfl.method import Single
from clusterfl.methods import FedAvg
from clusterfl.parts.local import SGD, Train
from clusterfl.task import Task
from clusterfl.testing.small import CLIENTS, small_population

LOCAL = SGD(lr=0.1, batch=8)


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("engine", [Serial, Stacked])
def test_the_mean_by_hand(engine: type[Serial], weights: str) -> None:
    """Sizes are counts of samples (a count of anything else would weigh all alike); integer buffers stay integers."""
    task = Task(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), 3)
    population, ids = small_population(), torch.arange(CLIENTS)
    theta = task.init(keys.key(1))
    made = engine(task, population)
    got = made.cohort(ids, keys.key(4)).run(Train(LOCAL).train, {"theta": theta})
    counts = torch.tensor([len(population.train.of(i)[1]) for i in range(CLIENTS)]).double()
    assert got["n"].tolist() == counts.tolist() and len(counts.unique()) > 1
    after = FedAvg(LOCAL, weights=weights).round(Single(theta), made.cohort(ids, keys.key(4))).theta  # type: ignore[arg-type]
    w = counts if weights == "size" else torch.ones(CLIENTS).double()
    for name, t in got["theta"].items():
        if t.is_floating_point():
            wanted = torch.einsum("m,m...->...", w / w.sum(), t.double())
            torch.testing.assert_close(after[name].double(), wanted, rtol=1e-5, atol=1e-6)
        else:
            assert after[name].dtype == torch.int64 and int(after[name]) in t.tolist()
