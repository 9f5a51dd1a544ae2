"""FedAvg-FT: FedAvg, and every client fine-tunes the global model before it uses it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Payload, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.methods.fedavg import FedAvg
from clusterfl.parts.aggregate import Weights
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
    sums: ClassVar[bool] = True
    runs = (FedAvg,)

    local: SGD = SGD()
    weights: Weights = option("size", "how much a client counts in the mean")
    tune_epochs: int = option(1, "epochs of local training before a client uses the model")

    def __post_init__(self) -> None:
        one_of(Weights, self, "weights")
        at_least(1, self, "tune_epochs")

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

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, replace(self.local, epochs=self.tune_epochs, steps=None))}
