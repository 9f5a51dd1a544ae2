"""FLUX (Fenoglio et al., NeurIPS 2025): FedAvg until it flattens, then groups by the moments of clients' features."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.errors import NoReplies
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Clusters, Method, Served, admitted, log_clusters, log_margin, serve_clusters
from clusterfl.parts.aggregate import MeanBy
from clusterfl.parts.distances import squared_distances
from clusterfl.parts.labels import one_hot_labels
from clusterfl.parts.local import SGD, sgd
from clusterfl.parts.start import first_net
from clusterfl.task import Task
from clusterfl.tree import Tree, put, repeat, row, take

Knee = Literal["farthest", "kneed"]
POINTS, TOP = 200, 2.0  # the shared random points that the projection is fitted to, and how far they reach
ABSENT = -1.0  # in place of a class's moments, where a client has not two samples of it


@dataclass(frozen=True)
class Described(Clusters):
    """The groups, one before they are found; how accurate FedAvg was; and what late clients are placed by."""

    trend: Tensor  # [rounds]: the mean accuracy before each round
    probe: Tree  # the common model by which clients were described
    scale: Tensor  # [2, 2 (C + 1), 1]: least and largest number of each block, over all clients
    homes: Tensor  # [K, 2 (C + 1), l]: the groups' mean descriptors
    known: Tensor  # [N] bool: who has been placed

    @property
    def grouped(self) -> bool:
        return bool(self.known.any())


@dataclass(frozen=True)
class FLUX(Method[Described]):
    """Clients describe their data once by means and spreads of projected features, overall and class by class.

    Shapes: N clients, C classes, l numbers after the projection.
    """

    name: ClassVar[str] = "flux"
    summary: ClassVar[str] = "FedAvg, one DBSCAN of moments of clients' features that finds K, then FedAvg per group"
    paper: ClassVar[str] = "Fenoglio, Li, Barbiero, Lane, Langheinrich, Gjoreski, NeurIPS 2025"
    needs_classes: ClassVar[str] = "describes data by the features of each class"
    waits = "least_rounds"

    local: SGD = SGD()
    flat: float = option(0.06, "clients are grouped once the mean accuracy has risen by less than this in a round")
    least_rounds: int = option(3, "rounds of FedAvg before that is looked at")
    dim: int = option(10, "l: numbers that a feature is projected to; fewer if the model has fewer")
    knee: Knee = option("farthest", "of nearest-neighbour distances: farthest below their line, or as kneed finds it")
    reach: float = option(1.0, "times that knee: how near neighbours of a group are")

    def __post_init__(self) -> None:
        at_least(0, self, "flat")
        at_least(1, self, "least_rounds", "dim")
        above(0, self, "reach")
        one_of(Knee, self, "knee")

    def init(self, task: Task, cohort: Cohort, key: Key) -> Described:
        theta, n, blocks = first_net(task, key), len(cohort), 2 * (task.classes + 1)
        nowhere = torch.zeros(1, blocks, min(self.dim, task.width))
        first, nobody = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
        return Described(repeat(theta, 1), first, torch.zeros(0), theta, torch.zeros(2, blocks, 1), nowhere, nobody)

    def round(self, state: Described, cohort: Cohort) -> Described:
        before = state.assign
        if state.grouped:
            state = self.place(state, cohort)
            cohort = cohort.only(cohort.ids[state.known[cohort.ids]])
        mean = MeanBy(state.centers, by=state.assign, weights="n")
        procedure = self.train if state.grouped else self.score_and_train
        got = cohort.run(procedure, theta=take(state.centers, state.assign[cohort.ids]), into=mean)
        state = replace(state, centers=mean.result())
        if not state.grouped:
            accuracy = (got["accuracy"] * got["n"]).sum() / got["n"].sum()
            state = replace(state, trend=torch.cat([state.trend, accuracy.reshape(1)]))
            if len(state.trend) >= self.least_rounds and bool((state.trend.diff() < self.flat).any()):
                state = self.group(state, got.cohort)
        log_clusters(cohort, before, state.assign, state.k)
        return state

    def group(self, state: Described, cohort: Cohort) -> Described:
        """The one clustering, of everybody who answers."""
        probe = row(state.centers, 0)
        with suppress(NoReplies):
            got = cohort.run(self.describe, {"theta": probe})
            got = got.take(got.ids.argsort())
            found: Tensor = got["moments"]
            scale = torch.stack([found.amin(dim=(0, 2)), found.amax(dim=(0, 2))]).unsqueeze(2)
            scaled = rescaled(found, scale)
            groups = by_density(scaled.flatten(1), self.reach, self.knee)
            k = int(groups.max()) + 1
            homes = torch.stack([scaled[groups == j].mean(dim=0) for j in range(k)])
            known = put(state.known, got.ids, torch.tensor(True))
            assign = put(state.assign, got.ids, groups)
            return replace(
                state, centers=repeat(probe, k), assign=assign, probe=probe, scale=scale, homes=homes, known=known
            )
        return state

    def place(self, state: Described, cohort: Cohort) -> Described:
        """Members that were away when clients were grouped go to the group whose descriptor is nearest."""
        late = cohort.ids[~state.known[cohort.ids]]
        if not len(late):
            return state
        with suppress(NoReplies):
            got = cohort.only(late).run(self.describe, {"theta": state.probe})
            scores = squared_distances(rescaled(got["moments"], state.scale).flatten(1), state.homes.flatten(1))
            assign = put(state.assign, got.ids, scores.argmin(dim=1))
            return replace(state, assign=assign, known=put(state.known, got.ids, torch.tensor(True)))
        return state

    def serve(self, state: Described, ids: Tensor) -> Served:
        return serve_clusters(state, ids)

    def admit(self, state: Described, cohort: Cohort) -> Served:
        """Newcomers need no labels: they are placed by the moments of all their samples, the first two blocks."""
        got = cohort.run(self.describe_inputs, {"theta": state.probe})
        mine = rescaled(got["moments"], state.scale[:, :2])
        scores = squared_distances(mine.flatten(1), state.homes[:, :2].flatten(1))
        log_margin(cohort, scores)
        return admitted(state.centers, cohort, got, scores.argmin(dim=1))

    def for_inputs(self) -> FLUX:
        return self

    def cost(self, task: Task) -> tuple[int, int]:
        return task.size, task.size + 4

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, self.local), "n": me.size}

    @on_client(
        theta=Model(of="theta"),
        accuracy=Statistic("how often the common model is right on its samples", bound=1.0),
        n=Weight(),
    )
    def score_and_train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        right = torch.zeros((), device=me.key.device)
        for x, y, w in me.train.pieces():
            hits = (me.task.logits(theta, x).argmax(dim=-1) == y).float()
            right = right + (hits if w is None else hits * w).sum()
        return {**self.train(me, theta), "accuracy": right / me.size.clamp(min=1.0)}

    @on_client(moments=Statistic("means and spreads of its projected features, overall and by class"))
    def describe(self, me: Client, theta: Tree) -> dict[str, Payload]:
        z, hot = self.latent(me, theta), one_hot_labels(me)
        overall = moments(z, hot.sum(dim=1, keepdim=True))
        by_class = moments(z, hot)
        enough = (hot.sum(dim=0) > 1).reshape(1, -1, 1)
        return {"moments": torch.cat([overall.flatten(0, 1), torch.where(enough, by_class, ABSENT).flatten(0, 1)])}

    @on_client(moments=Statistic("means and spreads of its projected features"))
    def describe_inputs(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"moments": moments(self.latent(me, theta), one_hot_labels(me).sum(dim=1, keepdim=True)).flatten(0, 1)}

    def latent(self, me: Client, theta: Tree) -> Tensor:
        """``[n, l]``: the client's features, projected as everybody's are."""
        z = torch.cat([me.task.features(theta, x) for x, _, _ in me.train.pieces()])
        center, axes = projection(me.task.width, min(self.dim, me.task.width))
        return (z - center.to(z.device)) @ axes.to(z.device)


@lru_cache
def projection(width: int, dim: int) -> tuple[Tensor, Tensor]:
    """The mean ``[width]`` and the first axes ``[width, dim]`` of a PCA of shared random points."""
    points = TOP * keys.uniform(keys.fold_in(keys.key(0), "flux", "points"), POINTS, width).double()
    center = points.mean(dim=0)
    _, _, axes = torch.linalg.svd(points - center, full_matrices=False)
    return center.float(), axes[:dim].mT.contiguous().float()


def moments(z: Tensor, member: Tensor) -> Tensor:
    """``[2, G, l]``: mean and standard deviation of the rows of ``z``, in each group that ``member`` [n, G] weighs."""
    size = member.sum(dim=0).clamp(min=1.0).unsqueeze(1)
    mean = member.mT @ z / size
    off = (z.unsqueeze(1) - mean).square() * member.unsqueeze(2)  # [n, G, l]
    return torch.stack([mean, (off.sum(dim=0) / size).sqrt()])


def rescaled(found: Tensor, scale: Tensor) -> Tensor:
    """Each block between 0 and 1 over the clients that were grouped."""
    low, high = scale[0], scale[1]
    return (found - low) / torch.where(high > low, high - low, 1.0)


def by_density(points: Tensor, reach: float, knee: Knee = "farthest") -> Tensor:
    """DBSCAN in which two neighbours make a group, and each point without one is a group of its own."""
    from sklearn.cluster import DBSCAN  # here, so that nodes start without scikit-learn

    if len(points) < 2:
        return torch.zeros(len(points), dtype=torch.int64)
    apart = squared_distances(points, points).sqrt()
    apart = ((apart + apart.mT) / 2.0).fill_diagonal_(0.0)
    nearest = apart.clone().fill_diagonal_(torch.inf).amin(dim=1).sort().values
    # a little more, for the knee is one of the distances themselves
    eps = max(KNEES[knee](nearest) * reach * (1.0 + 1e-9), 1e-12)
    groups = torch.as_tensor(DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit_predict(apart.numpy()))
    noise = groups < 0
    return torch.where(noise, groups.max() + noise.cumsum(dim=0), groups).to(torch.int64)


def farthest(values: Tensor) -> float:
    """Where a rising curve turns upwards: the value farthest below the line from its first to its last.

    A curve that never lies below it has no knee; then it is the last value, and all are near.
    """
    below = below_the_line(values)
    return float(values[int(below.argmax())] if float(below.max()) > 1e-9 else values[-1])


def first_peak(values: Tensor) -> float:
    """The knee as the package kneed has it (Kneedle): seen from the last value, the first peak of how far the curve
    lies below the line from which that falls by more than a mean step of the line.

    Two values alike fall by just a step; rounding counts for nothing here. Without a knee it is the last value.
    """
    steps = len(values) - 1
    below = below_the_line(values).flip(0)
    falls, rises, end = below.diff() <= 0, below.diff() >= 0, torch.tensor([True])
    peaks = torch.cat([end, rises]) & torch.cat([falls, end])
    troughs = torch.cat([end, falls]) & torch.cat([rises, end])
    peak = -1  # none is open
    for i in range(steps):
        if peaks[i]:
            peak = i
        if troughs[i]:
            peak = -1
        if peak >= 0 and below[i + 1] < below[peak] - 1.0 / steps - 1e-9:
            return float(values[steps - peak])
    return float(values[-1])


def below_the_line(values: Tensor) -> Tensor:
    """How far a rising curve lies below the line from its first to its last value, both axes from 0 to 1."""
    x = torch.linspace(0.0, 1.0, len(values), dtype=torch.float64)
    return x - (values.double() - values[0]) / (values[-1] - values[0]).clamp(min=1e-12)


KNEES = {"farthest": farthest, "kneed": first_peak}
