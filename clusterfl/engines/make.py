"""Engines by name: the ``[engine]`` table of a config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from clusterfl.data.population import Population
from clusterfl.engines.attack import Attack, AttackConfig
from clusterfl.engines.auto import choose, convolutional
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.guard import Guard
from clusterfl.engines.pool import Pool
from clusterfl.engines.privacy import PrivacyConfig, Private, check_private
from clusterfl.engines.ray import Ray
from clusterfl.engines.serial import Serial
from clusterfl.engines.updates import Clip
from clusterfl.engines.wire import Wire
from clusterfl.engines.worker import Plan
from clusterfl.errors import ConfigError
from clusterfl.parts.local import SGD
from clusterfl.task import Task

EngineName = Literal["auto", "serial", "stacked", "pool", "ray", "wire"]


@dataclass(frozen=True)
class EngineConfig:
    """Which engine, and its sizes."""

    name: EngineName = "auto"  # auto (measured, then written here) | serial | stacked | pool | ray | wire
    chunk: int = 64  # clients computed together, where they are stacked
    spread: float = 1.25  # clients computed together differ at most by this factor in size
    workers: int | None = None  # pool: processes, ray: actors; unset: one per core
    stacked: bool | None = None  # pool, ray: whether workers stack clients; unset: unless the model has convolutions
    address: str | None = None  # ray: a running cluster ("auto" or "host:port"); unset: one on this machine
    channels_last: bool = False  # images in the order that convolutions on CPUs like
    guard: bool = True  # check every reply; a bad one is rejected and the round goes on
    clip_updates: float | None = None  # the server cuts longer updates to this length

    def __post_init__(self) -> None:
        for name in ("chunk", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} should be at least 1")
        if not self.spread >= 1:
            raise ValueError(f"spread={self.spread} should be at least 1")
        if self.address is not None and self.address != "auto" and ":" not in self.address:
            raise ValueError(f"address={self.address!r} should be 'auto' or 'host:port'")
        if self.clip_updates is not None and not self.clip_updates > 0:
            raise ValueError(f"clip_updates={self.clip_updates} should be above 0")


@dataclass(frozen=True)
class Load:
    """What an engine will have to do, which decides what "auto" means."""

    rule: SGD = SGD()
    per_round: int | None = None  # clients; None: all
    rounds: int = 20
    alone: bool = False  # worker processes could not follow: the method or the model is defined in the script


def resolve(
    config: EngineConfig, task: Task, population: Population, device: str = "cpu", load: Load | None = None
) -> EngineConfig:
    """The config with everything left open decided for this model, these clients and this machine."""
    if config.name in ("pool", "ray") and config.stacked is None:
        return replace(config, stacked=not convolutional(task))
    if config.name != "auto":
        return config
    if torch.device(device).type != "cpu":
        return replace(config, name="stacked")
    load = load or Load()
    per_round = load.per_round or population.clients
    got = choose(task, population, load.rule, per_round=per_round, rounds=load.rounds, alone=load.alone)
    plan = got.plan
    if got.workers > 1:
        config = replace(config, name="pool", workers=config.workers or got.workers, stacked=plan.stacked)
    else:
        config = replace(config, name="stacked" if plan.stacked else "serial")
    return replace(config, chunk=plan.chunk, spread=plan.spread, channels_last=plan.channels_last)


def make_engine(
    config: EngineConfig,
    task: Task,
    population: Population,
    device: str = "cpu",
    load: Load | None = None,
    *,
    attack: AttackConfig | None = None,
    attackers: Tensor | None = None,
    privacy: PrivacyConfig | None = None,
) -> BaseEngine:
    """The engine and all that lies between clients and server: honest clients blur what they send, attackers
    falsify it, and the server checks and cuts what comes in."""
    check_device(device)
    check_private(privacy or PrivacyConfig(), task)
    engine = _bare(resolve(config, task, population, device, load), task, population, device)
    if privacy is not None and privacy.on:
        engine = Private(engine, privacy)
    if attack is not None and attackers is not None and attack.kind not in ("none", "label-flip"):
        engine = Attack(engine, attack, attackers)
    if config.guard:
        # nobody has more samples than the largest client that the server knows of
        engine = Guard(engine, sample=population.train.x[0], most=float(population.train.sizes.max()))
    return engine if config.clip_updates is None else Clip(engine, config.clip_updates)


def _bare(config: EngineConfig, task: Task, population: Population, device: str) -> BaseEngine:
    if config.name in ("pool", "ray", "wire") and torch.device(device).type != "cpu":
        raise ConfigError(f"device={device!r} should be 'cpu' with engine.name={config.name!r}")
    if config.name == "wire":
        return Wire(task, population)
    plan = Plan(config.name == "stacked" or bool(config.stacked), config.chunk, config.channels_last, config.spread)
    if config.name == "pool":
        return Pool(task, population, plan, config.workers)
    if config.name == "ray":
        return Ray(task, population, plan, config.workers, config.address)
    return Serial(task, population, plan, device)


def check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"device={device!r} should be a PyTorch device such as 'cpu' or 'cuda:0'") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind, False):
        raise ConfigError(f"device={device!r} should be a device that this machine has, for example 'cpu'")
