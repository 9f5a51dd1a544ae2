"""FedRC (Guo et al., ICML 2024): FedEM whose clusters differ in P(y | x) alone, not in who holds which labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Cluster, Kept, Labels, Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters
from clusterfl.parts.aggregate import MeanBy, Weights, bytes_of, reply, weight_field
from clusterfl.parts.labels import one_hot_labels
from clusterfl.parts.local import SGD, Losses, Train
from clusterfl.parts.mixture import e_step, fit_pi, m_step, sample_losses, train_mixture, uniform
from clusterfl.parts.start import SUMMED, Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, row

RARE = 1e-8  # the least that a label counts in a cluster (authors' code)


@dataclass(frozen=True)
class Concepts(Clusters):
    """K models, and how often each cluster sees each label."""

    labels: Tensor  # [K, C]: P(y; k), each row sums to 1


@dataclass(frozen=True)
class FedRC(Method[Concepts]):
    """A sample goes to the model under which its label is likelier than that cluster's labels would have it.

    The objective is FedEM's with P(y | x; k) / P(y; k) in place of P(y | x; k): a model that has only learnt that a
    label is frequent in its cluster gains nothing by it.
    """

    name: ClassVar[str] = "fedrc"
    summary: ClassVar[str] = "FedEM whose responsibilities are divided by each cluster's label frequencies"
    paper: ClassVar[str] = "Guo, Tang, Lin, ICML 2024"
    rereads: ClassVar[bool] = True
    sums: ClassVar[bool] = True
    needs_classes: ClassVar[str] = "counts how often each cluster sees each label"
    mixture: ClassVar[bool] = True
    runs = (Train, Losses)

    k: int = option(4, "models in the mixture")
    local: SGD = SGD()
    start: Strategy = option("kmeans-local", "where the models start; the paper's random start is 'independent'")
    place_steps: int = option(10, "steps of EM by which a client that was not in training finds its mixture")
    weights: Weights = option("size", "how much a client counts in the mean")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "place_steps")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Concepts:
        first = Start(self.start).clusters(task, cohort, key, self.k, self.local)
        return Concepts(first.centers, first.assign, torch.full((self.k, task.classes), 1.0 / task.classes))

    def round(self, state: Concepts, cohort: Cohort) -> Concepts:
        mean = MeanBy(repeat(state.centers, 1), weights=weight_field(self.weights))
        got = cohort.run(self.weigh_and_train, {"centers": state.centers, "labels": state.labels}, into=mean)
        counts = got["labels"] if self.weights == "uniform" else got["labels"] * got["n"].reshape(-1, 1, 1)
        assign = put(state.assign, got.ids, got["s"])
        log_clusters(cohort, state.assign, assign, self.k)
        return Concepts(row(mean.result(), 0), assign, frequencies(state.labels, counts.sum(dim=0)))

    def serve(self, state: Concepts, ids: Tensor) -> Served:
        return self.mixing(state, state.assign[ids])

    def admit(self, state: Concepts, cohort: Cohort) -> Served:
        got = cohort.run(self.place, {"centers": state.centers, "labels": state.labels})
        return self.mixing(state, admitted(state.centers, cohort, got, got["s"]).index)

    def mixing(self, state: Concepts, index: Tensor) -> Served:
        shared: dict[str, Payload] = {"centers": state.centers, "labels": state.labels}
        return Served(state.centers, index, personal=True, shared=shared)

    def only_sums(self) -> bool:
        return super().only_sums() and self.start in SUMMED

    def cost(self, task: Task) -> tuple[int, int]:
        both = self.k * task.size + 4 * self.k * task.classes
        return both, both + 8 + bytes_of(self.weights)

    @on_client(
        theta=Model(of="centers"),
        labels=Labels("the shares of its labels in each cluster"),
        s=Cluster(of="centers"),
        n=Weight(),
        pi=Kept("its mixture of the models"),
    )
    def weigh_and_train(self, me: Client, centers: Tree, labels: Tensor) -> dict[str, Payload]:
        q = e_step(me.state.get("pi", uniform(me, centers)), corrected_losses(me, centers, labels))  # E
        pi = m_step(me, q)  # M
        me.keep(pi=pi)
        theta = train_mixture(me, centers, q, self.local)  # M: steps in place of the exact solution
        shares = q @ one_hot_labels(me) / me.size.clamp(min=1.0)
        return reply(me, self.weights, theta=theta, labels=shares, s=pi.argmax())

    @on_client(s=Cluster(of="centers"), pi=Kept("its mixture of the models"))
    def place(self, me: Client, centers: Tree, labels: Tensor) -> dict[str, Payload]:
        """A newcomer fits its mixture of the models as they are."""
        pi = fit_pi(me, corrected_losses(me, centers, labels), self.place_steps)
        me.keep(pi=pi)
        return {"s": pi.argmax()}

    @on_client(theta=Kept("the models that it mixes"), pi=Kept("its mixture of the models"))
    def personalise(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Payload]:
        centers, labels, pi = shared["centers"], shared["labels"], me.state.get("pi")
        if pi is None:
            pi = fit_pi(me, corrected_losses(me, centers, labels), self.place_steps)
        return {"theta": centers, "pi": pi}


def corrected_losses(me: Client, centers: Tree, labels: Tensor) -> Tensor:
    """``[K, n]``: ``-log(P(y | x; k) / P(y; k))`` of every sample."""
    return sample_losses(me, centers) + labels.log()[:, me.train.y]


def frequencies(before: Tensor, counts: Tensor) -> Tensor:
    """``[K, C]``: P(y; k) out of this round's soft counts; what was before counts as one sample.

    The authors' code forgets it, but counts all clients, old counts of those that were not sampled too. Of those that
    answered all may lack a label, and where it counts as next to nothing a cluster would draw all samples of it.
    """
    total = (before + counts).clamp(min=RARE)
    return total / total.sum(dim=1, keepdim=True)
