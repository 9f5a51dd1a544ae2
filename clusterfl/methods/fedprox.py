"""FedProx (Li et al., MLSys 2020): FedAvg whose local training is held near the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.prox import proximal
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class FedProx(Method[Single]):
    """Clients minimise ``loss + mu / 2 * |w - w_t|^2``; ``mu = 0`` is FedAvg."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a proximal term that holds local models near the global one"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    mu: float = 0.1  # of the paper's grid 0.001 to 1, the value of FeSEM's comparison
    weights: Literal["size", "uniform"] = "size"

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"mu={self.mu} should be at least 0")
        if self.weights not in ("size", "uniform"):
            raise ValueError(f"weights={self.weights!r} should be 'size' or 'uniform'")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = MeanBy(repeat(state.theta, 1), weights="n" if self.weights == "size" else None)
        cohort.run(self.train, {"theta": state.theta}, into=mean)  # algorithm 2, lines 4-6
        return Single(row(mean.result(), 0))  # line 7

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + (4 if self.weights == "size" else 0)

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        theta = sgd(me, theta, self.local, proximal(theta, self.mu))
        return {"theta": theta, "n": me.size} if self.weights == "size" else {"theta": theta}
