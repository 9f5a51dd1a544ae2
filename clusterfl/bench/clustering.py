"""The server's clustering of thousands of models: what it takes, and whether it finds the groups that are in them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.bench.machine import peak_kb
from clusterfl.keys import Key
from clusterfl.methods.cfl import CFL
from clusterfl.methods.fl_hc import FLHC
from clusterfl.methods.robust_tkm import RobustTKM
from clusterfl.models import build_model
from clusterfl.parts.kmeans import sketched_trimmed_kmeans
from clusterfl.parts.sketch import Moves
from clusterfl.parts.start import Start
from clusterfl.task import Task
from clusterfl.tree import Tree

GROUPS = 4
BLOCK = 20  # models that are made at a time


@dataclass(frozen=True)
class Clustering:
    """What it took to cluster ``models`` models once."""

    way: str
    models: int
    parameters: int
    seconds: float
    cpu_seconds: float
    models_mb: float
    beside_mb: float  # the most memory that was taken beside the models
    ari: float  # against the groups; of CFL, which cuts in two, whether no group is torn

    def json(self) -> dict[str, Any]:
        return asdict(self)


def _fl_hc(moves: Moves, key: Key) -> Tensor:
    return FLHC(k=GROUPS).groups(moves, key)[0]


def _kmeans_start(moves: Moves, key: Key) -> Tensor:
    return Start("kmeans-local").groups(moves, key, GROUPS)


def _cfl(moves: Moves, key: Key) -> Tensor:
    moves.mean(), moves.norms()  # by which it decides whether to cut
    return CFL().cut(moves, key)[0].long()


def _robust_tkm(moves: Moves, key: Key) -> Tensor:
    return sketched_trimmed_kmeans(moves, GROUPS, key, attackers=RobustTKM().attackers)[0]


WAYS: dict[str, Callable[[Moves, Key], Tensor]] = {
    "fl-hc": _fl_hc,
    "kmeans-local": _kmeans_start,
    "cfl": _cfl,
    "robust-tkm": _robust_tkm,
}


def made(models: int, task: Task, key: Key, apart: float) -> tuple[Moves, Tensor]:
    """Models that moved from one start in their group's direction, ``apart`` of their own noise; and their groups."""
    start, truth = task.init(keys.fold_in(key, "start")), torch.arange(models) % GROUPS
    theta: Tree = {n: torch.empty(models, *start[n].shape) for n in task.params}
    for n, t in theta.items():
        groups = apart * keys.normal(keys.fold_in(key, n), GROUPS, *start[n].shape)
        for rows in torch.arange(models).split(BLOCK):
            noise = keys.normal(keys.fold_in(key, n, "noise", int(rows[0])), len(rows), *start[n].shape)
            t[rows] = start[n] + groups[truth[rows]] + noise
    return Moves.of(theta, start, task.params), truth


def clustering(
    way: str, models: int, model: str = "lenet", input_shape: tuple[int, ...] = (1, 28, 28), apart: float = 0.3
) -> Clustering:
    """One clustering; run it in a process of its own, so that its memory is its own."""
    task = Task(build_model(model, input_shape, 10), 10)
    moves, truth = made(models, task, keys.key(0), apart)
    before, clock, worked = peak_kb(os.getpid()), time.perf_counter(), time.process_time()
    found = WAYS[way](moves, keys.key(1))
    seconds, worked = time.perf_counter() - clock, time.process_time() - worked
    beside = (peak_kb(os.getpid()) - before) / 1024
    held = 4 * models * moves.width / 2**20
    return Clustering(way, models, moves.width, seconds, worked, held, beside, agreement(found, truth))


def agreement(found: Tensor, truth: Tensor) -> float:
    """ARI against the true groups; of two sides, against the groups joined as most of their members are."""
    from sklearn.metrics import adjusted_rand_score

    sides = int(found.max()) + 1
    if sides == 2:
        truth = torch.stack([found[truth == g].mode().values for g in range(GROUPS)])[truth]
    return float(adjusted_rand_score(truth, found)) if sides > 1 else 0.0
