"""FedSGD (McMahan et al., 2017): one gradient of all of a client's data, one server step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, clipped, full_gradient, own
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class FedSGD(Method[Single]):
    """FedAvg with one local step on one batch of everything: gradient descent on the pooled data."""

    name: ClassVar[str] = "fedsgd"
    summary: ClassVar[str] = "one full-batch gradient per client, one server step on their size-weighted mean"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    reveals: ClassVar[str] = "the gradient of its whole training data, and their number"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()  # its lr, lr_decay, weight_decay and clip: there is one step per round by definition

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = MeanBy(repeat(state.theta, 1), field="grad", weights="n")
        cohort.run(self.gradient, {"theta": state.theta}, into=mean)
        return Single(self.step(cohort.task, state.theta, row(mean.result(), 0), cohort.round))

    def step(self, task: Task, theta: Tree, mean: Tree, round: int) -> Tree:
        """w <- w - lr * sum_k (n_k / n) g_k; buffers are the mean of the clients'."""
        grads = [mean[n] for n in task.params]
        if self.local.clip is not None:
            grads = clipped(grads, self.local.clip)
        moves = zip(task.params, grads, strict=True)
        lr, decay = self.local.rate(round), self.local.weight_decay
        return {**mean, **{n: theta[n] - lr * (g + decay * theta[n] if decay else g) for n, g in moves}}

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + 4

    @on_client
    def gradient(self, me: Client, theta: Tree) -> dict[str, Payload]:
        theta = own(me, theta)
        return {"grad": {**theta, **full_gradient(me, theta)}, "n": me.size}
