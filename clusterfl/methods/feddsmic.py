"""FedDS and FedDSMIC (Li et al., DASFAA 2022): clusters by what models answer to public indicator samples.

FedDS trains plainly and serves the centres. FedDSMIC trains each centre as a good start (first-order MAML),
from which every client takes a step or a few of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort, Replies
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Model, Payload, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import Weights, bytes_of, mean_all, mean_by, reply
from clusterfl.parts.describe import Describe
from clusterfl.parts.indicators import answer_divergence, indicators_of
from clusterfl.parts.local import SGD, Losses, Train, sgd
from clusterfl.parts.maml import first_order
from clusterfl.parts.start import Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, put, take


@dataclass(frozen=True)
class Indicated(Clusters):
    """The clusters, and the public samples that tell them apart."""

    indicators: Tensor  # [N_o, ...]


@dataclass(frozen=True)
class FedDS(Method[Indicated]):
    """One model down and up; the server assigns clients by the divergence of answers to indicator samples."""

    name: ClassVar[str] = "fedds"
    summary: ClassVar[str] = "one model down; the server assigns clients by KL of answers to public samples"
    paper: ClassVar[str] = "Li, Chen, Wang, Ding, Li, DASFAA 2022"
    needs = ("public samples",)
    needs_classes: ClassVar[str] = "compares the class probabilities that models give to public samples"
    runs = (Train, Losses, Describe)

    k: int = option(4, "clusters")
    local: SGD = SGD()
    start: Strategy = option("kmeans-local", "where the centres start; the paper's random start is 'independent'")
    # the answers of models that have hardly learnt tell their last batches more than their data; the paper has none
    warmup: int = option(10, "rounds in which clients stay where they started")
    weights: Weights = option("size", "how much a client counts in the mean (eq. 17)")
    admit_epochs: int = option(10, "epochs of an unseen client before it is placed: 'a few' (section 4.3)")

    def __post_init__(self) -> None:
        _check(self)

    def init(self, task: Task, cohort: Cohort, key: Key) -> Indicated:
        return begin(self.start, task, cohort, key, self.k, self.local)

    def round(self, state: Indicated, cohort: Cohort) -> Indicated:
        got = cohort.run(self.client_update, theta=take(state.centers, state.assign[cohort.ids]))  # lines 5-8
        return regroup(state, cohort, got, self.warmup)

    def serve(self, state: Indicated, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Indicated, cohort: Cohort) -> Served:
        return place(state, cohort, self.local, self.admit_epochs)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(theta=Model(of="theta"), n=Weight())
    def client_update(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local))


@dataclass(frozen=True)
class FedDSMIC(Method[Indicated]):
    """FedDS whose centres are starts: clients train them by MAML and serve themselves a step further."""

    name: ClassVar[str] = "feddsmic"
    summary: ClassVar[str] = "FedDS with first-order MAML: each client takes a step of its own from its centre"
    paper: ClassVar[str] = "Li, Chen, Wang, Ding, Li, DASFAA 2022"
    rereads: ClassVar[bool] = True
    needs = ("public samples",)
    needs_classes: ClassVar[str] = "compares the class probabilities that models give to public samples"
    runs = (Train, Losses, Describe)

    k: int = option(4, "clusters")
    local: SGD = SGD()  # the outer step, eq. 16: its momentum is the outer step's alone
    start: Strategy = option("kmeans-local", "where the centres start; the paper's random start is 'independent'")
    warmup: int = option(10, "rounds in which clients stay where they started")
    weights: Weights = option("size", "how much a client counts in the mean (eq. 17)")
    admit_epochs: int = option(10, "epochs of an unseen client before it is placed: 'a few' (section 4.3)")
    inner_lr: float = option(0.01, "eta of eq. 15, and of the personal steps")
    independent: bool = option(True, "inner and outer batches drawn apart (eq. 14), or one (eq. 16, algorithm 2)")
    personal_steps: int = option(1, "steps of a client's own before it uses its centre")

    def __post_init__(self) -> None:
        _check(self)
        at_least(0, self, "inner_lr")
        at_least(1, self, "personal_steps")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Indicated:
        return begin(self.start, task, cohort, key, self.k, self.local)

    def round(self, state: Indicated, cohort: Cohort) -> Indicated:
        got = cohort.run(self.client_update, theta=take(state.centers, state.assign[cohort.ids]))  # lines 5-8
        return regroup(state, cohort, got, self.warmup)

    def serve(self, state: Indicated, ids: Tensor) -> Served:
        return serve_clusters(state, ids, personal=True)

    def admit(self, state: Indicated, cohort: Cohort) -> Served:
        return replace(place(state, cohort, self.local, self.admit_epochs), personal=True)

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @property
    def inner(self) -> SGD:
        """The client's own step: plain, whatever the outer rule adds."""
        rule = self.local
        return SGD(
            lr=self.inner_lr,
            lr_decay=rule.lr_decay,
            schedule=rule.schedule,
            batch=rule.batch,
            steps=self.personal_steps,
        )

    @on_client(theta=Model(of="theta"), n=Weight())
    def client_update(self, me: Client, theta: Tree) -> dict[str, Payload]:
        """Algorithm 2: w <- w - eps * grad l(w - eta * grad l(w; D); D')."""
        ahead = first_order(me, self.local, self.inner.rate(me.round), independent=self.independent)
        return reply(me, self.weights, theta=sgd(me, theta, self.local, ahead))  # eqs. 13-16

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Payload) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.inner)}


# -- algorithm 1 on the server, the same for both ------------------------------------------------------


def begin(start: Strategy, task: Task, cohort: Cohort, key: Key, k: int, local: SGD) -> Indicated:
    """Line 1."""
    x = indicators_of(task)  # missing samples are an error before anybody trains
    first = Start(start).clusters(task, cohort, key, k, local)
    return Indicated(first.centers, first.assign, x)


def regroup(state: Indicated, cohort: Cohort, got: Replies, warmup: int) -> Indicated:
    """Lines 9-15: every model to the old centre that answers most like it, then the mean of each cluster."""
    scores = answer_divergence(cohort, got["theta"], state.centers, state.indicators)  # eq. 6
    s = state.assign[got.ids] if cohort.round < warmup else scores.argmin(dim=1)  # eq. 7
    weights = got["n"] if "n" in got.fields else None
    centers = mean_by(got["theta"], s, old=state.centers, weights=weights)  # eq. 17
    assign = put(state.assign, got.ids, s)
    log_clusters(cohort, state.assign, assign, state.k)
    log_margin(cohort, scores)
    return Indicated(centers, assign, state.indicators)


def place(state: Indicated, cohort: Cohort, local: SGD, epochs: int) -> Served:
    """Unseen clients (end of section 4.3): some epochs of their own, then the centre that answers most like them.

    They start from the mean of the centres, which the paper leaves open: it favours none of them.
    """
    trainer = Train(replace(local, epochs=epochs, steps=None))
    got = cohort.run(trainer.train, {"theta": mean_all(state.centers)})
    scores = answer_divergence(cohort, got["theta"], state.centers, state.indicators)
    log_margin(cohort, scores)
    return admitted(state.centers, cohort, got, scores.argmin(dim=1))


def _check(method: FedDS | FedDSMIC) -> None:
    at_least(1, method, "k", "admit_epochs")
    at_least(0, method, "warmup")
    one_of(Weights, method, "weights")
