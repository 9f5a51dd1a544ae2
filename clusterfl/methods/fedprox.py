"""FedProx (Li et al., MLSys 2020): FedAvg whose local training is held near the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Weight, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import Weights, bytes_of, mean_of, reply
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.prox import proximal
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class FedProx(Method[Single]):
    """Clients minimise ``loss + mu / 2 * |w - w_t|^2``; ``mu = 0`` is FedAvg."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a proximal term that holds local models near the global one"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()
    mu: float = option(0.1, "strength of the proximal term; of the paper's 0.001 to 1 the value of FeSEM's comparison")
    weights: Weights = option("size", "how much a client counts in the mean")

    def __post_init__(self) -> None:
        at_least(0, self, "mu")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        theta = state.theta
        return Single(mean_of(cohort, self.train, {"theta": theta}, theta, self.weights))  # algorithm 2, lines 4-7

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local, proximal(theta, self.mu)))
