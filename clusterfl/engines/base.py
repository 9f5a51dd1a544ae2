"""What every engine shares: cohorts, metering, scoring, client state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clusterfl.client import Call, Chunk, Client, Cohort, Traffic, on_client
from clusterfl.data.population import Population
from clusterfl.keys import Key
from clusterfl.method import Method, Procedures, Served
from clusterfl.task import Task
from clusterfl.tree import Tree, rows, take

EVAL_BATCH = 500  # images at a time: batches over about a thousand cost more per image


@dataclass(frozen=True)
class Spent:
    """A run's privacy: (epsilon, delta) of the client with most uploads, and what it does not cover."""

    epsilon: float
    delta: float
    uploads: int
    uncovered: tuple[str, ...]  # "procedure: field"


class BaseEngine(ABC):
    """An engine over a population."""

    def __init__(self, task: Task, population: Population) -> None:
        self.task = task
        self.clients = population.clients
        self.traffic = Traffic()
        self.holds = population

    @abstractmethod
    def execute(self, call: Call) -> Iterator[Chunk]:
        """Runs a call on its clients; yields replies in chunks, clients in the order of ``call.ids``."""

    @abstractmethod
    def score_rows(self, models: Tree, jobs: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """For each job (model k, test rows): ``[rows, 3]``, right or wrong, loss and answer of each row."""

    @abstractmethod
    def states(self) -> dict[int, Tree]:
        """What clients keep, by id."""

    @abstractmethod
    def set_states(self, states: dict[int, Tree]) -> None:
        """Puts back what clients kept (a resume)."""

    def hold(self, population: Population) -> None:
        """From now on the same clients hold other data (a drift); what they keep stays with them."""
        self.holds = population

    def able(self, ids: Tensor) -> Tensor:
        """The positions of those that can answer: a client without training data is never asked."""
        return (self.holds.train.sizes[ids] > 0).nonzero().flatten()

    def rejections(self) -> int:
        """How many replies were turned down so far."""
        return 0

    def epsilon(self) -> float | None:
        """The privacy that the rounds so far have spent; None where nothing is accounted (engines/privacy.py)."""
        return None

    def spent(self) -> Spent | None:
        """What was ever charged."""
        return None

    def cohort(self, ids: Tensor, key: Key, round: int = 0) -> Cohort:
        return Cohort(self, ids, key, round)

    def score(self, models: Tree, index: Tensor, ids: Tensor, *, f1: bool = False) -> Tensor:
        """``[len(ids), 3]``: correct, summed loss and samples of each client's test data under its model;
        with ``f1`` a fourth column, its F1 (:func:`class_f1`).

        Clients that share a model are evaluated together, and samples that they share only once.
        """
        shards = [self.holds.test.rows_of(i) for i in ids.tolist()]
        jobs: list[tuple[int, Tensor]] = []
        places: list[tuple[list[int], Tensor, int]] = []
        pool = len(self.holds.test.y)
        for k in index.unique().tolist():
            members = (index == k).nonzero().flatten().tolist()
            used = torch.zeros(pool, dtype=torch.bool)
            for j in members:
                used[shards[j]] = True
            pieces = used.nonzero().flatten().split(EVAL_BATCH)
            jobs += [(k, rows) for rows in pieces]
            places.append((members, used.cumsum(0) - 1, len(pieces)))
        results = iter(self.score_rows(models, jobs))
        out = torch.zeros(len(ids), 4 if f1 else 3, dtype=torch.float64)
        for members, place, n in places:
            got = torch.cat([next(results) for _ in range(n)])
            sums, said = got[:, :2].contiguous(), got[:, 2].long()
            for j in members:  # one by one: thousands of clients may share a few samples
                out[j, :2], out[j, 2] = sums[place[shards[j]]].sum(dim=0), len(shards[j])
                if f1:
                    y = self.holds.test.y[shards[j]]
                    counts = class_counts(said[place[shards[j]]], y, torch.ones(len(y)), self.task.classes)
                    out[j, 3] = class_f1(counts)
        return out

    def evaluate(
        self, method: Method[Any], served: Served, ids: Tensor, key: Key, round: int = 0, *, f1: bool = False
    ) -> Tensor:
        """:meth:`score` of the models that clients really use, personal ones included. Not metered."""
        if not served.personal:
            return self.score(served.models, served.index, ids, f1=f1)
        call = Call(
            PersonalScore(method, f1),
            "score",
            ids,
            served.shared,
            {"theta": take(served.models, served.index)},
            key,
            round,
        )
        out = torch.zeros(len(ids), 4 if f1 else 3, dtype=torch.float64)
        out[:, 3:] = torch.nan  # of clients that do not answer
        for chunk in self.execute(replace(call, measure=True)):
            fields: dict[str, Any] = chunk.fields
            out[chunk.positions, :3] = fields["scores"].double()
            if f1:
                out[chunk.positions, 3] = class_f1(fields["counts"])
        return out

    def cross(self, models: Tree, ids: Tensor) -> Tensor:
        """Accuracy ``[len(ids), K]`` of every model on every client's test data."""
        columns = []
        for k in range(rows(models)):
            got = self.score(models, torch.full((len(ids),), k), ids)
            columns.append(got[:, 0] / got[:, 2])
        return torch.stack(columns, dim=1)

    def close(self) -> None:  # noqa: B027 (most engines have nothing to end)
        """Ends what the engine started."""

    def __enter__(self) -> BaseEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class PersonalScore(Procedures):
    """Scores a method's personal models on the client, where they live."""

    method: Method[Any]
    f1: bool = False

    @on_client
    def score(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Tensor]:
        mine: Any = self.method.personalise(me, theta, **shared)["theta"]
        total = torch.zeros(3, device=me.key.device)
        counts = torch.zeros(2, me.task.classes + 1, device=me.key.device)
        for x, y, w in me.test.pieces():
            logits = me.task.logits(mine, x)
            right = (logits.argmax(-1) == y).float()
            losses = me.task.per_sample(logits, y)
            ones = torch.ones_like(losses) if w is None else w
            total = total + torch.stack([(right * ones).sum(), (losses * ones).sum(), ones.sum()])
            if self.f1:
                counts = counts + class_counts(logits.argmax(-1), y, ones, me.task.classes)
        return {"scores": total, "counts": counts} if self.f1 else {"scores": total}


def class_counts(said: Tensor, y: Tensor, w: Tensor, classes: int) -> Tensor:
    """``[2, C + 1]``: right answers of each class, and answers plus labels of it; ``w`` is 0 for padding.

    A model may have outputs for which there is no class: the last column.
    """
    said, none = said.clamp(max=classes), torch.zeros(classes + 1, device=y.device)
    right = none.scatter_add(0, y, w * (said == y))
    return torch.stack([right, none.scatter_add(0, said, w).scatter_add(0, y, w)])


def class_f1(counts: Tensor) -> Tensor:
    """F1 out of :func:`class_counts`: the mean over the classes that are answered or true."""
    right, both = counts.double().unbind(dim=-2)
    return (2.0 * right / both.clamp(min=1.0)).sum(dim=-1) / (both > 0).sum(dim=-1)
