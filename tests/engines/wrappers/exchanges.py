"""Exchanges that wrappers change: procedures with the usual names and with names that nobody would guess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.engines import Serial
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.message import Cluster, Model, Payload, Procedure, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.methods import FedAvg
from clusterfl.parts.local import SGD, losses, sgd
from clusterfl.testing.small import CLIENTS, small_population, small_task
from clusterfl.tree import Tree, pick

RULE = SGD(lr=0.1, batch=10)
IDS = torch.arange(CLIENTS)


@dataclass(frozen=True)
class Usual(Procedures):
    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": sgd(me, theta, RULE)}

    @on_client(theta=Model(of="centers", row="s"), s=Cluster(of="centers"), n=Weight())
    def choose(self, me: Client, centers: Tree) -> dict[str, Payload]:
        s = losses(me, centers).argmin()
        return {"theta": sgd(me, pick(centers, s), RULE), "s": s, "n": me.size}


@dataclass(frozen=True)
class Unusual(Procedures):
    @on_client(model=Model(of="w"))
    def train(self, me: Client, w: Tree) -> dict[str, Payload]:
        return {"model": sgd(me, w, RULE)}

    @on_client(net=Model(of="nets", row="home"), home=Cluster(of="nets"), mass=Weight())
    def choose(self, me: Client, nets: Tree) -> dict[str, Payload]:
        home: Tensor = losses(me, nets).argmin()
        return {"net": sgd(me, pick(nets, home), RULE), "home": home, "mass": me.size}


def flatten(tree: Tree, names: tuple[str, ...]) -> Tensor:
    """``[m, P]`` in float64: a stack's tensors of these names."""
    return torch.cat([tree[n].flatten(1) for n in names], dim=1).double()


def moved(engine: BaseEngine, procedure: Procedure, sent: str, field: str) -> Tensor:
    """``[m, P]``: how far each client's model, in ``field`` of its reply, is from the one that all were sent."""
    theta, names = engine.task.init(keys.key(0)), engine.task.params
    got = engine.cohort(IDS, keys.key(1)).run(procedure, {sent: theta})
    return flatten(got[field], names) - torch.cat([theta[n].flatten() for n in names]).double()


def chosen_and_moved(engine: BaseEngine, procedure: Procedure, sent: str, field: str, cluster: str) -> Tensor:
    """The same where each client chose one of two models."""
    centers, names = engine.task.init_stack(keys.key(0), 2), engine.task.params
    got = engine.cohort(IDS, keys.key(1)).run(procedure, {sent: centers})
    return flatten(got[field], names) - flatten(centers, names)[got[cluster]]


# how far clients moved in the same exchange under both kinds of names
BOTH: dict[str, Callable[[BaseEngine], Tensor]] = {
    "usual": lambda engine: moved(engine, Usual().train, "theta", "theta"),
    "unusual": lambda engine: moved(engine, Unusual().train, "w", "model"),
}
BOTH_CHOOSING: dict[str, Callable[[BaseEngine], Tensor]] = {
    "usual": lambda engine: chosen_and_moved(engine, Usual().choose, "centers", "theta", "s"),
    "unusual": lambda engine: chosen_and_moved(engine, Unusual().choose, "nets", "net", "home"),
}


PRIVACY = PrivacyConfig(clip=0.5, noise_multiplier=2.0)


ALONE = FedAvg(local=RULE, weights="uniform")  # its reply is a model and nothing else


def private(make: Any = Serial, config: PrivacyConfig = PRIVACY) -> Private:
    return Private(make(small_task(), small_population()), config)
