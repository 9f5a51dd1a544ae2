"""FeSEM (Long et al., World Wide Web 2023): k-means over the clients' models, one step of it a round.

FeSEM-MA (``matched = true``) puts the neurons of each client's model in the order of the centre before
distances and means are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import Weights, bytes_of, mean_by, reply
from clusterfl.parts.describe import Describe
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.local import SGD, Losses, Train, sgd
from clusterfl.parts.match import chain, matched
from clusterfl.parts.prox import proximal
from clusterfl.parts.start import Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, flat, put, row, rows, stack, take

Layers = Literal["all", "last"]


@dataclass(frozen=True)
class FeSEM(Method[Clusters]):
    """One model down and up; the server gives every client to the centre nearest to its model."""

    name: ClassVar[str] = "fesem"
    summary: ClassVar[str] = "one model down; the server assigns clients by the L2 distance of models"
    paper: ClassVar[str] = "Long, Xie, Shen, Zhou, Wang, Jiang, World Wide Web 2023"
    runs = (Train, Losses, Describe)

    k: int = option(4, "clusters")
    local: SGD = SGD()
    start: Strategy = option("kmeans-local", "where the centres start: 'pure clustering 20 times' (section 6.1.4)")
    proximal: float = option(0.1, "lambda of eq. 7; the authors' code trains with 0")
    by_size: bool = option(False, "eq. 7's weights: small clients are held nearer to their centre than large ones")
    distance_layers: Layers = option("all", "which layers are compared; the authors' code has one")
    weights: Weights = option("uniform", "how much a client counts in the mean")
    matched: bool = option(False, "FeSEM-MA (section 5.1)")

    def __post_init__(self) -> None:
        at_least(1, self, "k")
        at_least(0, self, "proximal")
        one_of(Layers, self, "distance_layers")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Clusters:
        if self.matched:
            chain(task)  # a model that cannot be matched is refused before anybody trains
        return Start(self.start).clusters(task, cohort, key, self.k, self.local)

    def round(self, state: Clusters, cohort: Cohort) -> Clusters:
        # eq. 7 over alpha_i is L + lambda / (m alpha_i) Dist, and m alpha_i is a client's size over the mean size
        typical = {"typical": cohort.run(self.size)["n"].mean()} if self.by_size else {}
        got = cohort.run(self.local_update, typical, theta=take(state.centers, state.assign[cohort.ids]))  # lines 8-13
        theta, s = self.e_step(cohort, got["theta"], state.centers)  # lines 3-5, eq. 8
        weights = got["n"] if self.weights == "size" else None
        centers = mean_by(theta, s, old=state.centers, weights=weights)  # lines 6-7, eq. 9
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
        extra = 4 if self.by_size else 0  # the mean size down, its own size up
        return task.size + extra, task.size + bytes_of(self.weights) + extra

    def e_step(self, cohort: Cohort, theta: Tree, centers: Tree) -> tuple[Tree, Tensor]:
        """The models, in the order of their centre's neurons if they are matched, and their clusters."""
        names = cohort.task.params if self.distance_layers == "all" else cohort.task.head
        if not self.matched:
            scores = squared_distances(flat(theta, names), flat(centers, names))
            log_margin(cohort, scores)
            return theta, scores.argmin(dim=1)
        layers, best, distances = chain(cohort.task), [], []
        for i in range(rows(theta)):
            # section 5.1: the distance is that of the matching, so each centre has a matching of its own
            ordered = stack([matched(layers, row(theta, i), row(centers, k)) for k in range(self.k)])
            distances.append(squared_distances(flat(ordered, names), flat(centers, names)).diagonal())
            best.append(row(ordered, int(distances[-1].argmin())))
        scores = torch.stack(distances)
        log_margin(cohort, scores)
        return stack(best), scores.argmin(dim=1)

    @on_client(theta=Model(of="theta"), n=Weight())
    def local_update(self, me: Client, theta: Tree, typical: Any = None) -> dict[str, Payload]:
        """Algorithm 2: N steps on eq. 7, whose alpha_i and 1/m cancel for clients of equal size."""
        plain = typical is None or not self.proximal
        pull = self.proximal if plain else self.proximal * typical / me.size.clamp(min=1.0)
        return reply(me, self.weights, theta=sgd(me, theta, self.local, proximal(theta, pull)))

    @on_client(n=Weight())
    def size(self, me: Client) -> dict[str, Payload]:
        return {"n": me.size}
