"""What tests of several rooms share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.task import Task
from clusterfl.tree import Tree


def alone(task: Task, shape: tuple[int, ...], key: Tensor | None = None) -> Client:
    """The "me" of server work."""
    none = Shard(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 0)
    return Client(task, none, none, keys.key(5) if key is None else key)


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def by_hand(theta: Tree, x: np.ndarray) -> np.ndarray:
    """The small task's net, in numpy."""
    w = {n: t.double().numpy() for n, t in theta.items()}
    hidden = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0.0)
    return _softmax(hidden @ w["2.weight"].T + w["2.bias"])


def batch_norm_task(dropout: float = 0.2) -> Task:
    """A net with buffers and dropout for the small population."""
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
    return Task(nn.Sequential(*layers), 3)
