"""MCFL (Li and Yan, 2023): around any clustered method, a client holds all K models and uses the one whose
cluster's mean image is nearest to that of the data at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client, Shard, gather
from clusterfl.cohort import Cohort, Replies
from clusterfl.errors import NoReplies
from clusterfl.fields import at_least, one_of, option
from clusterfl.keys import Key
from clusterfl.message import Kept, Payload, Statistic, on_client
from clusterfl.method import Method, Served, State, admitted, log_margin
from clusterfl.methods.cfl import CFL
from clusterfl.outside import absolute, is_outside, load_function
from clusterfl.parts.aggregate import mean_by
from clusterfl.task import Task
from clusterfl.tree import Tree, pick, put

Norm = Literal["l2", "l1"]
Download = Literal["each-round", "end"]
FOURIER = 256  # random features of the kernel mean embedding


def pixels(x: Tensor) -> Tensor:
    """The inputs themselves: their mean is the mean image."""
    return x


def embedding(x: Tensor) -> Tensor:
    """Random Fourier features, the same on every client: their mean tells apart more than means of pixels do."""
    flat = x.flatten(1)
    key, d = keys.key(0).to(x.device), flat.shape[1]
    w = keys.normal(keys.fold_in(key, "w"), d, FOURIER) / d**0.5
    b = keys.uniform(keys.fold_in(key, "b"), FOURIER) * (2.0 * torch.pi)
    return torch.cos(flat @ w + b)


Feature = Callable[[Tensor], Tensor]  # of a batch of inputs, [n, ...] to [n, ...]
FEATURES: dict[str, Feature] = {"pixels": pixels, "embedding": embedding}


def feature_of(name: str) -> Feature:
    """A feature by its name here, or a function of the user's own code."""
    found: Feature = FEATURES[name] if name in FEATURES else load_function(name, "of a batch of inputs")
    return found


def known_k(method: Method[Any]) -> int:
    """How many models a method trains; a method that finds K itself starts with one."""
    base = getattr(method, "base", None)
    return known_k(base) if base is not None else getattr(method, "k", None) or 1


@dataclass(frozen=True)
class MCFLState(State):
    """The base's state, and what clients said about their data."""

    base: Any
    features: Tensor  # [N, ...]: each client's mean feature
    known: Tensor  # [N] bool: who has sent one


def remember(state: MCFLState, got: Replies) -> MCFLState:
    """The state with these clients' features; a client without samples has none (its mean is not a number)."""
    fine = got["feature"].flatten(1).isfinite().all(dim=1)
    ids, known = got.ids[fine], torch.tensor(True)
    return replace(state, features=put(state.features, ids, got["feature"][fine]), known=put(state.known, ids, known))


