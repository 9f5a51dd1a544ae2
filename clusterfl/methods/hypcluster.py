"""HypCluster (Mansour et al., 2020): IFCA's loop with size-weighted updates and a server optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Cluster, Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.describe import Describe
from clusterfl.parts.local import SGD, Losses, Train, losses, sgd
from clusterfl.parts.server_optimizer import adam_towards, no_moments, only_where, towards
from clusterfl.parts.start import SUMMED, Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, pick, put

Optimizer = Literal["sgd", "adam"]


@dataclass(frozen=True)
class Hypotheses(Clusters):
    """The K hypotheses, and Adam's moments of each (none with plain server steps)."""

    first: Tree = field(default_factory=dict)
    second: Tree = field(default_factory=dict)
    steps: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # [K]: steps so far


@dataclass(frozen=True)
class HypCluster(Method[Hypotheses]):
    """K hypotheses; every client trains the one of least loss, the server steps along the mean update."""

    name: ClassVar[str] = "hypcluster"
    summary: ClassVar[str] = "IFCA's loop with size-weighted updates, a server optimiser and a farthest-first start"
    paper: ClassVar[str] = "Mansour, Mohri, Ro, Suresh, 2020"
    runs = (Train, Losses, Describe)
    sums: ClassVar[bool] = True  # of K blocks each, zero but for the chosen one

    k: int = option(4, "hypotheses")
    local: SGD = SGD()
    start: Strategy = option("loss-pp", "where the hypotheses start")
    server: Optimizer = option("sgd", "the server's optimiser")
    server_lr: float = option(1.0, "its step size; with 1 and 'sgd' the new hypotheses are the mean models")

    def __post_init__(self) -> None:
        at_least(1, self, "k")
        one_of(Optimizer, self, "server")
        above(0, self, "server_lr")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Hypotheses:
        first = Start(self.start).clusters(task, cohort, key, self.k, self.local)
        if self.server == "sgd":
            return Hypotheses(first.centers, first.assign)
        still = no_moments(first.centers, task.params)
        return Hypotheses(first.centers, first.assign, still, still, torch.zeros(self.k, dtype=torch.int64))

    def round(self, state: Hypotheses, cohort: Cohort) -> Hypotheses:
        mean = MeanBy(state.centers, by="s", weights="n")
        got = cohort.run(self.choose_and_train, {"centers": state.centers}, into=mean)
        assign = put(state.assign, got.ids, got["s"])
        log_clusters(cohort, state.assign, assign, self.k)
        target, alive = mean.result(), mean.alive  # the mean update is target - centers
        if self.server == "sgd":
            return Hypotheses(towards(state.centers, target, self.server_lr), assign)
        steps = state.steps + alive
        centers, first, second = adam_towards(state.centers, target, state.first, state.second, steps, self.server_lr)
        moments = (only_where(alive, first, state.first), only_where(alive, second, state.second))
        return Hypotheses(only_where(alive, centers, state.centers), assign, *moments, steps)

    def serve(self, state: Hypotheses, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Hypotheses, cohort: Cohort) -> Served:
        got = cohort.run(Losses().losses, {"centers": state.centers})
        log_margin(cohort, got["losses"])
        return admitted(state.centers, cohort, got, got["losses"].argmin(dim=1))

    def only_sums(self) -> bool:
        return super().only_sums() and self.start in SUMMED

    def cost(self, task: Task) -> tuple[int, int]:
        return self.k * task.size, task.size + 8 + 4

    @on_client(theta=Model(of="centers", row="s"), s=Cluster(of="centers"), n=Weight())
    def choose_and_train(self, me: Client, centers: Tree) -> dict[str, Payload]:
        s = losses(me, centers).argmin()
        return {"theta": sgd(me, pick(centers, s), self.local), "s": s, "n": me.size}
