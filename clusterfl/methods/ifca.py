"""IFCA (Ghosh et al., NeurIPS 2020): clients get all K models, keep the one of least loss, and train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.init import Start, Strategy
from clusterfl.parts.local import SGD, Losses, losses, sgd
from clusterfl.parts.robust import Rule, check_rule, combiner
from clusterfl.task import Task
from clusterfl.tree import Tree, put


@dataclass(frozen=True)
class IFCA(Method[Clusters]):
    """K models; every client trains the one that fits its training data best (model-averaging variant)."""

    name: ClassVar[str] = "ifca"
    summary: ClassVar[str] = "K models down, each client trains the one of least loss on its train data"
    paper: ClassVar[str] = "Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020"
    reveals: ClassVar[str] = "its trained model and its cluster id"

    k: int = 4
    local: SGD = SGD()
    # The authors' code has three: 'independent' (MNIST), 'resample-balanced' (CIFAR), 'shared-body' (FEMNIST).
    init_from: Strategy = "kmeans-local"
    weights: Literal["size", "uniform"] = "uniform"
    aggregate: Rule = "mean"
    attackers: float = 0.2  # the share of a cluster's clients that a robust rule withstands

    def __post_init__(self) -> None:
        check_rule(self.aggregate, self.attackers)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Clusters:
        return Start(self.init_from).clusters(task, cohort, key, self.k, self.local)

    def round(self, state: Clusters, cohort: Cohort) -> Clusters:
        weights = "n" if self.weights == "size" else None
        mean = combiner(self.aggregate, self.attackers, state.centers, by="s", weights=weights)
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

    def cost(self, task: Task) -> tuple[int, int]:
        return self.k * task.size, task.size + 8 + (4 if self.weights == "size" else 0)

    @on_client
    def choose_and_train(self, me: Client, centers: Tree) -> dict[str, Payload]:
        s = losses(me, centers).argmin()
        theta = sgd(me, {n: t.index_select(0, s.reshape(1))[0] for n, t in centers.items()}, self.local)
        reply: dict[str, Payload] = {"theta": theta, "s": s.to(torch.int64)}
        return {**reply, "n": me.size} if self.weights == "size" else reply
