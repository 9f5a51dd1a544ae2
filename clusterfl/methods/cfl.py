"""CFL (Sattler et al., 2020): train together until the clients pull apart, then split in two, again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Clusters, Method, Served, State, log_clusters, serve_clusters
from clusterfl.parts.aggregate import mean_by
from clusterfl.parts.hierarchy import bipartition, cosine
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, sgd
from clusterfl.task import Task
from clusterfl.tree import Tree, concat, flat, put, repeat, row, subtract, take


@dataclass(frozen=True)
class Split(State):
    """An inner node of the tree: ``parent`` was cut in two, and those who left became ``child``."""

    parent: int
    child: int
    round: int
    theta: Tree  # the model from which the updates below were made
    directions: Tensor  # [2, P]: the mean update of those who stayed and of those who left


@dataclass(frozen=True)
class CFLState(Clusters):
    """The clusters so far, and how they came about."""

    splits: tuple[Split, ...]
    passed: Tensor  # [N] int64: how many of the splits each client has been through
    peak: Tensor  # 0-d: the largest norm of a mean update so far


@dataclass(frozen=True)
class CFL(Method[CFLState]):
    """Recursive bipartition by the cosine of updates, once a cluster is stationary and its clients are not."""

    name: ClassVar[str] = "cfl"
    summary: ClassVar[str] = "one cluster, cut in two wherever updates cancel out but are not small; finds K itself"
    paper: ClassVar[str] = "Sattler, Müller, Samek, IEEE TNNLS 2020"

    local: SGD = SGD()
    relative: bool = True
    r1: float = 0.1
    r2: float = 4.0
    eps1: float = 0.4
    eps2: float = 1.6
    start_round: int = 20
    min_size: int = 3
    gamma: float | None = None
    linkage: Literal["single", "complete"] = "single"

    def init(self, task: Task, cohort: Cohort, key: Key) -> CFLState:
        none = torch.zeros(len(cohort), dtype=torch.int64)
        return CFLState(repeat(first_net(task, key), 1), none, (), none.clone(), torch.zeros(()))

    def round(self, state: CFLState, cohort: Cohort) -> CFLState:
        before = state.assign
        state, cohort = self.catch_up(state, cohort)
        got = cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]))
        moves = flat(subtract(got["theta"], take(state.centers, state.assign[got.ids])), cohort.task.params)
        for c in range(state.k):
            state = self.maybe_split(state, cohort, c, got.ids, moves)
        s = state.assign[got.ids]
        centers = mean_by(got["theta"], s, old=state.centers)
        log_clusters(cohort, before, state.assign, state.k)
        return replace(state, centers=centers)

    def maybe_split(self, state: CFLState, cohort: Cohort, c: int, ids: Tensor, moves: Tensor) -> CFLState:
        members, order = ids[state.assign[ids] == c].sort()
        if not len(members):
            return state
        own = moves[state.assign[ids] == c][order]
        mean, largest = own.mean(dim=0).norm(), own.norm(dim=1).max()
        state = replace(state, peak=torch.maximum(state.peak, mean))
        cohort.log(**{f"mean_norm_{c}": float(mean), f"max_norm_{c}": float(largest)})
        similarity = cosine(own, own)
        eps1 = self.r1 * float(state.peak) if self.relative else self.eps1
        eps2 = self.r2 * eps1 if self.relative else self.eps2
        if cohort.round < self.start_round or len(members) < self.min_size or mean >= eps1 or largest <= eps2:
            return state
        leaves = bipartition(similarity, self.linkage)
        if self.gamma is not None and ((1.0 - similarity[leaves][:, ~leaves].max()) / 2).sqrt() <= self.gamma:
            return state
        directions = torch.stack([own[~leaves].mean(dim=0), own[leaves].mean(dim=0)])
        theta = row(state.centers, c)
        split = Split(c, state.k, cohort.round, theta, directions)
        return CFLState(
            concat([state.centers, repeat(theta, 1)]),
            put(state.assign, members[leaves], torch.tensor(state.k)),
            (*state.splits, split),
            put(state.passed, members, torch.tensor(len(state.splits) + 1)),
            state.peak,
        )

    def catch_up(self, state, cohort):
        return state, cohort

    def serve(self, state: CFLState, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local)}
