"""What is timed: real MNIST where it is at hand, else made data of the same shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.registry import load_source
from clusterfl.data.shards import Shards
from clusterfl.errors import DataError
from clusterfl.models import build_model
from clusterfl.models.layers import named
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Workload:
    """Clients, a model and a local rule; ``method`` names what is timed around it."""

    name: str
    model: str
    clients: int
    samples: int
    batch: int
    steps: int
    params: dict[str, Any] = field(default_factory=dict)
    method: str = "fedavg"

    @property
    def rule(self) -> SGD:
        return SGD(lr=0.05, batch=self.batch, steps=self.steps)

    def task(self) -> Task:
        return Task(build_model(self.model, (1, 28, 28), 10, **self.params), 10)


_LENET: dict[str, Any] = {"model": "lenet", "clients": 48, "samples": 1000, "batch": 50}

WORKLOADS = {
    w.name: w
    for w in (
        Workload("mclr", "mclr", 100, 600, 32, 19),
        Workload("mlp", "mlp", 100, 600, 32, 19, {"widths": (200,)}),
        Workload("lenet", steps=20, **_LENET),
        Workload("cnn", "cnn", 16, 320, 32, 10),
        Workload("ifca", steps=20, method="ifca", **_LENET),
        Workload("md-icfl", steps=40, method="md-icfl", **_LENET),
        Workload("md-icfl-warm", steps=40, method="md-icfl-warm", **_LENET),
    )
}

TEST = 1000  # test samples of every client


def population(work: Workload, root: Path | None) -> tuple[Population, str]:
    """The clients of a workload and where their samples come from."""
    try:
        source = load_source("mnist", root)
        x = torch.as_tensor(source.x_train).reshape(-1, 1, 28, 28).float().div(127.5).sub(1.0)
        y = torch.as_tensor(source.y_train).long()
        xt = torch.as_tensor(source.x_test)[:TEST].reshape(-1, 1, 28, 28).float().div(127.5).sub(1.0)
        yt = torch.as_tensor(source.y_test)[:TEST].long()
        name = "mnist"
    except DataError:
        key, n = keys.key(0), work.clients * work.samples
        x, y = keys.normal(keys.fold_in(key, "x"), n, 1, 28, 28), keys.randint(keys.fold_in(key, "y"), 10, n)
        xt, yt = keys.normal(keys.fold_in(key, "xt"), TEST, 1, 28, 28), keys.randint(key, 10, TEST)
        name = "made data of MNIST's shape (MNIST is not at hand)"
    rows = [torch.arange(i * work.samples, (i + 1) * work.samples) % len(y) for i in range(work.clients)]
    test = [torch.arange(TEST)] * work.clients
    return Population(Shards.from_rows(x, y, rows), Shards.from_rows(xt, yt, test), work.clients, 10, name), name


def plain_module(work: Workload) -> nn.Module:
    """The model as a PyTorch user writes it, with the same parameters by the same names."""
    module = build_model(work.model, (1, 28, 28), 10, **work.params)
    if work.model == "lenet":
        module.encoder = named(
            conv1=nn.Conv2d(1, 6, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(256, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
        )
    return module


def plain_loop(work: Workload, pop: Population, ids: range, start: Tree, threads: int, seed: int) -> Tree:
    """What a careful PyTorch user writes: one module, one optimiser, indexed batches; returns summed weights."""
    torch.set_num_threads(threads)
    module = plain_module(work)
    order = torch.Generator().manual_seed(seed)
    total: Tree = {}
    for i in ids:
        module.load_state_dict(start)
        optimiser = torch.optim.SGD(module.parameters(), lr=work.rule.lr)
        x, y = pop.train.x, pop.train.y
        rows = pop.train.rows_of(i)
        rows = rows[torch.randperm(len(rows), generator=order)]
        for at in [rows[(t * work.batch) % len(rows) :][: work.batch] for t in range(work.steps)]:
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x[at]), y[at]).backward()
            optimiser.step()
        with torch.no_grad():
            for name, t in module.state_dict().items():
                total[name] = total[name] + t if name in total else t.clone()
    return total
