"""FedDANE (Li et al., Asilomar 2019): local training corrected by the mean gradient of the cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from clusterfl.client import Batch, Client, Cohort, Payload, on_client
from clusterfl.keys import Key
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.init import first_net
from clusterfl.parts.local import SGD, full_gradient, own, sgd
from clusterfl.parts.prox import proximal
from clusterfl.task import Task
from clusterfl.tree import Tree, nbytes, repeat, row, select


@dataclass(frozen=True)
class FedDANE(Method[Single]):
    """Clients minimise ``F_i(w) + <g_t - grad F_i(w_t), w> + mu / 2 * |w - w_t|^2``, g_t the mean gradient."""

    name: ClassVar[str] = "feddane"
    summary: ClassVar[str] = "two exchanges a round: the mean gradient, then local training corrected by it"
    paper: ClassVar[str] = "Li et al., Asilomar 2019"
    reveals: ClassVar[str] = "the gradient of its whole training data, its trained model and its number of samples"
    clustered: ClassVar[bool] = False

    local: SGD = SGD()
    mu: float = 0.0  # the authors' script
    weights: Literal["size", "uniform"] = "size"

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"mu={self.mu} should be at least 0")
        if self.weights not in ("size", "uniform"):
            raise ValueError(f"weights={self.weights!r} should be 'size' or 'uniform'")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        theta, weights = state.theta, "n" if self.weights == "size" else None
        mean = MeanBy(repeat(select(theta, cohort.task.params), 1), field="grad", weights=weights)
        got = cohort.run(self.gradient, {"theta": theta}, into=mean)  # algorithm 1, lines 3-5: g_t
        solved = MeanBy(repeat(theta, 1), weights=weights)
        got.cohort.run(self.solve, {"theta": theta, "g": row(mean.result(), 0)}, into=solved)  # lines 6-8
        return Single(row(solved.result(), 0))  # line 9

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def cost(self, task: Task) -> tuple[int, int]:
        gradient = sum(nbytes(p) for p in task.module.parameters() if p.requires_grad)
        sizes = 8 if self.weights == "size" else 0
        return 2 * task.size + gradient, task.size + gradient + sizes

    @on_client
    def gradient(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return self._reply(me, grad=full_gradient(me, own(me, theta)))

    @on_client
    def solve(self, me: Client, theta: Tree, g: Tree) -> dict[str, Payload]:
        mine = full_gradient(me, own(me, theta))
        plain = proximal(theta, self.mu)

        def corrected(me: Client, w: Tree, batch: Batch) -> Tree:
            return {n: d + (g[n] - mine[n]) for n, d in plain(me, w, batch).items()}

        return self._reply(me, theta=sgd(me, theta, self.local, corrected))

    def _reply(self, me: Client, **found: Tree) -> dict[str, Payload]:
        return {**found, "n": me.size} if self.weights == "size" else dict(found)
