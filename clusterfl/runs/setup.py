"""Everything a run needs, put together once from its config, and the caller's own clients or model where given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.config.errors import naming
from clusterfl.config.methods import check_k
from clusterfl.data.population import Population
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.make import Load, make_engine, resolve
from clusterfl.engines.memory import give_back
from clusterfl.engines.pool import in_script
from clusterfl.errors import ClientError, ConfigError
from clusterfl.keys import Key
from clusterfl.loop import Simulation
from clusterfl.method import check_targets
from clusterfl.models import build_model
from clusterfl.record import Schedule
from clusterfl.task import Task

log = logging.getLogger(__name__)

Far = Callable[[Task, Population], BaseEngine]  # makes the engine that reaches clients on devices of their own


@dataclass(frozen=True)
class Setup:
    """A run that can start: its config with nothing left open, its clients, its learning problem."""

    config: Config
    population: Population
    task: Task
    attackers: Tensor
    far: Far | None = None

    def engine(self) -> BaseEngine:
        """The engine, started; whoever asks for it ends it."""
        config = self.config
        return make_engine(
            config.engine,
            self.task,
            self.population,
            config.device,
            attack=config.attack,
            attackers=self.attackers,
            privacy=config.privacy,
            far=None if self.far is None else self.far(self.task, self.population),
        )

    def key_of_a_look(self, what: str, *about: int | str) -> Key:
        """The key by which clients are looked at before any run. Where they add noise it is one of its own, of this
        look and all that it is ``about``: noise that another look, or a run, shares could be subtracted."""
        key = keys.key(self.config.seed)
        if not self.config.privacy.on and self.config.method.spent() is None:
            return key
        return keys.fold_in(key, what, self.config.digest(), self.population.digest, *about)

    @contextmanager
    def simulation(self) -> Iterator[Simulation]:
        """The run before its first round; its engine ends with the context."""
        config = self.config
        schedule = Schedule(
            config.rounds,
            config.participation,
            config.seed,
            config.eval_every,
            config.privacy.measures,
            config.eval_inter,
            config.eval_clients,
        )
        with self.engine() as engine, naming_clients(self.population):
            yield Simulation(config.method, self.population, engine, schedule)


def check_sampling(config: Config) -> None:
    """A secret sample stays one only where nobody looks at single uploads."""
    if config.privacy.on and config.privacy.sampling == "secret" and not config.method.only_sums():
        raise ConfigError(
            f"privacy.sampling='secret' should be 'known' for method={config.method.name!r} with these settings: its "
            "server looks at single uploads, and so at who was asked"
        )


def check_unit(config: Config) -> None:
    """A sample is charged once for each epoch of a client's rule: nothing else may read it."""
    if config.privacy.on and config.privacy.unit == "sample" and config.method.reads_again():
        raise ConfigError(
            f"privacy.unit='sample' should be 'client' for method={config.method.name!r} with these settings: its "
            "clients read samples more often than their local rule says"
        )


def check_task(task: Task, population: Population) -> None:
    """The task learns what the clients have."""
    if task.regression != population.regression:
        has = "numbers" if population.regression else f"{population.classes} classes"
        right = "loss='mse'" if population.regression else f"classes={population.classes}"
        raise ConfigError(f"task.classes={task.classes} should fit the clients' targets, which are {has}: use {right}")


def check_module(task: Task, population: Population) -> None:
    """A caller's module takes these clients' samples and has an output for every class."""
    name, x = type(task.module).__name__, population.train.x[:2]
    own = {n: t.detach() for n, t in (*task.module.named_parameters(), *task.module.named_buffers())}
    try:
        with torch.no_grad():
            outputs = task.logits(own, x)
    except Exception as e:
        said = " ".join(str(e).split())
        kind = str(x.dtype).removeprefix("torch.")
        raise ConfigError(
            f"model={name} should take samples of shape {tuple(x.shape[1:])} and type {kind}: {said}"
        ) from e
    if not population.regression and (outputs.dim() != 2 or outputs.shape[1] < population.classes):
        shape = tuple(outputs.shape[1:])
        raise ConfigError(f"model={name} should give {population.classes} outputs, one per class, but gives {shape}")


@contextmanager
def naming_clients(population: Population) -> Iterator[None]:
    """Errors on a client, which engines know by number, get its name."""
    try:
        yield
    except ClientError as e:
        known = 0 <= e.client < len(population.names)
        raise ClientError(e.procedure, e.client, e.cause, population.names[e.client] if known else None) from e


def prepare(
    config: Config,
    population: Population | None = None,
    task: Task | None = None,
    far: Far | None = None,
    *,
    start: bool = True,
    look: bool = False,
) -> Setup:
    """Loads and splits data, builds the model and decides which engine is fastest, each unless it is given.

    ``start`` says that a run is to start with these clients, and not that a few join one that has ended; ``look`` that
    they are asked about their data and train nothing.
    """
    if population is None:
        population = config.population()
        give_back()
    if start:
        check_k(config.method, population.clients)
        say_if_late(config)
    check_sampling(config)
    if not look:
        check_unit(config)
    if task is None:
        with naming("model"):
            params = config.model.params
            module = build_model(
                config.model.name,
                population.input_shape,
                population.outputs,
                regression=population.regression,
                **params,
            )
        with naming("task"):
            task = config.task.of(module, population.classes)
    else:
        try:
            task.check_draws(population.train.x[:2])
        except ValueError as e:
            raise ConfigError(str(e)) from e
        check_module(task, population)
    check_task(task, population)
    with naming("method"):
        check_targets(config.method, regression=task.regression)
    if population.indicators is not None:
        task = task.with_public(population.indicators[0])
    per_round = max(1, round(config.participation * population.clients))
    load = Load(config.local, per_round, config.rounds, in_script(config.method) or in_script(task))
    engine = resolve(config.engine, task, population, config.device, load)
    resolved = config.model_copy(update={"data": config.data.resolved(), "engine": engine})
    return Setup(resolved, population, task, config.attackers(population), far)


def say_if_late(config: Config) -> None:
    """A method whose own idea begins after the last round is only its warm-up: said before the first."""
    for method in (config.method, *config.method.bases()):
        if method.waits and (rounds := getattr(method, method.waits)) >= config.rounds:
            log.warning(
                "method.%s=%d should be below rounds=%d: %s's own clustering begins only then, so in this run never",
                method.waits,
                rounds,
                config.rounds,
                method.name,
            )
