"""PFA (Liu et al., WWW 2021): clients grouped by which units of a ReLU layer their data leave at zero."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.errors import NoReplies
from clusterfl.fields import at_least, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import MeanBy, mean_by
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, row, take


@dataclass(frozen=True)
class Groups(Clusters):
    """K models, all equal until clients are grouped, and what a client that comes later is placed by."""

    probe: Tree  # the common model at the time of grouping
    units: Tensor  # [q] int64: the units that are looked at
    homes: Tensor  # [K, q]: every group's mean sparsity
    known: Tensor  # [N] bool: who has been placed

    @property
    def grouped(self) -> bool:
        return bool(self.known.any())


@dataclass(frozen=True)
class PFA(Method[Groups]):
    """FedAvg for some rounds, one grouping by sparsity, FedAvg in every group from there on."""

    name: ClassVar[str] = "pfa"
    summary: ClassVar[str] = "FedAvg, one grouping by the sparsity of ReLU activations, then FedAvg per group"
    paper: ClassVar[str] = "Liu, Guo, Chen, WWW 2021"
    needs = ("hidden layer",)
    waits = "group_round"

    k: int = option(4, "groups")
    local: SGD = SGD()
    group_round: int = option(10, "rounds of FedAvg before clients are grouped")
    units: int = option(20, "units that are looked at, drawn once (the authors' code); fewer if there are fewer")
    restarts: int = option(20, "of k-means")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "group_round", "units", "restarts")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Groups:
        n = len(cohort)
        if self.k > n:
            raise ValueError(f"k={self.k} should be between 1 and the number of clients, {n}")
        if not any(isinstance(m, nn.ReLU | nn.ReLU6) for m in task.module.modules()):
            raise ValueError("model should have a ReLU layer for pfa, which looks at the units that it leaves at zero")
        theta, q = first_net(task, key), min(self.units, task.width)
        units = keys.choice(keys.fold_in(key, "units"), task.width, q)
        first = torch.zeros(n, dtype=torch.int64)  # until they are grouped all use the first of K equal models
        return Groups(repeat(theta, self.k), first, theta, units, torch.zeros(self.k, q), torch.zeros(n).bool())

    def round(self, state: Groups, cohort: Cohort) -> Groups:
        before = state.assign
        if state.grouped:
            state = self.place(state, cohort)
            cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        mean = MeanBy(state.centers, by=state.assign, weights="n")
        got = cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]), into=mean)
        state = replace(state, centers=mean.result())
        if not state.grouped:
            state = replace(state, centers=repeat(row(state.centers, 0), self.k))
            if cohort.round + 1 >= self.group_round:
                state = self.group(state, got.cohort)
        log_clusters(cohort, before, state.assign, self.k)
        return state

    def group(self, state: Groups, cohort: Cohort) -> Groups:
        """k-means of the sparsities under the common model; it waits for a round with at least k clients."""
        probe = row(state.centers, 0)
        with suppress(NoReplies):
            got = cohort.run(self.sparsity, {"theta": probe, "units": state.units})
            got = got.take(got.ids.argsort())  # the order in which clients are asked should not matter
            if len(got) >= self.k:
                s = kmeans(got["zeros"], self.k, keys.fold_in(cohort.key, "kmeans"), self.restarts)
                homes = mean_by({"zeros": got["zeros"]}, s, old={"zeros": state.homes})["zeros"]
                return self._placed(replace(state, probe=probe, homes=homes), cohort, got.ids, got["zeros"])
        return state

    def place(self, state: Groups, cohort: Cohort) -> Groups:
        """Members that were away when clients were grouped go to the group of the nearest sparsity."""
        late = cohort.ids[~state.known[cohort.ids]]
        if not len(late):
            return state
        with suppress(NoReplies):
            got = cohort.only(late).run(self.sparsity, {"theta": state.probe, "units": state.units})
            return self._placed(state, cohort, got.ids, got["zeros"])
        return state

    def _placed(self, state: Groups, cohort: Cohort, ids: Tensor, zeros: Tensor) -> Groups:
        scores = squared_distances(zeros, state.homes)
        log_margin(cohort, scores)
        assign = put(state.assign, ids, scores.argmin(dim=1))
        return replace(state, assign=assign, known=put(state.known, ids, torch.ones(len(ids))))

    def serve(self, state: Groups, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Groups, cohort: Cohort) -> Served:
        if not state.grouped:
            return Served(state.centers, torch.zeros(len(cohort), dtype=torch.int64))
        got = cohort.run(self.sparsity, {"theta": state.probe, "units": state.units})
        scores = squared_distances(got["zeros"], state.homes)
        log_margin(cohort, scores)
        return admitted(state.centers, cohort, got, scores.argmin(dim=1))

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + 4

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local), "n": me.size}

    @on_client(zeros=Statistic("how often some units of the model are zero on its data"))
    def sparsity(self, me: Client, theta: Tree, units: Tensor) -> dict[str, Payload]:
        """The share of the client's samples for which each unit is zero."""
        total = torch.zeros(len(units), device=me.key.device)
        for x, _, w in me.train.pieces():
            zero = (me.task.features(theta, x)[:, units] == 0).float()
            total = total + (zero if w is None else zero * w.unsqueeze(1)).sum(dim=0)
        return {"zeros": total / me.size.clamp(min=1.0)}
