"""MD-ICFL (Zhang et al., Machine Learning 2024): the server tells clusters apart by how far a client's model
answers from each centre on pseudo samples of that centre."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort, Replies
from clusterfl.errors import NoReplies
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Cluster, Labels, Model, Payload, on_client, on_server
from clusterfl.method import Clusters, Method, Served, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import mean_all, mean_by
from clusterfl.parts.describe import Describe
from clusterfl.parts.distances import class_distance, outputs
from clusterfl.parts.labels import label_ratios
from clusterfl.parts.local import SGD, Losses, Train, sgd
from clusterfl.parts.pseudo import BackSearch, GeneratorSearch, Prior, Sampler, search
from clusterfl.parts.start import Start, Strategy
from clusterfl.task import Task
from clusterfl.tree import Tree, put, take

Privacy = Literal["weak", "strong"]
Search = Literal["back-search", "generator"]


@dataclass(frozen=True)
class MDState(Clusters):
    """The clusters, and what the server has learnt on the way."""

    p: Tensor | None = None  # [N, C] label ratios, a row of zeros where not yet sent; None: strong privacy
    found: Tree | None = None  # stack [K]: what the sampler found last, where it starts warm


class Pseudo(NamedTuple):
    """The pseudo datasets D_j^k."""

    x: Tensor  # [K, C, M, *shape]
    h: Tensor  # [K, C, M, C]: the centres' own answers
    found: Tree | None  # stack [K]: what was searched, to go on from; None unless it starts warm


@dataclass(frozen=True)
class MDICFL(Method[MDState]):
    """One model down and up; the server assigns clients by the class-wise distance of models."""

    name: ClassVar[str] = "md-icfl"
    summary: ClassVar[str] = "one model down; the server assigns clients by model distance on pseudo samples"
    paper: ClassVar[str] = "Zhang, Zhang, Cheng, Bao, Cao, Jiang, Xu, Machine Learning 2024"
    needs_classes: ClassVar[str] = "compares models class by class"
    runs = (Train, Losses, Describe)

    waits = "warmup"

    k: int = option(4, "clusters")
    local: SGD = SGD()
    start: Strategy = option("kmeans-local", "where the centres start; the paper's random start is 'independent'")
    start_rounds: int = option(3, "how many times as long as later ones the local round of that start is")
    # centres that have hardly learnt answer alike, and the first comparisons would gather all clients at one of them;
    # the paper has none
    warmup: int = option(5, "rounds in which clients stay where they started")
    privacy: Privacy = option("weak", "algorithm 1 (weak: the server learns label ratios) or 2 (strong)")
    sampler: Search = option("back-search", "eq. 6 or 7: MD-ICFL-1 or -2")
    samples: int = option(30, "M: pseudo samples per class and cluster")
    iterations: int | None = option(None, "of the sampler; unset: 100 for back-search, 1000 for a generator")
    rate: float | None = option(None, "of the sampler's Adam; unset: 0.1 for back-search, 0.01 for a generator")
    penalty: float = option(0.1, "lambda")
    prior_mean: float = option(0.0, "mu(x); pixels go from -1 to 1")
    squared: bool = option(False, "the norm of eqs. 6 and 7 squared")
    generator_batch: int = option(100, "samples in a step of the generator")
    generator_noise: int = option(16, "its inputs")
    generator_hidden: int = option(256, "its hidden layer")
    warm: bool = option(False, "each search goes on where the last round's ended, for warm_iterations")
    warm_iterations: int = option(20, "of the sampler where it starts warm")
    admit_rounds: int = option(5, "local rounds of an unseen client before it is assigned")

    def __post_init__(self) -> None:
        one_of(Privacy, self, "privacy")
        one_of(Search, self, "sampler")
        counts = (
            "k",
            "start_rounds",
            "samples",
            "iterations",
            "generator_batch",
            "generator_noise",
            "generator_hidden",
        )
        at_least(1, self, *counts, "warm_iterations", "admit_rounds")
        if self.sampler == "generator" and self.generator_batch < 2:
            raise ValueError(f"generator_batch={self.generator_batch} should be at least 2 for its batch norm")
        at_least(0, self, "warmup", "penalty")
        above(0, self, "rate")

    def init(self, task: Task, cohort: Cohort, key: Key) -> MDState:
        first = Start(self.start).clusters(task, cohort, key, self.k, self.local.longer(self.start_rounds))
        p = torch.zeros(len(cohort), task.classes) if self.privacy == "weak" else None
        return MDState(first.centers, first.assign, p)

    def round(self, state: MDState, cohort: Cohort) -> MDState:
        sent = take(state.centers, state.assign[cohort.ids])
        if cohort.round < self.warmup or self.k == 1:  # one centre needs no telling apart
            got = cohort.run(self.train, theta=sent)
            log_clusters(cohort, state.assign, state.assign, self.k)
            return replace(state, centers=mean_by(got["theta"], state.assign[got.ids], old=state.centers))
        # lines 3-7; the search needs the old centres alone, "can be performed simultaneously" (section 3.4)
        got, pseudo = cohort.run_beside(lambda: self.pseudo(state, cohort), self.train, theta=sent)
        got, p = self.ratios_of(got, state.p)  # line 6: p_i comes with a client's first model
        got, s = self.closest(got, p, pseudo)  # lines 8-11
        centers = mean_by(got["theta"], s, old=state.centers)  # line 12
        assign = put(state.assign, got.ids, s)
        log_clusters(cohort, state.assign, assign, self.k)
        return MDState(centers, assign, p, pseudo.found)

    def serve(self, state: MDState, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: MDState, cohort: Cohort) -> Served:
        if self.k == 1:
            return Served(state.centers, torch.zeros(len(cohort), dtype=torch.int64))
        # not in the paper: training from the mean of the centres, long enough to forget where it began
        got = cohort.run(Train(self.local.longer(self.admit_rounds)).train, {"theta": mean_all(state.centers)})
        ids = torch.zeros(int(cohort.ids.max()) + 1, dtype=torch.int64)
        p = torch.zeros(len(ids), cohort.task.classes) if self.privacy == "weak" else None
        got, p = self.ratios_of(got, p)
        got, s = self.closest(got, p, self.pseudo(state, cohort))
        return Served(state.centers, put(ids, got.ids, s)[cohort.ids])

    def cost(self, task: Task) -> tuple[int, int]:
        # label ratios are sent once, before any ordinary round
        extra = (4 * self.k * task.classes, 8) if self.privacy == "strong" and self.k > 1 else (0, 0)
        return task.size + extra[0], task.size + extra[1]

    # -- on the server -------------------------------------------------------------------------------

    @property
    def searcher(self) -> Sampler:
        prior = Prior(self.penalty, self.prior_mean, self.squared)
        if self.sampler == "back-search":
            return BackSearch(self.samples, prior, self.rate or 0.1)
        sizes = self.generator_batch, self.generator_noise, self.generator_hidden
        return GeneratorSearch(self.samples, prior, self.rate or 0.01, *sizes)

    def pseudo(self, state: MDState, cohort: Cohort) -> Pseudo:
        """The samplers of all centres, at once."""
        got: Any
        if state.found is None:
            got = cohort.map(self.sample, centers=state.centers)
        else:
            got = cohort.map(self.resample, centers=state.centers, found=state.found)
        return Pseudo(got["x"], got["h"], got.get("found"))

    def ratios_of(self, got: Replies, p: Tensor | None) -> tuple[Replies, Tensor | None]:
        """Asks newcomers for their label ratios; who does not answer is asked again another time."""
        if p is None:
            return got, None
        new = got.ids[p[got.ids].sum(dim=1) == 0]
        if len(new):
            with suppress(NoReplies):
                asked = got.cohort.only(new).run(self.ratios)
                p = put(p, asked.ids, asked["p"])
        known = (p[got.ids].sum(dim=1) > 0).nonzero().flatten()
        if not len(known):
            raise NoReplies(f"{type(self).__name__}.ratios")
        return got.take(known), p

    def closest(self, got: Replies, p: Tensor | None, pseudo: Pseudo) -> tuple[Replies, Tensor]:
        """Every client's nearest centre; with strong privacy the clients themselves say which it is."""
        cohort = got.cohort
        d: Any = cohort.map(self.distance, {"x": pseudo.x, "h": pseudo.h}, theta=got["theta"])["d"]  # eq. 5: [m, K, C]
        if p is None:
            log_margin(cohort, d.mean(dim=-1))  # all that the server knows: as if labels were balanced
            mine, s = got.join(cohort.run(self.choose, d=d), "s")  # algorithm 2, lines 9-12
            return mine, s
        scores = torch.einsum("mkc,mc->mk", d, p[got.ids])  # eq. 4
        log_margin(cohort, scores)
        return got, scores.argmin(dim=1)

    @on_server
    def sample(self, me: Client, centers: Tree) -> dict[str, Payload]:
        default = 100 if self.sampler == "back-search" else 1000
        return self._searched(me, centers, self.searcher.start(me), self.iterations or default)

    @on_server
    def resample(self, me: Client, centers: Tree, found: Tree) -> dict[str, Payload]:
        return self._searched(me, centers, found, self.warm_iterations)

    def _searched(self, me: Client, theta: Tree, found: Tree, iterations: int) -> dict[str, Payload]:
        found = search(me, theta, self.searcher, found, iterations)
        x = self.searcher.draw(me, found)
        reply: dict[str, Payload] = {"x": x, "h": outputs(me.task, theta, x, 2)}
        return {**reply, "found": found} if self.warm else reply

    @on_server
    def distance(self, me: Client, theta: Tree, x: Tensor, h: Tensor) -> dict[str, Payload]:
        return {"d": class_distance(me.task, theta, x, h)}

    # -- on the client -------------------------------------------------------------------------------

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local)}

    @on_client(p=Labels())
    def ratios(self, me: Client) -> dict[str, Payload]:
        return {"p": label_ratios(me)}

    @on_client(s=Cluster(of="d"))
    def choose(self, me: Client, d: Tensor) -> dict[str, Payload]:
        return {"s": (d @ label_ratios(me)).argmin()}