@dataclass(frozen=True)
class MCFL(Method[MCFLState]):
    """The base trains as ever; at test time each client picks among all K models by its unlabelled inputs."""

    name: ClassVar[str] = "mcfl"
    summary: ClassVar[str] = "any clustered base; clients hold all K models and pick by the nearest mean image"
    paper: ClassVar[str] = "Li, Yan, Computer Science 50(11A), 2023"

    base: Method[Any] = option(CFL(), "the clustered method around which it works")
    samples: int = option(100, "inputs per mean, in training and at test time (the paper's n, not stated)")
    feature: str = option("pixels", "whose mean is compared: 'pixels', 'embedding' or a function, as mine.py:name")
    noise: float = option(0.0, "standard deviation of Gaussian noise on what a client sends")
    norm: Norm = option("l2", "how far apart means are")
    download: Download = option("each-round", "when clients get the K models")

    def __post_init__(self) -> None:
        if not self.base.clustered:
            raise ValueError(f"base={self.base.name!r} should be a clustered method")
        if self.base.mixture:
            raise ValueError(f"base={self.base.name!r} should give each client one model, not a mixture of K")
        at_least(1, self, "samples")
        at_least(0, self, "noise")
        one_of(Norm, self, "norm")
        one_of(Download, self, "download")
        if self.feature not in FEATURES:
            if not is_outside(self.feature):
                raise ValueError(f"feature={self.feature!r} should be one of {sorted(FEATURES)} or FILE.py:NAME")
            object.__setattr__(self, "feature", absolute(self.feature))
            feature_of(self.feature)

    def init(self, task: Task, cohort: Cohort, key: Key) -> MCFLState:
        base = self.base.init(task, cohort, key)
        got = cohort.run(self.describe)
        n, shape = len(cohort), got["feature"].shape[1:]
        return remember(MCFLState(base, torch.zeros(n, *shape), torch.zeros(n, dtype=torch.bool)), got)

    def round(self, state: MCFLState, cohort: Cohort) -> MCFLState:
        state = replace(self.ask(state, cohort), base=self.base.round(state.base, cohort))
        if self.download == "each-round":
            with suppress(NoReplies):  # Alg. 2, line 3.3.2; the round counts even if nobody is there any more
                cohort.run(self.receive, {"centers": self.base.serve(state.base, cohort.ids).models})
        return state

    def ask(self, state: MCFLState, cohort: Cohort) -> MCFLState:
        """Everybody sends a mean feature once; those who did not answer at the start, now."""
        silent = cohort.ids[~state.known[cohort.ids]]
        if not len(silent):
            return state
        with suppress(NoReplies):
            return remember(state, cohort.only(silent).run(self.describe))
        return state

    def means(self, state: MCFLState) -> Tensor:
        """``[K, ...]``: each cluster's mean of its members' features; infinitely far where there is none."""
        served = self.base.serve(state.base, torch.arange(len(state.known)))
        nowhere = {"x": torch.full((served.k, *state.features.shape[1:]), torch.inf)}
        return mean_by({"x": state.features[state.known]}, served.index[state.known], old=nowhere)["x"]

    def serve(self, state: MCFLState, ids: Tensor) -> Served:
        return self.choosing(state, self.base.serve(state.base, ids))

    def admit(self, state: MCFLState, cohort: Cohort) -> Served:
        served, means = self.base.serve(state.base, cohort.ids[:0]), self.means(state)
        got = cohort.run(self.describe)
        away = self.distance(got["feature"].unsqueeze(1), means, got["feature"].dim() - 1)
        log_margin(cohort, away)
        index = admitted(served.models, cohort, got, away.argmin(dim=1)).index
        return self.choosing(state, replace(served, index=index))

    def choosing(self, state: MCFLState, served: Served) -> Served:
        shared = {**served.shared, "centers": served.models, "means": self.means(state)}
        return replace(served, personal=True, shared=shared, by_data=True, maybe=None)

    def for_inputs(self) -> MCFL | None:
        trains = type(self.base).personalise is not Method.personalise  # a base's own step needs labels
        return None if trains else self

    def cost(self, task: Task) -> tuple[int, int]:
        down, up = self.base.cost(task)
        return down + (known_k(self.base) * task.size if self.download == "each-round" else 0), up

    def distance(self, a: Tensor, b: Tensor, axes: int) -> Tensor:
        """Over the last ``axes`` axes."""
        gap = (a - b).flatten(-axes)
        return gap.square().sum(dim=-1).sqrt() if self.norm == "l2" else gap.abs().sum(dim=-1)

    @on_client(feature=Statistic("the mean image (or feature) of some of its samples"))
    def describe(self, me: Client) -> dict[str, Payload]:
        mean = self.mean(me, me.train)
        if self.noise:
            mean = mean + self.noise * keys.normal(keys.fold_in(me.key, "noise"), *mean.shape)
        return {"feature": mean}

    @on_client
    def receive(self, me: Client, centers: Tree) -> dict[str, Payload]:
        """A device stores all K models; a simulation need not hold a copy for each client."""
        return {}

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Payload]:
        centers, means = shared.pop("centers"), shared.pop("means")
        mu = self.mean(me, me.test if me.test.length else me.train)  # inputs alone: no label is looked at
        k = self.distance(mu, means, mu.dim()).argmin()
        return dict(self.base.personalise(me, pick(centers, k), **shared))

    def mean(self, me: Client, shard: Shard) -> Tensor:
        """The mean feature of ``samples`` of a client's inputs, chosen at random."""
        valid = shard.n if shard.ragged else None
        order = keys.permutation(keys.fold_in(me.key, "samples"), shard.length, valid)[: self.samples]
        values = feature_of(self.feature)(gather(shard.pool_x, shard.rows[order]))
        if valid is None:
            return values.mean(dim=0)
        w = (torch.arange(len(order), device=order.device) < valid).float()
        return (values * w.reshape(-1, *([1] * (values.dim() - 1)))).sum(dim=0) / w.sum()
