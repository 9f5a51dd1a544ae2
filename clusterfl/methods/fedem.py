"""FedEM (Marfoq et al., NeurIPS 2021): every client is a mixture of K common models, fitted by EM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Cluster, Kept, Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters
from clusterfl.parts.aggregate import MeanBy, Weights, bytes_of, reply, weight_field
from clusterfl.parts.local import SGD, Losses, Train
from clusterfl.parts.mixture import e_step, fit_pi, m_step, sample_losses, train_mixture, uniform
from clusterfl.parts.start import SUMMED, Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, row


@dataclass(frozen=True)
class FedEM(Method[Clusters]):
    """Clients weigh their samples among K models, train all K by these weights and answer with the weighted mixture.

    ``assign`` is the model that counts most on a client: all that the server learns of its mixture.
    """

    name: ClassVar[str] = "fedem"
    summary: ClassVar[str] = "K models both ways; each client answers with its own mixture of them, fitted by EM"
    paper: ClassVar[str] = "Marfoq, Neglia, Bellet, Kameni, Vidal, NeurIPS 2021"
    rereads: ClassVar[bool] = True
    sums: ClassVar[bool] = True
    mixture: ClassVar[bool] = True
    runs = (Train, Losses)

    k: int = option(4, "models in the mixture (the paper's M)")
    local: SGD = SGD()
    start: Strategy = option("kmeans-local", "where the models start; the paper's random start is 'independent'")
    place_steps: int = option(10, "steps of EM by which a client that was not in training finds its mixture")
    weights: Weights = option("size", "how much a client counts in the mean")

    def __post_init__(self) -> None:
        at_least(1, self, "k", "place_steps")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Clusters:
        return Start(self.start).clusters(task, cohort, key, self.k, self.local)

    def round(self, state: Clusters, cohort: Cohort) -> Clusters:
        mean = MeanBy(repeat(state.centers, 1), weights=weight_field(self.weights))
        got = cohort.run(self.weigh_and_train, {"centers": state.centers}, into=mean)
        assign = put(state.assign, got.ids, got["s"])
        log_clusters(cohort, state.assign, assign, self.k)
        return Clusters(row(mean.result(), 0), assign)  # each model's mean over the clients

    def serve(self, state: Clusters, ids: Tensor) -> Served:
        return Served(state.centers, state.assign[ids], personal=True, shared={"centers": state.centers})

    def admit(self, state: Clusters, cohort: Cohort) -> Served:
        got = cohort.run(self.place, {"centers": state.centers})
        index = admitted(state.centers, cohort, got, got["s"]).index
        return Served(state.centers, index, personal=True, shared={"centers": state.centers})

    def only_sums(self) -> bool:
        return super().only_sums() and self.start in SUMMED

    def cost(self, task: Task) -> tuple[int, int]:
        return self.k * task.size, self.k * task.size + 8 + bytes_of(self.weights)

    @on_client(theta=Model(of="centers"), s=Cluster(of="centers"), n=Weight(), pi=Kept("its mixture of the models"))
    def weigh_and_train(self, me: Client, centers: Tree) -> dict[str, Payload]:
        q = e_step(me.state.get("pi", uniform(me, centers)), sample_losses(me, centers))  # E
        pi = m_step(me, q)  # M
        me.keep(pi=pi)
        theta = train_mixture(me, centers, q, self.local)  # M: steps in place of the exact solution
        return reply(me, self.weights, theta=theta, s=pi.argmax())

    @on_client(s=Cluster(of="centers"), pi=Kept("its mixture of the models"))
    def place(self, me: Client, centers: Tree) -> dict[str, Payload]:
        """A newcomer fits its mixture of the models as they are."""
        pi = fit_pi(me, sample_losses(me, centers), self.place_steps)
        me.keep(pi=pi)
        return {"s": pi.argmax()}

    @on_client(theta=Kept("the models that it mixes"), pi=Kept("its mixture of the models"))
    def personalise(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Payload]:
        centers = shared["centers"]
        pi = me.state.get("pi")
        return {
            "theta": centers,
            "pi": fit_pi(me, sample_losses(me, centers), self.place_steps) if pi is None else pi,
        }
