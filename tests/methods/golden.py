"""A problem small enough for the authors' code of any method to be run on it: its numbers are in the methods' tests.

Linear models with 4 inputs and 3 classes, clients of unlike sizes in two groups whose labels mean other things, whole
clients as batches (so that no order matters), all drawn from keys.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.tree import Tree

ROOT, WIDTH, CLASSES = keys.key(19), 4, 3
TWO, SIX = (6, 9), (6, 9, 6, 12, 9, 6)  # samples of the clients
STEPS = SGD(lr=0.5, batch=100, epochs=3)


def population(sizes: tuple[int, ...]) -> Population:
    """Client i is of group i mod 2, whose labels are those of the blobs, moved on by i mod 2."""
    means, parts = 1.5 * keys.normal(keys.fold_in(ROOT, "means"), CLASSES, WIDTH), []
    for i, n in enumerate(sizes):
        blob = torch.arange(n) % CLASSES
        x = means[blob] + keys.normal(keys.fold_in(ROOT, "x", i), n, WIDTH)
        parts.append((x, (blob + i % 2) % CLASSES))
    shards = Shards.from_parts(parts)
    return Population(shards, shards, len(sizes), CLASSES, name="golden", truth=torch.arange(len(sizes)) % 2)


def models(k: int) -> Tree:
    """K models, all weights drawn."""
    weight = keys.normal(keys.fold_in(ROOT, "weight"), k, CLASSES, WIDTH)
    return {"weight": 0.5 * weight, "bias": 0.1 * keys.normal(keys.fold_in(ROOT, "bias"), k, CLASSES)}


def task() -> Task:
    return Task(nn.Linear(WIDTH, CLASSES), CLASSES)


def engine(sizes: tuple[int, ...]) -> Serial:
    return Serial(task(), population(sizes))


def numbers(tree: Tree) -> list[list[float]]:
    """Of each of the K models its weights, row by row, and then its biases."""
    flat = torch.cat([tree["weight"].flatten(1), tree["bias"]], dim=1)
    return cast(list[list[float]], flat.tolist())
