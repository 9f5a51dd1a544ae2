"""Per-FedAvg (Fallah et al., NeurIPS 2020): a common start from which one step makes a client's own model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Model, Payload, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import mean_of
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.maml import first_order, hessian_free
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree

Order = Literal["first", "hessian-free"]


@dataclass(frozen=True)
class PerFedAvg(Method[Single]):
    """FedAvg on ``F_i(w) = f_i(w - alpha * grad f_i(w))``, by MAML's gradients.

    A step reads two batches (first order) or three (Hessian-free), where FedAvg's reads one.
    """

    name: ClassVar[str] = "per-fedavg"
    summary: ClassVar[str] = "MAML over clients: a global start that one local step makes personal"
    paper: ClassVar[str] = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020"
    rereads: ClassVar[bool] = True
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()  # the outer steps: its lr is the paper's beta
    alpha: float = option(0.01, "the inner step, and the personal one")
    order: Order = option("first", "how MAML's gradient is taken")
    delta: float = option(1e-3, "hessian-free: the width of the difference")
    tune_steps: int = option(1, "steps of a client's own before it uses the start")

    def __post_init__(self) -> None:
        at_least(0, self, "alpha")
        one_of(Order, self, "order")
        above(0, self, "delta")
        at_least(1, self, "tune_steps")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        theta = state.theta
        return Single(mean_of(cohort, self.train, {"theta": theta}, theta, "uniform"))  # algorithm 1, lines 3-11

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        if self.order == "first":
            grad = first_order(me, self.local, self.alpha)
        else:
            grad = hessian_free(me, self.local, self.alpha, delta=self.delta)
        return {"theta": sgd(me, theta, self.local, grad)}

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, SGD(lr=self.alpha, steps=self.tune_steps, batch=self.local.batch))}
