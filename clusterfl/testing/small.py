"""A small problem on which a method shows in a moment what it does."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.base import BaseEngine
from clusterfl.method import Method
from clusterfl.task import Task

Kind = Literal["classification", "regression"]

CLIENTS, UNSEEN, CLUSTERS, CLASSES, WIDTH = 12, 2, 2, 3, 6


def small_task(kind: Kind = "classification") -> Task:
    """A small network with two layers, so that there is a body and a head."""
    if kind == "regression":
        return Task(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1)), loss="mse")
    indicators = small_population().indicators
    module = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    return Task(module, CLASSES, public=None if indicators is None else indicators[0])


def small_population(seed: int = 0, *, ragged: bool = True, kind: Kind = "classification") -> Population:
    """Two hidden groups: the same three blobs with labels in another order, or two linear maps of the same inputs.
    Sizes differ if ``ragged``."""
    key, classes = keys.key(seed), CLASSES if kind == "classification" else 0
    maps = keys.normal(keys.fold_in(key, "maps"), CLUSTERS, WIDTH)
    centers = 2.5 * keys.normal(keys.fold_in(key, "centers"), CLASSES, WIDTH)
    total = CLIENTS + UNSEEN
    truth = torch.arange(total) % CLUSTERS
    sides = []
    for side, base in (("train", 24), ("test", 15)):
        parts = []
        for i in range(total):
            n = base + (5 * (i % 3) if ragged else 0)
            k = keys.fold_in(key, side, i)
            y = torch.arange(n) % CLASSES
            x = centers[y] + keys.normal(k, n, WIDTH)
            if classes:
                parts.append((x, (y + int(truth[i])) % CLASSES))
            else:
                parts.append((x / 3.0, x @ maps[truth[i]] / 9.0 + 0.1 * keys.normal(keys.fold_in(k, "noise"), n)))
        sides.append(Shards.from_parts(parts))
    indicators = (centers + 0.1, torch.arange(CLASSES)) if classes else None
    return Population(sides[0], sides[1], CLIENTS, classes, name="small", truth=truth, indicators=indicators)


def play(
    method: Method[Any],
    engine: BaseEngine,
    rounds: int = 2,
    *,
    order: Tensor | None = None,
    some: float = 1.0,
    state: Any = None,
) -> Any:
    """The method's state after some rounds, without any measuring."""
    ids, root = torch.arange(engine.clients), keys.key(7)
    if state is None:
        state = method.init(engine.task, engine.cohort(ids, keys.fold_in(root, "init")), root)
    for t in range(rounds):
        chosen = keys.choice(keys.fold_in(root, "sample", t), len(ids), max(1, round(some * len(ids))))
        if order is not None:
            chosen = order[chosen]
        state = method.round(state, engine.cohort(ids[chosen], keys.fold_in(root, "round", t), t))
    return state
