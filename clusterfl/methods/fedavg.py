"""FedAvg (McMahan et al., 2017): local training, one mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Weight, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import Mean, Rule, Weights, bytes_of, check_rule, reply, weight_field
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class FedAvg(Method[Single]):
    """One global model: the size-weighted mean of the clients' models."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "one global model, the size-weighted mean of local models"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()
    weights: Weights = option("size", "how much a client counts in the mean")
    aggregate: Rule = option(Mean(), "how models become one: the mean, or a rule that withstands lying clients")

    def __post_init__(self) -> None:
        one_of(Weights, self, "weights")
        check_rule(self.aggregate)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = self.aggregate.by(repeat(state.theta, 1), weights=weight_field(self.weights))
        cohort.run(self.train, {"theta": state.theta}, into=mean)  # w <- sum_k (n_k / n) w_k
        return Single(row(mean.result(), 0))

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def only_sums(self) -> bool:
        return super().only_sums() and isinstance(self.aggregate, Mean)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local))
