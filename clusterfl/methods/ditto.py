"""Ditto (Li et al., ICML 2021): FedAvg, and beside it a model of each client's own that is held near the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Model, Payload, Weight, on_client
from clusterfl.method import Method, Served, Single, serve_single
from clusterfl.parts.aggregate import Mean, Rule, Weights, bytes_of, check_rule, reply, weight_field
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.prox import proximal
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, repeat, row


@dataclass(frozen=True)
class Ditto(Method[Single]):
    """Clients minimise ``loss(v) + lam / 2 * |v - w|^2`` for a ``v`` of their own that never leaves them.

    At ``lam = 0`` the ``v`` are local models, and the larger ``lam`` is the nearer they are to FedAvg's ``w``.
    """

    name: ClassVar[str] = "ditto"
    summary: ClassVar[str] = "FedAvg, and a personal model of each client that is held near the global one"
    paper: ClassVar[str] = "Li, Hu, Beirami, Smith, ICML 2021"
    rereads: ClassVar[bool] = True
    clustered: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    local: SGD = SGD()
    lam: float = option(1.0, "how strongly a client's own model is drawn to the global one")
    weights: Weights = option("size", "how much a client counts in the mean")
    aggregate: Rule = option(Mean(), "how models become one: the mean, or a rule that withstands lying clients")

    def __post_init__(self) -> None:
        at_least(0, self, "lam")
        one_of(Weights, self, "weights")
        check_rule(self.aggregate)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Single:
        return Single(first_net(task, key))

    def round(self, state: Single, cohort: Cohort) -> Single:
        mean = self.aggregate.by(repeat(state.theta, 1), weights=weight_field(self.weights))
        cohort.run(self.train, {"theta": state.theta}, into=mean)
        return Single(row(mean.result(), 0))

    def serve(self, state: Single, ids: Tensor) -> Served:
        return serve_single(state.theta, ids, personal=True)

    def admit(self, state: Single, cohort: Cohort) -> Served:
        return self.serve(state, cohort.ids)

    def only_sums(self) -> bool:
        return super().only_sums() and isinstance(self.aggregate, Mean)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight(), own=Kept("its own model"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        me.keep_tree("own", self.own(me, theta))
        return reply(me, self.weights, theta=sgd(me, theta, self.local))  # FedAvg's, whatever v is

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        """Its own model; who was never in training makes one out of the global model."""
        return {"theta": me.tree("own") or self.own(me, theta)}

    def own(self, me: Client, theta: Tree) -> Tree:
        """``v <- v - lr (grad loss(v) + lam (v - w))``, on the batches that the global model trains on."""
        return sgd(me, me.tree("own") or theta, self.local, proximal(theta, self.lam))
