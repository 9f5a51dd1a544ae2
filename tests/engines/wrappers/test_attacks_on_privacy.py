"""What epsilon claims, put to the test: whoever sees an upload tries to learn what its client holds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial, Stacked
from clusterfl.engines.wrappers.accounting import epsilon
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.methods import IFCA, FedAvg
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.testing.small import CLASSES, WIDTH, small_population
from tests.engines.wrappers.exchanges import flatten

pytest.importorskip("dp_accounting")

RULE = SGD(lr=1.0, batch=64)
TRIES = 400
DELTA = 1e-3
METHODS: list[Any] = [
    FedAvg(local=RULE, weights="uniform"),
    IFCA(k=2, local=RULE, weights="uniform", start="independent"),
]


def linear() -> Task:
    return Task(nn.Linear(WIDTH, CLASSES), CLASSES)


def victims(x: Tensor, y: Tensor) -> Population:
    """Many clients that hold these samples: each draws noise of its own."""
    parts = Shards.from_parts([(x, y)] * TRIES)
    return replace(small_population(), train=parts, test=parts, clients=TRIES, truth=None, names=())


def uploads(method: Any, engine: Any, tries: int = TRIES) -> Tensor:
    """``[tries, P]``: how far clients moved the model they began from."""
    ids, names = torch.arange(tries), engine.task.params
    cohort = engine.cohort(ids, keys.key(6))
    if isinstance(method, IFCA):
        sent = engine.task.init_stack(keys.key(5), 2)
        got = cohort.run(method.choose_and_train, {"centers": sent})
        assert len(got["s"].unique()) == 1, "which cluster they choose is given"
        return flatten(got["theta"], names) - flatten(sent, names)[got["s"]]
    theta = engine.task.init(keys.key(5))
    got = cohort.run(method.train, {"theta": theta})
    return flatten(got["theta"], names) - torch.cat([theta[n].flatten() for n in names]).double()


def worlds() -> tuple[Population, Population]:
    """Two that differ in one client's whole data: the same cluster is chosen, the update goes another way."""
    x, y = small_population().train.of(0)
    return victims(x, y), victims(x, (y + 1) % CLASSES)


def distinguished(method: Any, noise: float) -> float:
    """The epsilon that an attacker who knows both worlds, and all but the noise, demonstrates."""
    config = PrivacyConfig(clip=0.5, noise_multiplier=noise, delta=DELTA)
    task = linear()
    plain = [uploads(method, Serial(task, population), 1)[0] for population in worlds()]
    assert min(float(u.norm()) for u in plain) > 0.5, "both are cut"
    cut = [u * min(1.0, 0.5 / float(u.norm())) for u in plain]
    direction = cut[0] - cut[1]  # the likelihood ratio of two Gaussians grows along it
    seen = [uploads(method, Private(Stacked(task, p), config)) @ direction for p in worlds()]
    best = 0.0
    for threshold in torch.cat(seen).quantile(torch.linspace(0.02, 0.98, 49, dtype=torch.float64)):
        for side in (1, -1):
            true, false = (float((side * s > side * threshold).double().mean()) for s in seen)
            slack = 3.0 / math.sqrt(TRIES)  # by chance alone
            if true - slack - DELTA > 0:
                best = max(best, math.log(max((true - slack - DELTA) / (false + slack), 1e-9)))
    return best


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_nobody_tells_two_clients_apart_better_than_epsilon_says(method: Any) -> None:
    for noise in (2.0, 8.0):
        assert distinguished(method, noise) <= epsilon(1, noise, DELTA)
    assert distinguished(method, 0.1) > 1.5, "and the attack is one: with little noise it tells them apart"


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_sample_cannot_be_read_off_an_upload(method: Any) -> None:
    """Of one sample, a linear model's update is the sample itself, scaled."""
    secret = keys.normal(keys.key(9), 1, WIDTH)
    task, population = linear(), victims(secret, torch.tensor([1]))

    def read(engine: Any, tries: int) -> Tensor:
        moves = uploads(method, engine, tries)[:, : CLASSES * WIDTH].reshape(tries, CLASSES, WIDTH)
        return torch.nn.functional.cosine_similarity(moves[:, 1], secret.double()).abs()

    assert float(read(Serial(task, population), 1)) > 0.999, "it can, without noise"
    strong = PrivacyConfig(clip=0.5, noise_multiplier=20.0)
    found = read(Private(Stacked(task, population), strong), TRIES)
    noise = keys.normal(keys.key(3), TRIES, WIDTH).double()
    guessed = torch.nn.functional.cosine_similarity(noise, secret.double()).abs()
    assert float(found.mean()) < float(guessed.mean()) + 0.05, "no better than a guess"
