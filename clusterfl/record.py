"""What a run is asked to do, what it measures in a round, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clusterfl.cohort import Spent
from clusterfl.data.population import Population
from clusterfl.method import Method, Served, State
from clusterfl.metrics import Clustering, Figures
from clusterfl.scores import Metric


@dataclass(frozen=True)
class Schedule:
    """How long, how many at a time, how often measured."""

    rounds: int = 20
    participation: float = 1.0
    seed: int = 0
    eval_every: int = 1
    measured: bool = True  # whether clients' test data is looked at, at all
    eval_inter: bool = False  # also what cluster models score at home and abroad, whenever accuracy is measured
    eval_clients: int | float | None = None  # how many clients, or which share, are measured; None: all

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise ValueError(f"rounds={self.rounds} should be at least 0")
        if not 0.0 < self.participation <= 1.0:
            raise ValueError(f"participation={self.participation} should be above 0 and at most 1")
        if self.eval_every < 1:
            raise ValueError(f"eval_every={self.eval_every} should be at least 1")
        check_eval_clients(self.eval_clients)


def check_eval_clients(value: Any) -> None:
    number, share = isinstance(value, int) and not isinstance(value, bool), isinstance(value, float)
    if value is None or (number and value >= 1) or (share and 0.0 < value <= 1.0):
        return
    raise ValueError(
        f"eval_clients={value!r} should be a number of clients (at least 1) or a share (above 0, at most 1.0)"
    )


@dataclass(frozen=True)
class Record(State):
    """One round, measured."""

    round: int  # 0 is the state before the first round
    assign: Tensor  # [N]: the cluster of each client
    scores: dict[str, Tensor]  # [N] each, by the metric's name, the main one first; none where not measured
    moved: float  # share of clients whose cluster changed
    bytes_down: int  # so far
    bytes_up: int
    logged: dict[str, float]
    seconds: float  # this round's, evaluation included
    rejected: int = 0  # replies that were turned down in this round
    epsilon: float | None = None  # privacy spent so far, if it is accounted
    intra: float | None = None  # where it is asked for: cluster models at home
    inter: float | None = None  # and abroad; None with one cluster
    sampled: int | None = None  # how many clients were measured, where it was a sample; the others' scores are NaN

    def score(self, name: str) -> Tensor:
        """A metric of every client, NaN where it was not measured this round."""
        nothing = torch.full((len(self.assign),), torch.nan, dtype=torch.float64)
        return self.scores.get(name, nothing)

    @property
    def accuracy(self) -> Tensor:
        return self.score("accuracy")

    @property
    def loss(self) -> Tensor:
        return self.score("loss")

    @property
    def measured(self) -> bool:
        return bool(self.scores) and not bool(next(iter(self.scores.values())).isnan().all())

    @property
    def lost(self) -> bool:
        """Whether no sound reply came in this round, so that the state stayed as it was."""
        return bool(self.logged.get("no_replies"))


@dataclass(frozen=True, repr=False)
class Outcome:
    """Where a run ended."""

    method: Method[Any]
    population: Population
    state: State
    served: Served
    records: list[Record]
    metric: Metric  # the main one
    figures: dict[str, Figures]  # of every metric at the end, by its name
    global_accuracy: float  # the served model before personalisation
    global_weighted: float  # the same, over all clients' samples together
    top5_rounds: float
    clusters: Clustering | None
    clusters_found: int
    intra: float
    inter: float | None
    unseen: Tensor | None  # the main metric of each unseen client
    unseen_assign: Tensor | None
    bytes_down: int
    bytes_up: int
    seconds: float
    spent: Spent | None = None  # privacy, newcomers included
    cross: Tensor | None = None  # [N, K]: every model on every client's test data, before personalisation
    either: dict[int, list[int]] = field(default_factory=dict)  # the clusters of clients that may be in several

    @property
    def score(self) -> Figures:
        """The main metric over clients."""
        return self.figures[self.metric.name]

    @property
    def accuracy(self) -> Figures:
        return self.figures.get("accuracy", Figures.none())

    @property
    def f1(self) -> Figures:
        return self.figures.get("f1", Figures.none())

    @property
    def margin(self) -> float | None:
        """How clear the last choice of clusters was: the mean gap to the second-best, over the best."""
        return next((r.logged["margin"] for r in reversed(self.records) if "margin" in r.logged), None)

    def assignments(self) -> dict[str, int]:
        """Each training client's cluster, by name."""
        return dict(zip(self.population.names, self.records[-1].assign.tolist(), strict=False))

    def __repr__(self) -> str:
        """The run in a few lines, with who is where."""
        right, score = self.clusters, self.score
        quality = f"intra {self.intra:.3f}" + ("" if self.inter is None else f", inter {self.inter:.3f}")
        quality += "" if self.margin is None else f", margin {self.margin:.2f}"
        first = (
            f"{self.method.name} on {self.population.name}, {self.records[-1].round} rounds: "
            f"{self.metric.name} {score.mean:.3f} ± {score.std:.3f} over {self.population.clients} clients, "
            f"{self.clusters_found} clusters, " + (quality if right is None else f"ARI {right.ari:.2f}")
        )
        homes: dict[int, list[str]] = {}
        for name, k in self.assignments().items():
            homes.setdefault(k, []).append(name)
        lines = [
            f"cluster {k}: {', '.join(names[:6])}{f', … ({len(names)})' if len(names) > 6 else ''}"
            for k, names in sorted(homes.items())[:12]
        ]
        more = [f"… and {len(homes) - 12} clusters more"] if len(homes) > 12 else []
        return "\n".join([first, *lines, *more])
