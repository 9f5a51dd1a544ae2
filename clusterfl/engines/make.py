"""Engines by name: the ``[engine]`` table of a config."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clusterfl.data.population import Population
from clusterfl.engines.auto import choose, convolutional
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.chunks import Plan
from clusterfl.engines.config import EngineConfig
from clusterfl.engines.device import check_device
from clusterfl.engines.pool import NoRoom, Pool
from clusterfl.engines.ray import Ray
from clusterfl.engines.serial import Serial
from clusterfl.engines.wire import Wire
from clusterfl.engines.wrappers.attack import Attack, AttackConfig
from clusterfl.engines.wrappers.clip import Clip
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.engines.wrappers.privacy import Charged, PrivacyConfig, Private, check_private
from clusterfl.errors import ConfigError
from clusterfl.parts.local import SGD
from clusterfl.task import Task

log = logging.getLogger(__name__)


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
    far: BaseEngine | None = None,
) -> BaseEngine:
    """The engine and all that lies between clients and server: honest clients blur what they send, attackers
    falsify it, and the server checks and cuts what comes in. ``far``: the engine itself, where clients are devices."""
    check_device(device)
    check_private(privacy or PrivacyConfig(), task)
    engine = far or _unwrapped(resolve(config, task, population, device, load), task, population, device)
    if privacy is not None and privacy.on:
        engine = Private(engine, privacy) if far is None else Charged(engine, privacy)
    if attack is not None and attackers is not None and attack.kind not in ("none", "label-flip"):
        engine = Attack(engine, attack, attackers)
    if config.guard:
        # nobody has more samples than the largest client that the server knows of
        engine = Guard(engine, sample=population.train.x[0], most=float(population.train.sizes.max()))
    return engine if config.clip_updates is None else Clip(engine, config.clip_updates)


def _unwrapped(config: EngineConfig, task: Task, population: Population, device: str) -> BaseEngine:
    if config.name in ("pool", "ray", "wire") and torch.device(device).type != "cpu":
        raise ConfigError(f"device={device!r} should be 'cpu' with engine.name={config.name!r}")
    if config.name == "wire":
        return Wire(task, population)
    plan = Plan(config.name == "stacked" or bool(config.stacked), config.chunk, config.channels_last, config.spread)
    if config.name == "pool":
        try:
            return Pool(task, population, plan, config.workers)
        except NoRoom as e:
            log.warning("%s; this process computes alone, to the same bits", e)
            return Serial(task, population, plan, device)
    if config.name == "ray":
        return Ray(task, population, plan, config.workers, config.address)
    return Serial(task, population, plan, device)
