"""How well groups are found before training: a grid of worlds, the best possible, and the method without a part."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.metrics import clustering
from clusterfl.parts.describe import Describe, Known, read, summaries
from clusterfl.parts.evidence import Summaries, evidence
from clusterfl.parts.features import projected, shapes
from clusterfl.parts.kinship import agglomerate, best_possible, find_groups, numbered, refine, settled
from clusterfl.parts.spreads import FLOOR, Groups, measured
from clusterfl.task import Task

SIZES = {"digits": 60}  # train samples of a client; 200 of all other sources


@dataclass(frozen=True)
class World:
    """One cell of the grid."""

    source: str
    shift: str  # 'none': there are no groups
    alpha: float | None  # Dirichlet label skew per class; None: IID
    clients: int = 32
    clusters: int = 4
    samples: int | None = None

    def population(self, seed: int, root: str | None = None) -> Population:
        joined = self.source == "multi_source"
        config = DataConfig(
            source=self.source,
            root=root,
            clients=self.clients,
            clusters=self.clusters if self.shift != "none" or joined else 1,
            shift="none" if joined else self.shift,
            samples=self.samples or SIZES.get(self.source, 200),
            alpha=self.alpha,
            alpha_per_class=self.alpha is not None,
        )
        return build(config, keys.key(seed))

    @property
    def name(self) -> str:
        return f"{self.source} {self.shift} {'IID' if self.alpha is None else f'Dir({self.alpha:g})'}"


# -- the method, whole and without one of its parts ----------------------------------------------------------


def whole(known: Known) -> Groups:
    return find_groups(_summaries(known))


def without_mask(known: Known) -> Groups:
    """A class that a client lacks counts as one sample at the origin, in place of saying nothing."""
    s = _summaries(known)
    return find_groups(replace(s, weights=s.weights.clamp(min=1.0)))


def without_unbiased_variance(known: Known) -> Groups:
    """tau² is the plain variance between clients, and whitening keeps its inverse's bias."""
    s = _summaries(known)
    f, d = float(known.freedom), s.means.shape[-1]
    s = replace(s, means=s.means * math.sqrt(f / max(f - d - 1, 0.2 * f)))
    use = s.weights > 0
    plain = [s.means[use[:, c], c].var(dim=0).mean() for c in range(use.shape[1]) if int(use[:, c].sum()) > 1]
    found = measured(s, find_groups(s).labels, own=False)
    spread = replace(found.spread, tau2=max(float(torch.stack(plain).mean()), FLOOR))
    turned = found.turned(s)
    return replace(found, labels=refine(turned, agglomerate(turned, spread), spread), spread=spread)


def without_pooling(known: Known) -> Groups:
    """Average linkage of the evidence between single clients, in place of pooled counts and means."""
    s = _summaries(known)
    found = measured(s, torch.zeros(len(s), dtype=torch.int64), own=False)
    turned = found.turned(s)
    table, labels = evidence(turned, turned, found.spread), torch.arange(len(s))
    while len(labels.unique()) > 1:
        hot = torch.nn.functional.one_hot(numbered(labels)).double()
        size = hot.sum(dim=0)
        mean = (hot.T @ table @ hot) / (size.unsqueeze(1) * size)
        mean.fill_diagonal_(-torch.inf)
        i, j = divmod(int(mean.argmax()), len(size))
        if mean[i, j] <= 0:
            break
        names = numbered(labels)
        labels = torch.where(names == j, i, names)
    return replace(found, labels=numbered(labels))


def without_stop(known: Known) -> Groups:
    """Two groups stay apart as soon as the evidence for two is above 0, however many ways to cut them there are."""
    s = _summaries(known)
    return find_groups(replace(s, size=torch.zeros_like(s.size)))


def without_refinement(known: Known) -> Groups:
    s = _summaries(known)
    found = find_groups(s)
    return replace(found, labels=agglomerate(found.turned(s), found.spread))


def without_client_effect(known: Known) -> Groups:
    return find_groups(_summaries(known), effect=False)


def without_second_look(known: Known) -> Groups:
    """What classes have in common is the clients' own from the start."""
    s = _summaries(known)
    return settled(s, torch.zeros(len(s), dtype=torch.int64))


def without_narrow_look(known: Known) -> Groups:
    """Groups differ in all directions."""
    return find_groups(_summaries(known), narrow=False)


VARIANTS: dict[str, Callable[[Known], Groups]] = {
    "whole": whole,
    "no mask": without_mask,
    "biased variance": without_unbiased_variance,
    "no pooling": without_pooling,
    "no stop": without_stop,
    "no refinement": without_refinement,
    "no client effect": without_client_effect,
    "no second look": without_second_look,
    "all directions": without_narrow_look,
    "no light": whole,
    "pixels": whole,
}


