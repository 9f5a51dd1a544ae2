"""PACFL (Vahidian et al., AAAI 2023): groups by the angles between clients' data, found once before training."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterfl.client import Client
from clusterfl.cohort import Cohort, Replies
from clusterfl.errors import NoReplies
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import MeanBy, Weights, bytes_of, reply, weight_field
from clusterfl.parts.hierarchy import merge
from clusterfl.parts.labels import one_hot_labels
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, take

Proximity = Literal["smallest", "mean"]
Joining = Literal["average", "single", "complete"]
RANK = 1e-6  # of the largest singular value, below which a direction is rounding


@dataclass(frozen=True)
class Subspaces(Clusters):
    """The groups, and the directions that they were found by and newcomers are placed by."""

    directions: Tensor  # [N, C, p, d]: unit vectors, zero where a client lacks a class or samples of it
    known: Tensor  # [N] bool: who has sent them


@dataclass(frozen=True)
class PACFL(Method[Subspaces]):
    """Clients send the main directions of their samples once; groups are merged bottom up by the angles between them.

    Shapes: N clients, C classes, p directions of each, d numbers in a sample.
    """

    name: ClassVar[str] = "pacfl"
    summary: ClassVar[str] = "one agglomerative clustering by angles between clients' data, then FedAvg per group"
    paper: ClassVar[str] = "Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, AAAI 2023"
    needs_classes: ClassVar[str] = "compares the main directions of the data of each class"

    k: int | None = option(4, "clusters")
    threshold: float | None = option(None, "in place of k: groups are merged until they are so many degrees apart")
    local: SGD = SGD()
    directions: int = option(3, "p: singular vectors of the samples of a class")
    proximity: Proximity = option("smallest", "the smallest angle between two clients or the mean")
    linkage: Joining = option("average", "how far apart groups are")
    weights: Weights = option("size", "how much a client counts in its cluster's mean")

    def __post_init__(self) -> None:
        if self.threshold is not None and self.k is not None:
            object.__setattr__(self, "k", None)  # k has a default: naming the threshold alone is enough
        if self.k is None and self.threshold is None:
            raise ValueError("k=None and threshold=None: one of them should be given")
        at_least(1, self, "k", "directions")
        at_least(0, self, "threshold")
        one_of(Proximity, self, "proximity")
        one_of(Joining, self, "linkage")
        one_of(Weights, self, "weights")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Subspaces:
        got = cohort.run(self.describe)  # once, before anybody trains
        got = got.take(got.ids.argsort())
        if self.k is not None and self.k > len(got):
            raise ValueError(f"k={self.k} should be at most the number of clients that answered, {len(got)}")
        found = directions_of(got)
        apart = angles(found, found, self.proximity)  # the proximity matrix
        groups = merge(apart, linkage=self.linkage, k=self.k, threshold=self.threshold)
        n, k = len(cohort), int(groups.max()) + 1
        cohort.log(k=k)
        return Subspaces(
            repeat(first_net(task, key), k),
            put(torch.zeros(n, dtype=torch.int64), got.ids, groups),
            put(torch.zeros(n, *found.shape[1:]), got.ids, found),
            put(torch.zeros(n, dtype=torch.bool), got.ids, torch.tensor(True)),
        )

    def round(self, state: Subspaces, cohort: Cohort) -> Subspaces:
        before = state.assign
        state = self.place(state, cohort)
        cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        mean = MeanBy(state.centers, by=state.assign, weights=weight_field(self.weights))
        cohort.run(self.train, theta=take(state.centers, state.assign[cohort.ids]), into=mean)
        log_clusters(cohort, before, state.assign, state.k)
        return replace(state, centers=mean.result())

    def place(self, state: Subspaces, cohort: Cohort) -> Subspaces:
        """Members that were away at the start go to the group that they are nearest to, as newcomers do."""
        late = cohort.ids[~state.known[cohort.ids]]
        if not len(late):
            return state
        with suppress(NoReplies):
            got = cohort.only(late).run(self.describe)
            s = self.away(state, cohort, got).argmin(dim=1)
            return replace(
                state,
                assign=put(state.assign, got.ids, s),
                directions=put(state.directions, got.ids, directions_of(got)),
                known=put(state.known, got.ids, torch.tensor(True)),
            )
        return state

    def away(self, state: Subspaces, cohort: Cohort, got: Replies) -> Tensor:
        """``[m, K]``: how far these clients are from the members of every group, by the linkage."""
        apart = angles(directions_of(got), state.directions[state.known], self.proximity)
        homes = state.assign[state.known]
        scores = torch.stack([joined(apart[:, homes == j], self.linkage) for j in range(state.k)], dim=1)
        log_margin(cohort, scores)
        return scores

    def serve(self, state: Subspaces, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Subspaces, cohort: Cohort) -> Served:
        got = cohort.run(self.describe)  # a newcomer needs no training
        return admitted(state.centers, cohort, got, self.away(state, cohort, got).argmin(dim=1))

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + bytes_of(self.weights)

    @on_client(directions=Statistic("the main directions of its samples of every class", bound=1.0))
    def describe(self, me: Client) -> dict[str, Payload]:
        """The left singular vectors of its samples, class by class, scaled to a length of at most 1 together."""
        x, hot = me.train.x.flatten(1).double(), one_hot_labels(me).double()
        found = torch.stack([main_directions(x * hot[:, c : c + 1], self.directions) for c in range(me.task.classes)])
        return {"directions": (found / (me.task.classes * self.directions) ** 0.5).float()}

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return reply(me, self.weights, theta=sgd(me, theta, self.local))


def main_directions(x: Tensor, p: int) -> Tensor:
    """``[p, d]``: the first singular vectors of the rows of ``x``; zero beyond their rank.

    Their signs say nothing; here the largest entry of each is positive.
    """
    _, scale, vectors = torch.linalg.svd(x, full_matrices=False)
    real = scale > RANK * scale[:1].clamp(min=RANK)
    vectors = torch.where(real.unsqueeze(1), vectors, 0.0)
    vectors = F.pad(vectors, (0, 0, 0, max(0, p - vectors.shape[0])))[:p]
    top = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * torch.where(top < 0, -1.0, 1.0)


def directions_of(got: Replies) -> Tensor:
    """The unit vectors that clients sent, whatever their scale and noise."""
    return F.normalize(got["directions"], dim=-1)


def joined(apart: Tensor, linkage: Joining) -> Tensor:
    """``[m]``: how far clients are from a group, from the distances ``[m, members]``."""
    if linkage == "average":
        return apart.mean(dim=1)
    return apart.amin(dim=1) if linkage == "single" else apart.amax(dim=1)


def angles(a: Tensor, b: Tensor, proximity: Proximity) -> Tensor:
    """``[m, k]`` in degrees between clients ``a`` ``[m, C, p, d]`` and ``b`` ``[k, C, p, d]``."""
    between = smallest_angle if proximity == "smallest" else mean_angle
    return torch.stack([between(one, b.double()) for one in a.double()])


def smallest_angle(one: Tensor, b: Tensor) -> Tensor:
    """``[k]``: the smallest angle between any direction of one client and any of each other."""
    cos = torch.einsum("id,kjd->kij", one.flatten(0, 1), b.flatten(1, 2)).abs()
    return torch.rad2deg(cos.amax(dim=(1, 2)).clamp(max=1.0).arccos())


def mean_angle(one: Tensor, b: Tensor) -> Tensor:
    """``[k]``: the mean angle over the directions of the same class and rank that both have; 90 if there are none."""
    cos = torch.einsum("cpd,kcpd->kcp", one, b).abs().clamp(max=1.0)
    both = (one.square().sum(dim=-1) > 0) & (b.square().sum(dim=-1) > 0)
    total, pairs = (torch.rad2deg(cos.arccos()) * both).sum(dim=(1, 2)), both.sum(dim=(1, 2))
    return torch.where(pairs > 0, total / pairs.clamp(min=1), 90.0)
