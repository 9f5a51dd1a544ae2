"""CLoVE (Bhatia et al., 2025): k-means of clients' losses under K models, and each cluster matched to a model."""

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
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import MeanBy, Weights, bytes_of, reply, weight_field
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import SGD, Losses, Train, sgd
from clusterfl.parts.start import Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, put, take


@dataclass(frozen=True)
class Vectors(Clusters):
    """The clusters, and for how many rounds nobody who was asked has moved."""

    calm: int
    known: Tensor  # [N] bool: who has been placed by its losses


@dataclass(frozen=True)
class CLoVE(Method[Vectors]):
    """A client is described by its losses under all K models, not by the least of them: like clients have like losses.

    Shapes: m clients in the cohort, K models.
    """

    name: ClassVar[str] = "clove"
    summary: ClassVar[str] = "k-means of clients' losses under K models, clusters matched to models, until it is stable"
    paper: ClassVar[str] = "Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, 2025"
    runs = (Train, Losses)

    k: int = option(4, "clusters, or an upper bound of them")
    local: SGD = SGD()
    start: Strategy = option("independent", "where the models start; the paper's random start is 'independent'")
    patience: int = option(5, "rounds without a move, after which clients keep their cluster; 0: never")
    restarts: int = option(20, "of k-means")
    weights: Weights = option("size", "how much a client counts in its cluster's mean")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "restarts")
        at_least(0, self, "patience")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Vectors:
        first = Start(self.start).clusters(task, cohort, key, self.k, self.local)
        return Vectors(
            first.centers, first.assign, 0, torch.full((len(cohort),), self.k == 1)
        )  # of one all are members

    def round(self, state: Vectors, cohort: Cohort) -> Vectors:
        before, stable = state.assign, self.k == 1 or 0 < self.patience <= state.calm
        state = self.place(state, cohort) if stable else self.regroup(state, cohort)
        cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        mean = MeanBy(state.centers, by=state.assign, weights=weight_field(self.weights))
        cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]), into=mean)
        log_clusters(cohort, before, state.assign, self.k)
        return replace(state, centers=mean.result())

    def regroup(self, state: Vectors, cohort: Cohort) -> Vectors:
        """All who answer are clustered by their loss vectors."""
        got = cohort.run(Losses().losses, {"centers": state.centers})
        got = got.take(got.ids.argsort())
        s = self.cluster(got["losses"], keys.fold_in(cohort.key, "kmeans"))
        calm = bool(state.known[got.ids].any()) and torch.equal(s, state.assign[got.ids])
        return self._placed(replace(state, calm=state.calm + 1 if calm else 0), got, s)

    def place(self, state: Vectors, cohort: Cohort) -> Vectors:
        """Once clusters are stable, who was never asked before takes the model of its least loss."""
        late = cohort.ids[~state.known[cohort.ids]]
        if not len(late):
            return state
        with suppress(NoReplies):
            got = cohort.only(late).run(Losses().losses, {"centers": state.centers})
            return self._placed(state, got, got["losses"].argmin(dim=1))
        return state

    def _placed(self, state: Vectors, got: Replies, s: Tensor) -> Vectors:
        known = put(state.known, got.ids, torch.tensor(True))
        return replace(state, assign=put(state.assign, got.ids, s), known=known)

    def cluster(self, losses: Tensor, key: Key) -> Tensor:
        """``[m]``: the model of every client: k-means of the rows of ``losses`` [m, K], clusters matched to models.

        Fewer clients than models cannot be cut in K; then each takes the model of its least loss.
        """
        if len(losses) < self.k:
            return losses.argmin(dim=1)
        return matched(losses, kmeans(losses, self.k, key, self.restarts), self.k)

    def serve(self, state: Vectors, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Vectors, cohort: Cohort) -> Served:
        got = cohort.run(Losses().losses, {"centers": state.centers})
        log_margin(cohort, got["losses"])
        return admitted(state.centers, cohort, got, got["losses"].argmin(dim=1))

    def cost(self, task: Task) -> tuple[int, int]:
        """While clusters are sought; from then on 1 model each way."""
        sought = self.k if self.k > 1 else 0
        return (sought + 1) * task.size, 4 * sought + task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local))


def matched(losses: Tensor, clusters: Tensor, k: int) -> Tensor:
    """The model of every client: each cluster has its own, and the sum of all clients' losses is the least possible."""
    from scipy.optimize import linear_sum_assignment  # here, so that nodes start without SciPy

    total = torch.zeros(k, k, dtype=torch.float64).index_add_(0, clusters, losses.double())  # [cluster, model]
    _, models = linear_sum_assignment(total.numpy())
    return torch.as_tensor(models, dtype=torch.int64)[clusters]
