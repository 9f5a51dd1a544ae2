"""FL+HC (Briggs et al., 2020): FedAvg for a while, one hierarchical clustering of updates, FedAvg in each cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.errors import NoReplies
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, State, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import Weights, bytes_of, mean_by, reply
from clusterfl.parts.hierarchy import Linkage, Metric, agglomerate, distances, numbered
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.sketch import EXACT, Moves, group, sample_of
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, flat, put, repeat, row, subtract, take


@dataclass(frozen=True)
class Fork(State):
    """Where the clusters parted: the global model, and each cluster's mean update from it."""

    theta: Tree
    moves: Tensor  # [K, P]


@dataclass(frozen=True)
class FLHCState(Clusters):
    """One cluster until the clustering round, then its clusters for good."""

    fork: Fork | None
    placed: Tensor  # [N] bool: whose update has been compared


@dataclass(frozen=True)
class FLHC(Method[FLHCState]):
    """Clusters once, after ``start_round`` rounds of FedAvg, by the distance of updates from the global model."""

    name: ClassVar[str] = "fl-hc"
    summary: ClassVar[str] = "FedAvg, then one agglomerative clustering of updates, then FedAvg in each cluster"
    paper: ClassVar[str] = "Briggs, Fan, Andras, IJCNN 2020"
    waits = "start_round"

    k: int | None = option(4, "clusters")
    threshold: float | None = option(None, "in place of k: groups are merged until they are this far apart")
    local: SGD = SGD()
    start_round: int = option(10, "rounds of FedAvg before the one clustering")
    metric: Metric = option("l2", "how far apart updates are")
    linkage: Linkage = option("ward", "how far apart groups of updates are")
    weights: Weights = option("size", "how much a client counts in its cluster's mean")
    exact: int = option(EXACT, "clients up to which all are compared; more by sketches and a sample")

    def __post_init__(self) -> None:
        if self.threshold is not None and self.k is not None:
            object.__setattr__(self, "k", None)  # k has a default: naming the threshold alone is enough
        if self.k is None and self.threshold is None:
            raise ValueError("k=None and threshold=None: one of them should be given")
        at_least(1, self, "k")
        at_least(0, self, "threshold", "start_round", "exact")
        one_of(Weights, self, "weights")
        if self.linkage == "ward" and self.metric != "l2":
            raise ValueError(f"metric={self.metric!r} should be 'l2' with linkage='ward'")

    def init(self, task: Task, cohort: Cohort, key: Key) -> FLHCState:
        if self.k is not None and self.k > len(cohort):
            raise ValueError(f"k={self.k} should be at most the number of clients, {len(cohort)}")
        n = len(cohort)
        return FLHCState(
            repeat(first_net(task, key), 1), torch.zeros(n, dtype=torch.int64), None, torch.zeros(n, dtype=torch.bool)
        )

    def round(self, state: FLHCState, cohort: Cohort) -> FLHCState:
        before = state.assign
        if state.fork is not None:
            late = cohort.only(cohort.ids[~state.placed[cohort.ids]])
            assign, placed = self.place(state.fork, late, state.assign, state.placed)
            state = replace(state, assign=assign, placed=placed)
            cohort = cohort.only(cohort.ids[placed[cohort.ids]])
        got = cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]))
        enough = len(got) >= (self.k or 1)
        if state.fork is None and cohort.round >= self.start_round and enough:
            state = self.cluster(state, cohort, got.ids, got["theta"])
        weights = got["n"] if self.weights == "size" else None
        centers = mean_by(got["theta"], state.assign[got.ids], old=state.centers, weights=weights)
        log_clusters(cohort, before, state.assign, state.k)
        return replace(state, centers=centers)

    def cluster(self, state: FLHCState, cohort: Cohort, ids: Tensor, theta: Tree) -> FLHCState:
        """The one clustering, of everybody who answered this round."""
        order = ids.argsort()
        if not torch.equal(ids[order], ids):
            ids, theta = ids[order], take(theta, order)
        start = row(state.centers, 0)
        groups, means = self.groups(Moves.of(theta, start, cohort.task.params), cohort.key)
        k = len(means)
        return FLHCState(
            repeat(start, k),
            put(state.assign, ids, groups),
            Fork(start, means),
            put(state.placed, ids, torch.tensor(True)),
        )

    def groups(self, moves: Moves, key: Key) -> tuple[Tensor, Tensor]:
        """Group numbers ``[m]``, and every group's mean update ``[K, P]``."""
        cut = partial(agglomerate, metric=self.metric, linkage=self.linkage, k=self.k)
        if len(moves) <= self.exact:
            points = moves.matrix()
            groups = cut(points, threshold=self.threshold)
            return groups, torch.stack([points[groups == j].mean(dim=0) for j in range(int(groups.max()) + 1)])
        threshold = self.threshold
        if threshold is not None and self.linkage == "ward":  # ward's distances grow with the root of the groups' sizes
            threshold *= (len(sample_of(len(moves), 1, key)) / len(moves)) ** 0.5
        away, key, absolute = partial(distances, metric=self.metric), keys.fold_in(key, "cluster"), self.metric == "l1"
        groups = group(moves, partial(cut, threshold=threshold), away, key, k=self.k or 1, absolute=absolute)
        groups = numbered(groups.numpy())
        return groups, moves.means(groups, int(groups.max()) + 1)

    def place(self, fork: Fork, cohort: Cohort, assign: Tensor, placed: Tensor) -> tuple[Tensor, Tensor]:
        """Clients that missed the clustering train the model of that time and join the nearest mean update."""
        if not len(cohort):
            return assign, placed
        with suppress(NoReplies):
            got = cohort.run(self.train, {"theta": fork.theta})
            moves = flat(subtract(got["theta"], repeat(fork.theta, len(got))), cohort.task.params)
            away = distances(moves, fork.moves, self.metric)
            log_margin(cohort, away)
            return put(assign, got.ids, away.argmin(dim=1)), put(placed, got.ids, torch.tensor(True))
        return assign, placed

    def serve(self, state: FLHCState, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: FLHCState, cohort: Cohort) -> Served:
        fresh = torch.zeros(int(cohort.ids.max()) + 1, dtype=torch.int64)
        if state.fork is not None:
            fresh, _ = self.place(state.fork, cohort, fresh, fresh.bool())
        return Served(state.centers, fresh[cohort.ids])

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local))
