"""FedDWS (FeSEM's baseline "FedDist+WS"): FedDist with clients weighted by their number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.server import towards
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class FedDWS(Method[Single]):
    """``W <- W + eps * sum (n_i / n) * (W_i - W)``; ``eps = 1`` is FedAvg."""

    name: ClassVar[str] = "feddws"
    summary: ClassVar[str] = "FedDist with clients weighted by size: a part eps of the way to the weighted mean"
    paper: ClassVar[str] = "Long et al., World Wide Web 2023 (baseline), after Nichol, Schulman, 2018"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    eps: float = 0.6  # as FedDist: the authors' own function for it cannot run

    def __post_init__(self) -> None:
        if not 0.0 < self.eps <= 1.0:
            raise ValueError(f"eps={self.eps} should be above 0 and at most 1")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = MeanBy(repeat(state.theta, 1), weights="n")
        cohort.run(self.train, {"theta": state.theta}, into=mean)
        return Single(towards(state.theta, row(mean.result(), 0), self.eps))

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + 4

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local), "n": me.size}
