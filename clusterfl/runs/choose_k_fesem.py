"""The number of clusters as FeSEM's section 5.2 chooses it: a few rounds with each K on a sample of clients.

The paper keeps the K of the best accuracy, or goes by the distance within clusters. Accuracy is measured on samples
that were held out from the clients' training data: test data decides nothing. The distance falls with K as such, so its
least value would always be that of the largest K: what is taken is the elbow, after which it falls more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from clusterfl import keys
from clusterfl.cohort import Spent
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.base import BaseEngine
from clusterfl.keys import Key
from clusterfl.loop import Simulation
from clusterfl.methods.fesem import FeSEM
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.scores import ACCURACY
from clusterfl.tree import flat, take

HELD_OUT = 5  # every fifth training sample


@dataclass(frozen=True)
class Trial:
    """What a number of clusters came to."""

    k: int
    score: float  # the main metric, mean over clients, on held-out training samples
    distance: float  # mean squared distance of a client's model to its centre; it falls with k as such


@dataclass(frozen=True)
class Choice:
    k: int
    reason: str
    trials: list[Trial]
    clients: int
    rounds: int
    metric: str = ACCURACY.name
    privacy: Spent | None = None  # what it cost the clients, if that is accounted


Criterion = Literal["accuracy", "distance"]
Engines = Callable[[Population], AbstractContextManager[BaseEngine]]


def choose_by_fesem(
    population: Population,
    engine: Engines,
    rule: SGD,
    ks: Sequence[int],
    seed: int,
    *,
    sample: int,
    rounds: int = 3,
    criterion: Criterion = "accuracy",
) -> Choice:
    """FeSEM for a few rounds with every K on a sample of clients; the K of the best score, the least of equals, or that
    of the elbow of distances."""
    if criterion == "distance" and len(set(ks)) < 3:
        raise ValueError(f"k={list(ks)} should be three numbers of clusters or more: an elbow has two sides")
    some = held_out(population, sample, keys.fold_in(keys.key(seed), "sample"))
    if max(ks) > some.clients:
        raise ValueError(f"k={max(ks)} should be at most the {some.clients} clients that are looked at")
    with engine(some) as made:
        private = made.spent() is not None  # noise that two trials share could be subtracted
        seeds = [int(keys.fold_in(keys.key(seed), "trial", k)) if private else seed for k in ks]
        trials = [trial(made, some, FeSEM(k=k, local=rule), s, rounds) for k, s in zip(ks, seeds, strict=True)]
        metric, spent = made.task.metric, made.spent()
    if criterion == "distance":
        best = elbow(trials)
        reason = f"beyond {best.k} clusters the distance within FeSEM's falls more slowly, after {rounds} rounds"
    else:
        best = max(trials, key=lambda t: (metric.sign * round(t.score, 6), -t.k))
        reason = f"FeSEM with {best.k} clusters is best on held-out samples after {rounds} rounds, at {best.score:.3f}"
    return Choice(best.k, reason, trials, some.clients, rounds, metric.name, spent)


def elbow(trials: Sequence[Trial]) -> Trial:
    """The trial farthest below the line from the first to the last; the first one where the distance does not fall."""
    first, last = min(trials, key=lambda t: t.k), max(trials, key=lambda t: t.k)
    fall, width = first.distance - last.distance, last.k - first.k
    if fall <= 0.0:
        return first
    return max(trials, key=lambda t: ((first.distance - t.distance) / fall - (t.k - first.k) / width, -t.k))


def trial(engine: BaseEngine, population: Population, method: FeSEM, seed: int, rounds: int) -> Trial:
    found = Simulation(method, population, engine, Schedule(rounds, seed=seed, eval_every=rounds)).run()
    ids = torch.arange(population.clients)
    served = take(found.served.models, found.served.index)
    got = engine.cohort(ids, keys.fold_in(keys.key(seed), "distance"), rounds).run(method.local_update, theta=served)
    names = engine.task.params
    gap = flat(got["theta"], names) - flat(take(served, got.ids), names)
    return Trial(method.k, found.score.mean, float(gap.square().sum(dim=1).mean()))


def held_out(population: Population, sample: int, key: Key) -> Population:
    """Some of the clients, with every fifth of their training samples to be tested on."""
    chosen = keys.choice(key, population.clients, min(sample, population.clients)).sort().values
    shards = [population.train.rows_of(i) for i in chosen.tolist()]
    x, y = population.train.x, population.train.y
    train = [r[torch.arange(len(r)) % HELD_OUT != 0] if len(r) > 1 else r for r in shards]
    test = [r[::HELD_OUT] for r in shards]
    sides = Shards.from_rows(x, y, train), Shards.from_rows(x, y, test)
    return Population(*sides, len(chosen), population.classes, name=population.name)