def _summaries(known: Known) -> Summaries:
    return summaries(known.counts, known.means, known.blur, known.scatter, float(known.freedom))[0]


# -- the study -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pixels(Describe):
    """Projected inputs in place of random features."""

    def features(self, me: Client, x: Tensor, theta: Any) -> Tensor:
        return projected(x.flatten(1), self.dims)


@dataclass(frozen=True)
class Shapes(Describe):
    """The random convolution alone, which does not see light and contrast."""

    def features(self, me: Client, x: Tensor, theta: Any) -> Tensor:
        return projected(shapes(x), self.dims)


FEATURES: dict[str, type[Describe]] = {"pixels": Pixels, "no light": Shapes}


def describe_all(population: Population, describe: Describe) -> Known:
    """What all training clients say, without an engine: only classes are asked of the task."""
    task = Task(torch.nn.Linear(1, population.classes), population.classes)
    train = population.train
    replies: list[Any] = []
    for i in range(population.clients):
        rows = train.rows_of(i)
        shard = Shard(train.x, train.y, rows, len(rows))
        me = Client(task, shard, shard, keys.fold_in(keys.key(0), "study", i), smallest=len(rows))
        replies.append(describe.describe(me))
    stacked: dict[str, Any] = {name: torch.stack([r[name] for r in replies]) for name in replies[0]}
    return read(stacked, describe)


def limit(population: Population) -> float | None:
    """ARI of the best that can be known from what clients say before training; None without true groups."""
    if population.truth is None:
        return None
    truth = population.truth[: population.clients].unique(return_inverse=True)[1]
    return clustering(best_possible(_summaries(describe_all(population, Describe())), truth), truth).ari


def study(
    worlds: Sequence[World], seeds: Sequence[int], variants: Sequence[str], describe: Describe, root: str | None = None
) -> Iterator[dict[str, Any]]:
    """One row per world, seed and variant: ARI, the oracle's, groups found, seconds of the server."""
    for world in worlds:
        for seed in seeds:
            population = world.population(seed, root)
            truth = torch.zeros(population.clients, dtype=torch.int64)
            if population.truth is not None:
                truth = population.truth[: population.clients].unique(return_inverse=True)[1]
            said: dict[type[Describe], Known] = {}
            for variant in variants:
                kind = FEATURES.get(variant, Describe)
                if kind not in said:
                    said[kind] = describe_all(population, kind(*_fields(describe)))
                start = time.perf_counter()
                found = VARIANTS[variant](said[kind])
                seconds = time.perf_counter() - start
                best = best_possible(_summaries(said[kind]), truth)
                yield {
                    "world": world.name,
                    "seed": seed,
                    "variant": variant,
                    "ari": clustering(found.labels, truth).ari,
                    "oracle": clustering(best, truth).ari,
                    "groups": int(found.labels.max()) + 1,
                    "true_groups": int(truth.max()) + 1,
                    "seconds": seconds,
                }


def _fields(describe: Describe) -> tuple[Any, ...]:
    return describe.dims, describe.noise, describe.unit


def synthetic_statistics(
    n: int, key: keys.Key, *, groups: int = 5, classes: int = 10, dims: int = 64
) -> tuple[Summaries, Tensor]:
    """Whitened summaries of n clients as the model has them, with Dirichlet-like holes, and the true groups."""
    dims, truth = Describe().dims, keys.randint(keys.fold_in(key, "groups"), groups, n)
    mu = 0.5 * keys.normal(keys.fold_in(key, "means"), groups, classes, dims).double()
    counts = (-60.0 * keys.uniform(keys.fold_in(key, "counts"), n, classes).clamp(min=1e-6).log() - 20.0).clamp(min=0.0)
    counts = counts.floor().double()
    noise = keys.normal(keys.fold_in(key, "noise"), n, classes, dims).double()
    means = mu[truth] + noise / counts.clamp(min=1.0).sqrt().unsqueeze(-1)
    ones = torch.ones(n, dtype=torch.float64)
    return Summaries(counts, means * (counts > 0).unsqueeze(-1), ones, ones), truth


def scale(n: int) -> dict[str, Any]:
    """Seconds of the processor that the server takes to group n clients, and whether it finds the groups."""
    s, truth = synthetic_statistics(n, keys.key(0))
    start = time.process_time()
    found = find_groups(s)
    seconds = time.process_time() - start
    return {
        "clients": n,
        "seconds": seconds,
        "groups": int(found.labels.max()) + 1,
        "ari": clustering(found.labels, truth).ari,
    }
