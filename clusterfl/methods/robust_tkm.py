"""Robust-TKM (Ghosh et al., 2019): local models, clustered once by trimmed k-means, then robust training."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client, Cohort, Payload, Replies, on_client
from clusterfl.errors import NoReplies
from clusterfl.keys import Key
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.assign import nearest
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.robust import Rule, aggregate_by, check_rule, combiner, trimmed_kmeans
from clusterfl.task import Task
from clusterfl.tree import Tree, flat, put, repeat, take


@dataclass(frozen=True)
class Homes(Clusters):
    """K models, and what a client that comes later is placed by."""

    start: Tree  # where every local ERM begins
    homes: Tensor  # [K, P]: the trimmed k-means centres of the local models
    known: Tensor  # [N] bool: who has been placed


@dataclass(frozen=True)
class RobustTKM(Method[Homes]):
    """Three stages: local ERM on every client, trimmed k-means of what comes back, robust training per cluster."""

    name: ClassVar[str] = "robust-tkm"
    summary: ClassVar[str] = "trimmed k-means of local models once, then robust aggregation in every cluster"
    paper: ClassVar[str] = "Ghosh, Hong, Yin, Ramchandran, 2019"

    k: int = 4
    local: SGD = SGD()
    erm_epochs: int = 10  # the paper's ERM is exact
    aggregate: Rule = "trimmed"
    attackers: float = 0.2  # the share of a cluster's clients that k-means and training withstand

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} should be at least 1")
        if self.erm_epochs < 1:
            raise ValueError(f"erm_epochs={self.erm_epochs} should be at least 1")
        check_rule(self.aggregate, self.attackers)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Homes:
        if not 1 <= self.k <= len(cohort):
            raise ValueError(f"k={self.k} should be between 1 and the number of clients, {len(cohort)}")
        start = first_net(task, key)
        got = cohort.run(self.erm, {"theta": start})  # stage 1
        if self.k > len(got):
            raise ValueError(f"k={self.k} should not exceed the {len(got)} clients that answered the first round")
        points = flat(got["theta"], task.params)
        s, homes = trimmed_kmeans(points, self.k, keys.fold_in(key, "kmeans"), attackers=self.attackers)  # stage 2
        log_margin(cohort, nearest(points, homes))
        old = repeat(start, self.k)
        centers = aggregate_by(got["theta"], s, old=old, rule=self.aggregate, attackers=self.attackers)
        nobody = torch.zeros(len(cohort), dtype=torch.int64)
        return Homes(centers, put(nobody, got.ids, s), start, homes, put(nobody.bool(), got.ids, torch.ones(len(got))))

    def round(self, state: Homes, cohort: Cohort) -> Homes:
        before = state.assign
        state = self.place(state, cohort)
        cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        mean = combiner(self.aggregate, self.attackers, state.centers, by=state.assign)
        cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]), into=mean)  # stage 3
        log_clusters(cohort, before, state.assign, self.k)
        return replace(state, centers=mean.result())

    def place(self, state: Homes, cohort: Cohort) -> Homes:
        """Stages 1 and 2 for members that were away at the start: the home nearest to their local model."""
        late = cohort.ids[~state.known[cohort.ids]]
        if not len(late):
            return state
        with suppress(NoReplies):
            got, s = self._nearest(state, cohort.only(late))
            known = put(state.known, got.ids, torch.ones(len(got)))
            return replace(state, assign=put(state.assign, got.ids, s), known=known)
        return state

    def serve(self, state: Homes, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Homes, cohort: Cohort) -> Served:
        return admitted(state.centers, cohort, *self._nearest(state, cohort))

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    def _nearest(self, state: Homes, cohort: Cohort) -> tuple[Replies, Tensor]:
        got = cohort.run(self.erm, {"theta": state.start})
        scores = nearest(flat(got["theta"], cohort.task.params), state.homes)
        log_margin(cohort, scores)
        return got, scores.argmin(dim=1)

    @on_client
    def erm(self, me: Client, theta: Tree) -> dict[str, Payload]:
        rule = replace(self.local, epochs=self.erm_epochs, steps=None, lr_decay=1.0)
        return {"theta": sgd(me, theta, rule)}

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local)}
