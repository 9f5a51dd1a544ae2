"""K-means over the clients' models, afresh every round: the clustering of AWCFL's and MCFL's Algorithms 1 and 2.

FeSEM takes one step of k-means a round from the old centres; this forgets them, so a start decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import mean_by
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.kmeans import kmeans
from clusterfl.parts.local import SGD, Losses, sgd
from clusterfl.parts.similarity import keep_names
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, flat, put, repeat, take


@dataclass(frozen=True)
class KMeans(Method[Clusters]):
    """One model down and up; the server clusters all that came back by k-means on their weights."""

    name: ClassVar[str] = "kmeans"
    summary: ClassVar[str] = "one model down; the server runs k-means on the clients' weights, afresh every round"
    paper: ClassVar[str] = "Li, Yan, Computer Science 50(11A), 2023: the clustering of Algorithms 1 and 2"
    runs = (Losses,)

    k: int = option(4, "clusters")
    local: SGD = SGD()
    restarts: int = option(20, "of k-means")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "restarts")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Clusters:
        if self.k > len(cohort):
            raise ValueError(f"k={self.k} should be between 1 and the number of clients, {len(cohort)}")
        # line 2: everybody begins at W*
        return Clusters(repeat(first_net(task, key), self.k), torch.zeros(len(cohort), dtype=torch.int64))

    def round(self, state: Clusters, cohort: Cohort) -> Clusters:
        got = cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]))  # line 3.1
        before, s = state.assign[got.ids], state.assign[got.ids]
        if len(got) >= self.k:  # fewer models than clusters stay where they were
            order = got.ids.argsort()
            weights = flat(take(got["theta"], order), cohort.task.params)
            found = kmeans(weights, self.k, keys.fold_in(cohort.key, "kmeans"), self.restarts)  # line 3.2
            s = put(s, order, keep_names(found, before[order], self.k))
        centers = mean_by(got["theta"], s, old=state.centers)  # line 3.3.1
        log_margin(cohort, squared_distances(flat(got["theta"], cohort.task.params), flat(centers, cohort.task.params)))
        assign = put(state.assign, got.ids, s)
        log_clusters(cohort, state.assign, assign, self.k)
        return Clusters(centers, assign)

    def serve(self, state: Clusters, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Clusters, cohort: Cohort) -> Served:
        got = cohort.run(Losses().losses, {"centers": state.centers})
        log_margin(cohort, got["losses"])
        return admitted(state.centers, cohort, got, got["losses"].argmin(dim=1))

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local)}
