"""IFCA (Ghosh et al., NeurIPS 2020): clients get all K models, keep the one of least loss, and train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Cluster, Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import Mean, Rule, Weights, bytes_of, check_rule, reply, weight_field
from clusterfl.parts.describe import Describe
from clusterfl.parts.local import SGD, Losses, Train, losses, sgd
from clusterfl.parts.start import SUMMED, Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, pick, put


@dataclass(frozen=True)
class IFCA(Method[Clusters]):
    """K models; every client trains the one that fits its training data best (model-averaging variant)."""

    name: ClassVar[str] = "ifca"
    summary: ClassVar[str] = "K models down, each client trains the one of least loss on its train data"
    paper: ClassVar[str] = "Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020"
    runs = (Train, Losses, Describe)
    sums: ClassVar[bool] = True  # of K blocks each, zero but for the chosen one

    k: int = option(4, "clusters")
    local: SGD = SGD()
    # the authors' code has three: 'independent' (MNIST), 'resample-balanced' (CIFAR), 'shared-body' (FEMNIST)
    start: Strategy = option("kmeans-local", "where the centres start; the paper's random start is 'independent'")
    weights: Weights = option("uniform", "how much a client counts in its cluster's mean")
    aggregate: Rule = option(Mean(), "how a cluster's models become one; others than the mean withstand liars")

    def __post_init__(self) -> None:
        at_least(1, self, "k")
        one_of(Weights, self, "weights")
        check_rule(self.aggregate)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Clusters:
        return Start(self.start).clusters(task, cohort, key, self.k, self.local)

    def round(self, state: Clusters, cohort: Cohort) -> Clusters:
        mean = self.aggregate.by(state.centers, "s", weight_field(self.weights))
        got = cohort.run(self.choose_and_train, {"centers": state.centers}, into=mean)
        assign = put(state.assign, got.ids, got["s"])
        log_clusters(cohort, state.assign, assign, self.k)
        return Clusters(mean.result(), assign)

    def serve(self, state: Clusters, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Clusters, cohort: Cohort) -> Served:
        got = cohort.run(Losses().losses, {"centers": state.centers})
        log_margin(cohort, got["losses"])
        return admitted(state.centers, cohort, got, got["losses"].argmin(dim=1))

    def only_sums(self) -> bool:
        return super().only_sums() and isinstance(self.aggregate, Mean) and self.start in SUMMED

    def cost(self, task: Task) -> tuple[int, int]:
        return self.k * task.size, task.size + 8 + bytes_of(self.weights)

    @on_client(theta=Model(of="centers", row="s"), s=Cluster(of="centers"), n=Weight())
    def choose_and_train(self, me: Client, centers: Tree) -> dict[str, Payload]:
        s = losses(me, centers).argmin()
        return reply(me, self.weights, theta=sgd(me, pick(centers, s), self.local), s=s)
