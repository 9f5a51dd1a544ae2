"""Per-FedAvg (Fallah et al., NeurIPS 2020): a common start from which one step makes a client's own model."""

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
from clusterfl.parts.maml import first_order, hessian_free
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class PerFedAvg(Method[Single]):
    """FedAvg on ``F_i(w) = f_i(w - alpha * grad f_i(w))``, by MAML's gradients.

    A step reads two batches (first order) or three (Hessian-free), where FedAvg's reads one.
    """

    name: ClassVar[str] = "per-fedavg"
    summary: ClassVar[str] = "MAML over clients: a global start that one local step makes personal"
    paper: ClassVar[str] = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()  # the outer steps: its lr is the paper's beta
    alpha: float = 0.01  # the inner step, and the personal one
    order: Literal["first", "hessian-free"] = "first"
    delta: float = 1e-3  # hessian-free: the width of the difference
    tune_steps: int = 1

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ValueError(f"alpha={self.alpha} should be at least 0")
        if self.order not in ("first", "hessian-free"):
            raise ValueError(f"order={self.order!r} should be 'first' or 'hessian-free'")
        if not self.delta > 0:
            raise ValueError(f"delta={self.delta} should be above 0")
        if self.tune_steps < 1:
            raise ValueError(f"tune_steps={self.tune_steps} should be at least 1")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = MeanBy(repeat(state.theta, 1))
        cohort.run(self.train, {"theta": state.theta}, into=mean)  # algorithm 1, lines 3-10
        return Single(row(mean.result(), 0))  # line 11: the uniform mean

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    @on_client
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        if self.order == "first":
            grad = first_order(me, self.local, self.alpha)
        else:
            grad = hessian_free(me, self.local, self.alpha, delta=self.delta)
        return {"theta": sgd(me, theta, self.local, grad)}

    @on_client
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, SGD(lr=self.alpha, steps=self.tune_steps, batch=self.local.batch))}
