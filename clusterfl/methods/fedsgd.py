"""FedSGD (McMahan et al., 2017): one gradient of all of a client's data, one server step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.keys import Key
from clusterfl.message import Gradient, Model, Payload, Weight, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy, mean_all
from clusterfl.parts.local import SGD, clipped, full_gradient, writable
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row, select


@dataclass(frozen=True)
class FedSGD(Method[Single]):
    """FedAvg with one local step on one batch of everything: gradient descent on the pooled data."""

    name: ClassVar[str] = "fedsgd"
    summary: ClassVar[str] = "one full-batch gradient per client, one server step on their size-weighted mean"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()  # its lr, its decay and clip: there is one step per round by definition

    def __post_init__(self) -> None:
        if self.local.optimizer is not None:
            raise ValueError("local.optimizer should be 'sgd' with fedsgd: it takes one plain step a round")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = MeanBy(repeat(select(state.theta, cohort.task.params), 1), field="grad", weights="n")
        got = cohort.run(self.gradient, {"theta": state.theta}, into=mean)
        theta = self.step(state.theta, row(mean.result(), 0), cohort.round)
        if cohort.task.buffers:
            theta |= mean_all(got["buffers"], weights=got["n"])
        return Single(theta)

    def step(self, theta: Tree, mean: Tree, round: int) -> Tree:
        """w <- w - lr * sum_k (n_k / n) g_k."""
        grads = list(mean.values())
        if self.local.clip is not None:
            grads = clipped(grads, self.local.clip)
        lr, decay = self.local.rate(round), self.local.weight_decay
        moves = zip(mean, grads, strict=True)
        return {**theta, **{n: theta[n] - lr * (g + decay * theta[n] if decay else g) for n, g in moves}}

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size - task.fixed_size + 4

    @on_client(grad=Gradient(), buffers=Model(of="theta"), n=Weight())
    def gradient(self, me: Client, theta: Tree) -> dict[str, Payload]:
        theta = writable(me, theta)
        found: dict[str, Payload] = {"grad": full_gradient(me, theta), "n": me.size}
        # BatchNorm's moments move while the gradient is taken
        return {**found, "buffers": select(theta, me.task.buffers)} if me.task.buffers else found
