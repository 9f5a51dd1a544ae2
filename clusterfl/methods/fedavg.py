"""FedAvg (McMahan et al., 2017): local training, one mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.robust import Rule, check_rule, combiner
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class FedAvg(Method[Single]):
    """One global model: the size-weighted mean of the clients' models."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "one global model, the size-weighted mean of local models"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    weights: Literal["size", "uniform"] = "size"
    aggregate: Rule = "mean"
    attackers: float = 0.2  # the share of clients that a robust rule withstands

    def __post_init__(self) -> None:
        check_rule(self.aggregate, self.attackers)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        weights = "n" if self.weights == "size" else None
        mean = combiner(self.aggregate, self.attackers, repeat(state.theta, 1), weights=weights)
        cohort.run(self.train, {"theta": state.theta}, into=mean)
        return Single(row(mean.result(), 0))

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + (4 if self.weights == "size" else 0)

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        theta = sgd(me, theta, self.local)
        return {"theta": theta, "n": me.size} if self.weights == "size" else {"theta": theta}
