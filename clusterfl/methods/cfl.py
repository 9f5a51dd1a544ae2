"""CFL (Sattler et al., 2020): train together until updates cancel out without being small, then cut in two."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.errors import NoReplies
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, on_client
from clusterfl.method import Clusters, Method, Served, State, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import mean_by
from clusterfl.parts.hierarchy import bipartition, cosine, separation
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.sketch import EXACT, Moves
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, concat, flat, put, repeat, row, subtract, take

log = logging.getLogger(__name__)

Cut = Literal["single", "complete"]
SAMPLE = 500  # clients of a large cluster that are all compared with each other


@dataclass(frozen=True)
class Split(State):
    """An inner node of the tree: ``parent`` was cut in two and those who left became ``child``."""

    parent: int
    child: int
    round: int
    theta: Tree  # the model that the updates started from
    directions: Tensor  # [2, P]: the mean update of those who stayed and of those who left


@dataclass(frozen=True)
class CFLState(Clusters):
    """The clusters so far and how they came about."""

    splits: tuple[Split, ...]
    passed: Tensor  # [N] int64: how many of the splits each client has been through
    peak: Tensor  # 0-d: the largest norm of any update so far


@dataclass(frozen=True)
class CFL(Method[CFLState]):
    """Recursive bipartition by the cosine of updates, wherever the mean is stationary and its clients are not."""

    name: ClassVar[str] = "cfl"
    summary: ClassVar[str] = "starts as one cluster, cut in two wherever updates cancel out; finds K itself"
    paper: ClassVar[str] = "Sattler, Müller, Samek, IEEE TNNLS 2020"
    waits = "start_round"

    local: SGD = SGD()
    # norms depend on model, step size and data
    relative: bool = option(True, "eps1 and eps2 are shares of the largest update seen")
    r1: float = option(0.25, "eps1 = r1 * peak: below it a cluster's mean update counts as stationary")
    r2: float = option(1.0, "eps2 = r2 * eps1: above it a client's update counts as large")
    eps1: float = option(0.4, "the authors' value, used with relative = false")
    eps2: float = option(1.6, "the authors' value, used with relative = false")
    gap: float | None = option(0.4, "least separation of the two sides, else the cut is noise; unset: no such test")
    gamma: float | None = option(None, "the paper's bound on noise: sqrt((1 - largest cosine across) / 2) > gamma")
    start_round: int = option(5, "rounds before the first cut; in the authors' code 20")
    min_size: int = option(3, "clients of a cluster that may be cut")
    max_clusters: int | None = option(None, "no cut beyond as many clusters; unset: as many as there are cuts")
    linkage: Cut = option("single", "how a cluster is cut: single is the paper's optimum, complete the authors' code")
    exact: int = option(EXACT, "clients of a cluster up to which all are compared; more by a sample of them")

    def __post_init__(self) -> None:
        at_least(0, self, "r1", "r2", "eps1", "eps2", "start_round", "exact")
        at_least(2, self, "min_size")
        at_least(1, self, "max_clusters")
        one_of(Cut, self, "linkage")
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma} should be between 0 and 1")

    def init(self, task: Task, cohort: Cohort, key: Key) -> CFLState:
        one_cluster, no_split = torch.zeros(2, len(cohort), dtype=torch.int64)
        return CFLState(repeat(first_net(task, key), 1), one_cluster, (), no_split, torch.zeros(()))

    def round(self, state: CFLState, cohort: Cohort) -> CFLState:
        before = state.assign
        assign, passed = self.descend(cohort, state.splits, state.assign, state.passed)
        state = replace(state, assign=assign, passed=passed)
        cohort = cohort.only(cohort.ids[passed[cohort.ids] == len(state.splits)])
        got = cohort.run(self.train, theta=take(state.centers, assign[cohort.ids]))
        moves = Moves(got["theta"], state.centers, assign[got.ids], cohort.task.params)
        state = replace(state, peak=torch.maximum(state.peak, moves.norms().max()))
        for c in range(state.k):
            state = self.maybe_split(state, cohort, c, got.ids, moves)
        log_clusters(cohort, before, state.assign, state.k)
        # all clients of a cluster began at its centre: the mean model is the centre plus the mean update
        return replace(state, centers=mean_by(got["theta"], state.assign[got.ids], old=state.centers))

    def maybe_split(self, state: CFLState, cohort: Cohort, c: int, ids: Tensor, moves: Moves) -> CFLState:
        """The state with cluster ``c`` cut in two, if it is ripe for it."""
        mine = (state.assign[ids] == c).nonzero().flatten()
        mine = mine[ids[mine].argsort()]
        if not len(mine):
            return state
        members, own = ids[mine], moves.only(mine)  # rows of `own` are positions; `members` names the clients
        mean, largest = float(own.mean().norm()), float(own.norms().max())
        cohort.log(**{f"mean_norm_{c}": mean, f"max_norm_{c}": largest})
        eps1 = self.r1 * float(state.peak) if self.relative else self.eps1
        eps2 = self.r2 * eps1 if self.relative else self.eps2
        if cohort.round < self.start_round or len(mine) < self.min_size or not (mean < eps1 and largest > eps2):
            return state
        if self.max_clusters is not None and state.k >= self.max_clusters:
            return state
        leaves, across, gap = self.cut(own, cohort.key)
        cohort.log(**{f"gap_{c}": gap})
        if self.gap is not None and gap <= self.gap:
            return state
        if self.gamma is not None and ((1.0 - across) / 2.0) ** 0.5 <= self.gamma:
            return state
        stay, go = members[~leaves].tolist(), members[leaves].tolist()
        log.info("round %d: cluster %d splits into %s and %s", cohort.round, c, stay, go)
        theta, directions = row(state.centers, c), torch.stack([own.only(side).mean() for side in (~leaves, leaves)])
        return CFLState(
            concat([state.centers, repeat(theta, 1)]),
            put(state.assign, members[leaves], torch.tensor(state.k)),
            (*state.splits, Split(c, state.k, cohort.round, theta, directions)),
            put(state.passed, members, torch.tensor(len(state.splits) + 1)),
            state.peak,
        )

    def cut(self, own: Moves, key: Key) -> tuple[Tensor, float, float]:
        """Who leaves ``[m]`` bool, the largest cosine across the cut, and how far apart its sides are.

        Of a large cluster a sample is cut, and everybody goes to the side whose mean update points its way.
        """
        whole = len(own) <= self.exact
        sample = None if whole else keys.choice(keys.fold_in(key, "cut"), len(own), min(SAMPLE, len(own)))
        some = own.matrix(sample)
        similarity = cosine(some, some)
        leaves = bipartition(similarity, self.linkage)
        across, gap = float(similarity[leaves][:, ~leaves].max()), separation(similarity, leaves)
        if not whole:
            directions = torch.stack([some[side].mean(dim=0) for side in (~leaves, leaves)])
            leaves = own.assign(directions, lambda a, b: 1.0 - cosine(a, b))[0] == 1
        return leaves, across, gap

    def descend(
        self, cohort: Cohort, splits: tuple[Split, ...], assign: Tensor, passed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``assign`` and ``passed`` after the cohort's clients went through the splits that they missed.

        At a split a client trains the model that was cut and goes to the side whose update points its way.
        One that does not answer stays, and tries again when it is asked next.
        """
        assign, passed, ids = assign.clone(), passed.clone(), cohort.ids
        for j, split in enumerate(splits):
            waiting = ids[passed[ids] == j]
            there = waiting[assign[waiting] == split.parent]
            passed[waiting[assign[waiting] != split.parent]] = j + 1
            if not len(there):
                continue
            with suppress(NoReplies):
                got = cohort.only(there).run(self.train, {"theta": split.theta})
                moves = flat(subtract(got["theta"], repeat(split.theta, len(got))), cohort.task.params)
                away = 1.0 - cosine(moves, split.directions)
                log_margin(cohort, away)
                assign[got.ids] = torch.where(away.argmin(dim=1) == 1, split.child, split.parent)
                passed[got.ids] = j + 1
        return assign, passed

    def serve(self, state: CFLState, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: CFLState, cohort: Cohort) -> Served:
        fresh = torch.zeros(int(cohort.ids.max()) + 1, dtype=torch.int64)
        assign, _ = self.descend(cohort, state.splits, fresh, fresh)
        return Served(state.centers, assign[cohort.ids])

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local)}
