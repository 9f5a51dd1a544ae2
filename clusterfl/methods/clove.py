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

SAME, BETTER = 5, 1.1  # of by_silhouette (authors' code)


@dataclass(frozen=True)
class Vectors(Clusters):
    """The clusters, and how often in a row each client was placed in its own."""

    alike: Tensor  # [N]; 0 for who has never been asked
    stable: bool  # nobody is placed anew any more

    @property
    def known(self) -> Tensor:
        return self.alike > 0


@dataclass(frozen=True)
class CLoVE(Method[Vectors]):
    """A client is described by its losses under all K models, not by the least of them: like clients have like losses.

    Shapes: m clients in the cohort, K models.
    """

    name: ClassVar[str] = "clove"
    summary: ClassVar[str] = "k-means of clients' losses under K models, clusters matched to models, until it is stable"
    paper: ClassVar[str] = "Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, 2025"
    runs = (Train, Losses)

    k: int = option(4, "models, and so many clusters")
    find_k: bool = option(False, "make as many clusters, 2 to k, as silhouettes of the losses ask for in a round")
    local: SGD = SGD()
    start: Strategy = option("independent", "where the models start; the paper's random start is 'independent'")
    patience: int = option(3, "clusters are kept once all at hand were placed alike so often in a row; 0: never")
    restarts: int = option(20, "of k-means")
    weights: Weights = option("size", "how much a client counts in its cluster's mean")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "restarts")
        at_least(0, self, "patience")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Vectors:
        first = Start(self.start).clusters(task, cohort, key, self.k, self.local)
        alone = self.k == 1  # of one all are members
        return Vectors(first.centers, first.assign, torch.full((len(cohort),), int(alone)), alone)

    def round(self, state: Vectors, cohort: Cohort) -> Vectors:
        before = state.assign
        if not state.stable and self.patience:
            state = replace(state, stable=bool((state.alike[cohort.ids] >= self.patience).all()))
        state = self.place(state, cohort) if state.stable else self.regroup(state, cohort)
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
        return self._placed(state, got, s)

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
        stayed = state.known[got.ids] & (s == state.assign[got.ids])
        alike = torch.where(stayed, state.alike[got.ids] + 1, 1)
        return replace(state, assign=put(state.assign, got.ids, s), alike=put(state.alike, got.ids, alike))

    def cluster(self, losses: Tensor, key: Key) -> Tensor:
        """``[m]``: the model of every client: k-means of the rows of ``losses`` [m, K], clusters matched to models.

        Fewer clients than models cannot be cut in K; then each takes the model of its least loss.
        """
        if len(losses) < (2 if self.find_k else self.k):
            return losses.argmin(dim=1)
        k = by_silhouette(losses, self.k) if self.find_k else self.k
        return matched(losses, kmeans(losses, k, key, self.restarts))

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


def matched(losses: Tensor, clusters: Tensor) -> Tensor:
    """The model of every client: each cluster has its own, and the sum of all clients' losses is the least possible."""
    from scipy.optimize import linear_sum_assignment  # here, so that nodes start without SciPy

    total = torch.zeros(int(clusters.max()) + 1, losses.shape[1], dtype=torch.float64)  # [cluster, model]
    _, models = linear_sum_assignment(total.index_add_(0, clusters, losses.double()).numpy())
    return torch.as_tensor(models, dtype=torch.int64)[clusters]


def by_silhouette(points: Tensor, most: int) -> int:
    """2 to ``most``: the number of clusters (Ward's) of the best silhouette; more of them have to be better by a tenth.

    As in the authors' code: where there are no more points than ``most`` each counts five times, so that as many
    clusters as points can be compared.
    """
    from sklearn.cluster import AgglomerativeClustering  # here, so that nodes start without scikit-learn
    from sklearn.metrics import silhouette_score

    x, found, best = points.double().numpy(), 2, -1.0
    last = min(most, len(x))
    if most >= len(x):
        x = x.repeat(SAME, axis=0)
    for k in range(2, last + 1):
        score = float(silhouette_score(x, AgglomerativeClustering(k, linkage="ward").fit_predict(x)))
        if score > BETTER * best:
            found, best = k, score
    return found
