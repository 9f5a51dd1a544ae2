"""Robust-TKM (Ghosh et al., 2019): local models, clustered once by trimmed k-means, then robust training."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort, Replies
from clusterfl.errors import NoReplies
from clusterfl.fields import at_least, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import Rule, Trimmed, check_rule, check_share, combine_by
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.kmeans import sketched_trimmed_kmeans, trimmed_kmeans
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.sketch import EXACT, Moves
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, flat, put, repeat, rows, take, vector


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
    rereads: ClassVar[bool] = True

    k: int = option(4, "clusters")
    local: SGD = SGD()
    erm_epochs: int = option(10, "epochs of the local models that are clustered; the paper's ERM is exact")
    aggregate: Rule = option(Trimmed(), "how a cluster's models become one")
    attackers: float = option(0.2, "the share of a cluster's clients that k-means withstands")
    exact: int = option(EXACT, "clients up to which all models are compared; more by sketches and a sample")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "erm_epochs")
        at_least(0, self, "exact")
        check_share(self.attackers)
        check_rule(self.aggregate)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Homes:
        if not 1 <= self.k <= len(cohort):
            raise ValueError(f"k={self.k} should be between 1 and the number of clients, {len(cohort)}")
        start = first_net(task, key)
        got = cohort.run(self.erm, {"theta": start})  # stage 1
        if self.k > len(got):
            raise ValueError(f"k={self.k} should not exceed the {len(got)} clients that answered the first round")
        s, homes = self.cluster(cohort, got["theta"], start, keys.fold_in(key, "kmeans"))  # stage 2
        old = repeat(start, self.k)
        centers = combine_by(self.aggregate, got["theta"], s, old=old)
        assign = put(torch.zeros(len(cohort), dtype=torch.int64), got.ids, s)  # the silent wait in cluster 0
        known = put(torch.zeros(len(cohort), dtype=torch.bool), got.ids, torch.ones(len(got)))
        return Homes(centers, assign, start, homes, known)

    def cluster(self, cohort: Cohort, theta: Tree, start: Tree, key: Key) -> tuple[Tensor, Tensor]:
        """The clusters of the models, and where each is at home ``[K, P]``."""
        names = cohort.task.params
        if rows(theta) <= self.exact:
            points = flat(theta, names)
            s, homes = trimmed_kmeans(points, self.k, key, attackers=self.attackers)
            log_margin(cohort, squared_distances(points, homes))
            return s, homes
        moves = Moves.of(theta, start, names)
        s, away = sketched_trimmed_kmeans(moves, self.k, key, attackers=self.attackers)
        return s, away + vector(start, names)

    def round(self, state: Homes, cohort: Cohort) -> Homes:
        before = state.assign
        state = self.place(state, cohort)
        cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        mean = self.aggregate.by(state.centers, state.assign)
        cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]), into=mean)  # stage 3
        log_clusters(cohort, before, state.assign, self.k)
        return replace(state, centers=mean.result())

    def place(self, state: Homes, cohort: Cohort) -> Homes:
        """Stages 1 and 2 for members that were away at the start: the home nearest to their local model."""
        late = cohort.ids[~state.known[cohort.ids]]
        if not len(late):
            return state
        with suppress(NoReplies):
            got, s = self._place_by_model(state, cohort.only(late))
            known = put(state.known, got.ids, torch.ones(len(got)))
            return replace(state, assign=put(state.assign, got.ids, s), known=known)
        return state

    def serve(self, state: Homes, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Homes, cohort: Cohort) -> Served:
        return admitted(state.centers, cohort, *self._place_by_model(state, cohort))

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    def _place_by_model(self, state: Homes, cohort: Cohort) -> tuple[Replies, Tensor]:
        got = cohort.run(self.erm, {"theta": state.start})
        scores = squared_distances(flat(got["theta"], cohort.task.params), state.homes)
        log_margin(cohort, scores)
        return got, scores.argmin(dim=1)

    @on_client(theta=Model(of="theta"))
    def erm(self, me: Client, theta: Tree) -> dict[str, Payload]:
        rule = replace(self.local, epochs=self.erm_epochs, steps=None, lr_decay=1.0)
        return {"theta": sgd(me, theta, rule)}

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local)}
