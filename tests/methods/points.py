"""A problem whose answers are known: the model is a point, and each client is drawn to its group's target.

One round of local training moves a client a fixed share of the way to its own target, so FedAvg ends in the
mean of its clients' targets, where their updates cancel out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.parts.local import SGD
from clusterfl.task import Task

LOCAL = SGD(lr=0.3, batch=4, epochs=1)
# two levels: the first coordinate parts {0, 1} from {2, 3}, the second parts the members of each
TARGETS = torch.tensor([[4.0, 3.0, 0.0], [4.0, -3.0, 0.0], [-4.0, 0.0, 3.0], [-4.0, 0.0, -3.0]])
TRUTH = torch.tensor([0, 2, 1, 3, 2, 0, 3, 1, 1, 3, 0, 2, 3, 2, 1, 0])  # neighbours differ


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def point_task() -> Task:
    return Task(Point(), 3, lambda gap, y: gap.square().sum(dim=-1) / 2)


def points(
    truth: Tensor = TRUTH, targets: Tensor = TARGETS, *, unseen: int = 0, noise: float = 0.02, seed: int = 0
) -> Population:
    parts = []
    for i, group in enumerate(truth.tolist()):
        x = targets[group] + noise * keys.normal(keys.fold_in(keys.key(seed), i), 8, 3)
        parts.append((x, torch.zeros(8, dtype=torch.int64)))
    shards = Shards.from_parts(parts)
    return Population(shards, shards, len(truth) - unseen, 3, truth=truth)
