"""FedDist and FedDWS (FeSEM's baselines after Reptile, Nichol and Schulman, 2018): a part of the way to the mean."""

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
from clusterfl.parts.aggregate import Weights, bytes_of, mean_of, reply
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.server_optimizer import towards
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class FedDist(Method[Single]):
    """Reptile with clients as tasks: ``W <- W + (eps / m) * sum (W_i - W)``; ``eps = 1`` is FedAvg."""

    name: ClassVar[str] = "feddist"
    summary: ClassVar[str] = "the global model goes a part eps of the way to the uniform mean of local models"
    paper: ClassVar[str] = "Long et al., World Wide Web 2023 (baseline), after Nichol, Schulman, 2018"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    eps: float = option(0.6, "part of the way; the authors' code has this one")
    weights: Weights = option("uniform", "how much a client counts in the mean")

    def __post_init__(self) -> None:
        if not 0.0 < self.eps <= 1.0:
            raise ValueError(f"eps={self.eps} should be above 0 and at most 1")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        theta = state.theta
        return Single(towards(theta, mean_of(cohort, self.train, {"theta": theta}, theta, self.weights), self.eps))

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local))


@dataclass(frozen=True)
class FedDWS(FedDist):
    """FedDist with size weights: ``W <- W + eps * sum (n_i / n) * (W_i - W)``. The authors' own function for it
    cannot run; ``eps`` is FedDist's."""

    name: ClassVar[str] = "feddws"
    summary: ClassVar[str] = "FedDist with clients weighted by size: a part eps of the way to the weighted mean"

    weights: Weights = option("size", "how much a client counts in the mean")
