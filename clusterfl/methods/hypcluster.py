"""HypCluster (Mansour et al., 2020): IFCA's loop with size-weighted updates and a server optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.adam import adam_towards
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.init import Start, Strategy
from clusterfl.parts.local import SGD, Losses, losses, sgd
from clusterfl.parts.server import only_where, towards, zeros
from clusterfl.task import Task
from clusterfl.tree import Tree, put


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
    reveals: ClassVar[str] = "its trained model, its cluster id and its number of samples"

    k: int = 4
    local: SGD = SGD()
    init_from: Strategy = "loss-pp"
    server: Literal["sgd", "adam"] = "sgd"
    server_lr: float = 1.0  # with 1 and "sgd" the new hypotheses are the mean models

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} should be at least 1")
        if self.server not in ("sgd", "adam"):
            raise ValueError(f"server={self.server!r} should be 'sgd' or 'adam'")
        if not self.server_lr > 0:
            raise ValueError(f"server_lr={self.server_lr} should be above 0")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Hypotheses:
        start = Start(self.init_from).clusters(task, cohort, key, self.k, self.local)
        if self.server == "sgd":
            return Hypotheses(start.centers, start.assign)
        still = zeros(start.centers, task.params)
        return Hypotheses(start.centers, start.assign, still, still, torch.zeros(self.k, dtype=torch.int64))

    def round(self, state: Hypotheses, cohort: Cohort) -> Hypotheses:
        mean = MeanBy(state.centers, by="s", weights="n")
        got = cohort.run(self.choose_and_train, {"centers": state.centers}, into=mean)
        assign = put(state.assign, got.ids, got["s"])
        log_clusters(cohort, state.assign, assign, self.k)
        target, alive = mean.result(), mean.mass > 0  # the mean update is target - centers
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

    def cost(self, task: Task) -> tuple[int, int]:
        return self.k * task.size, task.size + 8 + 4

    @on_client
    def choose_and_train(self, me: Client, centers: Tree) -> dict[str, Payload]:
        s = losses(me, centers).argmin()
        theta = sgd(me, {n: t.index_select(0, s.reshape(1))[0] for n, t in centers.items()}, self.local)
        return {"theta": theta, "s": s.to(torch.int64), "n": me.size}
