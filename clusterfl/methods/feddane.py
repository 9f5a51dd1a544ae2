"""FedDANE (Li et al., Asilomar 2019): local training corrected by the mean gradient of the cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Batch, Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Gradient, Model, Payload, Weight, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy, Weights, bytes_of, mean_of, reply, weight_field
from clusterfl.parts.local import SGD, full_gradient, sgd, writable
from clusterfl.parts.prox import proximal
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row, select


@dataclass(frozen=True)
class FedDANE(Method[Single]):
    """Clients minimise ``F_i(w) + <g_t - grad F_i(w_t), w> + mu / 2 * |w - w_t|^2``, g_t the mean gradient."""

    name: ClassVar[str] = "feddane"
    summary: ClassVar[str] = "two exchanges a round: the mean gradient, then local training corrected by it"
    paper: ClassVar[str] = "Li et al., Asilomar 2019"
    rereads: ClassVar[bool] = True
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()
    mu: float = option(0.0, "strength of the pull towards the global model; the authors' script has none")
    weights: Weights = option("size", "how much a client counts in the means")

    def __post_init__(self) -> None:
        at_least(0, self, "mu")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        theta = state.theta
        mean = MeanBy(repeat(select(theta, cohort.task.params), 1), field="grad", weights=weight_field(self.weights))
        got = cohort.run(self.gradient, {"theta": theta}, into=mean)  # algorithm 1, lines 3-5: g_t
        g = row(mean.result(), 0)
        return Single(mean_of(got.cohort, self.solve, {"theta": theta, "g": g}, theta, self.weights))  # lines 6-9

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        sizes = 2 * bytes_of(self.weights)
        return 2 * task.size + task.trainable_size, task.size + task.trainable_size + sizes

    @on_client(grad=Gradient(), n=Weight())
    def gradient(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, grad=full_gradient(me, writable(me, theta)))

    @on_client(theta=Model(of="theta"), n=Weight())
    def solve(self, me: Client, theta: Tree, g: Tree) -> dict[str, Payload]:
        mine = full_gradient(me, writable(me, theta))
        plain = proximal(theta, self.mu)

        def corrected(me: Client, w: Tree, batch: Batch) -> Tree:
            return {n: d + (g[n] - mine[n]) for n, d in plain(me, w, batch).items()}

        return reply(me, self.weights, theta=sgd(me, theta, self.local, corrected))
