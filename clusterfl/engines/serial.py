"""In this process: serial (one client after another, the reference) and stacked (vmap over chunks)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clusterfl.call import Call, Chunk
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine, newly_kept, take_back
from clusterfl.engines.chunks import Plan
from clusterfl.engines.worker import Worker
from clusterfl.task import Task
from clusterfl.tree import Tree, row


class Serial(BaseEngine):
    """One worker in this process; its plan says whether clients go one by one or stacked."""

    def __init__(self, task: Task, population: Population, plan: Plan | None = None, device: str | None = None) -> None:
        super().__init__(task, population)
        self.plan = plan or Plan()
        place = torch.device(device) if device else None
        self.worker = Worker(task, population.train, population.test, self.plan, place)

    def set_population(self, population: Population) -> None:
        super().set_population(population)
        self.worker.set_shards(population.train, population.test)

    def execute(self, call: Call) -> Iterator[Chunk]:
        self.worker.before = {}
        yield from self.worker.run(call)

    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]], *, outputs: bool = False) -> list[Tree]:
        return [self.worker.score_rows(row(models, k), rows, outputs=outputs) for k, rows in jobs]

    def states(self) -> dict[int, Tree]:
        return dict(sorted(self.worker.states.items()))

    def set_states(self, states: dict[int, Tree]) -> None:
        self.worker.states, self.worker.before = dict(states), {}

    def newly_kept(self, clients: list[int]) -> dict[int, Tree]:
        return newly_kept(self.worker.states, self.worker.before, clients)

    def take_back(self, clients: list[int]) -> None:
        take_back(self.worker.states, self.worker.before, clients)


class Stacked(Serial):
    """Serial with chunks of clients under ``vmap``: fastest for small dense models."""

    def __init__(self, task: Task, population: Population, plan: Plan | None = None, device: str | None = None) -> None:
        super().__init__(task, population, plan or Plan(stacked=True), device)
