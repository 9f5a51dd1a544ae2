"""FedAvg-FT: FedAvg, and every client fine-tunes the global model before it uses it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.methods.fedavg import FedAvg
from clusterfl.parts.local import SGD, sgd
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class FedAvgFT(Method[Single]):
    """The global model is FedAvg's; a client's own is some epochs of local training away from it."""

    name: ClassVar[str] = "fedavg-ft"
    summary: ClassVar[str] = "FedAvg, then every client fine-tunes the global model on its own data"
    paper: ClassVar[str] = "Yu, Bagdasaryan, Shmatikov, 2020"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    weights: Literal["size", "uniform"] = "size"
    tune_epochs: int = 1

    def __post_init__(self) -> None:
        if self.tune_epochs < 1:
            raise ValueError(f"tune_epochs={self.tune_epochs} should be at least 1")

    @property
    def fedavg(self) -> FedAvg:
        return FedAvg(self.local, self.weights)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return self.fedavg.init(task, cohort, key)

    def round(self, state: Single, cohort: Cohort) -> Single:
        return self.fedavg.round(state, cohort)

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return self.fedavg.cost(task)

    @on_client
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, replace(self.local, epochs=self.tune_epochs, steps=None))}
