"""The durable run, for Python as for the command line: folder, checkpoints, resume, results, callbacks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from torch import nn

import clusterfl
from clusterfl.callback import Callback, Moment
from clusterfl.config import GIVEN, CheckpointConfig, Config, ModelConfig
from clusterfl.config.task import TaskConfig
from clusterfl.data.config import DataConfig
from clusterfl.data.population import Population
from clusterfl.engines.config import EngineConfig, EngineName
from clusterfl.engines.wrappers import wrapper_of
from clusterfl.engines.wrappers.attack import AttackConfig
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.errors import ClusterflError, ConfigError, NoReplies
from clusterfl.loop import Simulation
from clusterfl.method import Method
from clusterfl.parts.local import SGD
from clusterfl.record import Outcome
from clusterfl.runs.checkpoint import Checkpoints
from clusterfl.runs.data_card import write_data_card
from clusterfl.runs.details import write_details, write_pseudo
from clusterfl.runs.folder import (
    check_free,
    clear,
    config_of,
    exclusive,
    taken_up,
    withdrawn_unless_begun,
    write_config,
)
from clusterfl.runs.ledger import LedgerFile
from clusterfl.runs.results import RoundsFile, write_run
from clusterfl.runs.setup import Far, Setup, prepare
from clusterfl.task import Task


@overload
def run(
    config: Config,
    /,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Outcome: ...
@overload
def run(
    population: Population,
    model: nn.Module | Task | str,
    method: Method[Any],
    /,
    *,
    rounds: int = 20,
    participation: float = 1.0,
    seed: int = 0,
    eval_every: int = 1,
    engine: EngineName | EngineConfig = "auto",
    device: str = "cpu",
    checkpoint: CheckpointConfig | None = None,
    attack: AttackConfig | None = None,
    privacy: PrivacyConfig | None = None,
    start: Literal["fresh", "given"] = "fresh",
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Outcome: ...
def run(
    what: Config | Population,
    model: nn.Module | Task | str | None = None,
    method: Method[Any] | None = None,
    /,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
    start: Literal["fresh", "given"] = "fresh",
    **settings: Any,
) -> Outcome:
    """Trains a method on a population and measures it.

    Either a config says what to do, or a population, a model (any module that maps a batch to logits, or to
    numbers where targets are numbers; a :class:`Task` for another loss; or a name of ``clusterfl models``)
    and a method do. With ``out`` the run lives in that folder as on the command line: its config from the first second,
    a checkpoint each round, its results at the end; ``resume`` goes on where an earlier run was stopped, to the same
    bits, and starts one where there is none. ``callbacks`` are told of each round and may end the run by raising
    ``Stop``. ``start="given"`` trains on from the module's own weights, those of a pretrained model, rather than from
    fresh ones.
    """
    population: Population | None = None
    task: Task | None = None
    if isinstance(what, Config):
        given = [name for name, value in (("model", model), ("method", method)) if value is not None] + [*settings]
        if given or start != "fresh":
            raise TypeError(f"run(config) should be given no {(given or ['start'])[0]} beside: its config says all")
        config = what
    else:
        if model is None or method is None:
            raise TypeError("run(population, model, method) should be given all three")
        population = what
        task = (
            model
            if isinstance(model, Task)
            else None
            if isinstance(model, str)
            else task_of(model, what.classes, start)
        )
        config = describe(population, model if isinstance(model, str) else task, method, **settings)
    folder = None if out is None else Path(out)
    done = carry_out(config, population, task, out=folder, resume=resume, force=force, callbacks=callbacks)
    return done.outcome


def describe(
    population: Population,
    model: Task | str | None,
    method: Method[Any],
    *,
    engine: EngineName | EngineConfig = "auto",
    checkpoint: CheckpointConfig | None = None,
    attack: AttackConfig | None = None,
    privacy: PrivacyConfig | None = None,
    **schedule: Any,
) -> Config:
    """The config of a run whose data, and whose model unless it is named, come from Python."""
    named = ModelConfig.read({"name": model}) if isinstance(model, str) else None
    numbers = named is not None and population.regression
    return Config(
        **schedule,
        task=TaskConfig(loss="mse") if numbers else TaskConfig(),
        data=DataConfig(source=GIVEN, clients=population.clients, unseen=population.unseen),
        model=named or ModelConfig(GIVEN, {"sha256": digest_of(model)}),  # type: ignore[arg-type]
        local=local_of(method),
        method=method,
        engine=engine if isinstance(engine, EngineConfig) else EngineConfig(engine),
        checkpoint=checkpoint or CheckpointConfig(),
        attack=attack or AttackConfig(),
        privacy=privacy or PrivacyConfig(),
    )


def task_of(module: nn.Module, classes: int, start: Literal["fresh", "given"] = "fresh") -> Task:
    """What a bare module learns: cross-entropy of classes, squared errors of numbers (0 classes)."""
    return Task(module, classes, start=start) if classes else Task(module, loss="mse", start=start)


def local_of(method: Method[Any]) -> SGD:
    """The local rule that a method, or the one that it wraps, trains by."""
    own = getattr(method, "local", None)
    if isinstance(own, SGD):
        return own
    return next((local_of(base) for base in method.bases()), SGD())


def digest_of(task: Task) -> str:
    """SHA-256 of a model's layers, shapes and loss, and of its weights where training starts from them: equal digests
    are the same learning problem."""
    shapes = [(n, tuple(t.shape), str(t.dtype)) for n, t in task.module.state_dict().items()]
    loss = task.per_sample
    named = repr(loss) if is_dataclass(loss) else getattr(loss, "__qualname__", "")
    found = hashlib.sha256(repr((repr(task.module), shapes, task.classes, named)).encode())
    if task.start == "given":
        for tensor in task.module.state_dict().values():
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


class Done(NamedTuple):
    """A run that has ended: its config with nothing left open, and its outcome."""

    config: Config
    outcome: Outcome


def carry_out(
    config: Config,
    population: Population | None = None,
    task: Task | None = None,
    *,
    out: Path | None = None,
    resume: bool = False,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
    far: Far | None = None,
) -> Done:
    """The run that a config describes, in its folder if it has one, which nobody else may use meanwhile.

    ``far`` makes the engine where clients are devices of their own.
    """
    if config.engine.name == "flower" and far is None:
        raise ConfigError(
            "engine.name='flower' should be run on nodes, by `clusterfl federate local` or `clusterfl federate run`; "
            "for a simulation leave engine.name unset"
        )
    check_given(config, population, task)  # before anything of an earlier run is touched
    if out is None:
        setup = prepare(config, population, task, far)
        with setup.simulation() as simulation:
            begin(simulation)
            return Done(setup.config, simulation.run(callbacks))
    asked = config.model_copy(update={"data": config.data.resolved()})
    check_free(out, asked, force=force and not resume, resume=resume)
    with exclusive(out), withdrawn_unless_begun(out):
        there = config_of(out)
        if resume:
            asked = taken_up(out, asked)
        if there is None:
            clear(out)
            write_config(out, asked)
        setup = prepare(asked, population, task, far)
        with setup.simulation() as simulation:
            saving = Saving(out, setup, simulation)
            restored = resume and saving.restore()
            if there is None:
                write_begun(out, setup)
            if not restored:
                begin(simulation)
            if there is not None:  # an earlier run is lost only to one that has started
                if not resume:
                    clear(out)
                write_begun(out, setup)
            saving.own_ledger()
            outcome = simulation.run([saving, *callbacks])
            write_details(out, setup.config, simulation, outcome)
            write_pseudo(out, simulation)
        write_run(out, setup.config, setup.population, outcome)
        for callback in callbacks:
            callback.on_saved(out)
        return Done(setup.config, outcome)


def write_begun(folder: Path, setup: Setup) -> None:
    """What a run is, with nothing left open, and its data."""
    write_config(folder, setup.config)
    write_data_card(folder, setup.config, setup.population)


def check_given(config: Config, population: Population | None, task: Task | None) -> None:
    """What came from Python is there again."""
    missing = [
        name
        for name, needed in (
            ("population", config.data.source == GIVEN and population is None),
            ("model", config.model.name == GIVEN and task is None),
        )
        if needed
    ]
    if missing:
        raise ConfigError(
            f"this run was started from Python with its own {' and '.join(missing)}; go on there, with "
            "clusterfl.run(population, model, method, out=DIR, resume=True)"
        )


def begin(simulation: Simulation) -> None:
    """The start, with what a config makes impossible in one sentence."""
    try:
        simulation.start()
    except ValueError as e:
        raise ConfigError(f"method: {e}") from e
    except NoReplies as e:
        raise ClusterflError(f"the run should start with at least one sound reply, but {e}") from e


class Saving(Callback):
    """Writes each round into the run's folder before anybody else hears of it."""

    def __init__(self, folder: Path, setup: Setup, simulation: Simulation) -> None:
        config, data = setup.config.digest(), setup.population.digest
        self.folder, self.simulation = folder, simulation
        self.checkpoints = Checkpoints(
            folder, setup.config.checkpoint, config=config, data=data, version=clusterfl.__version__
        )
        self.rounds = RoundsFile(folder, setup.population, setup.task.metric)
        self.ledger: LedgerFile | None = None
        private = wrapper_of(simulation.engine, Private)  # type: ignore[arg-type]
        if private is not None:
            name = hashlib.sha256(f"{config} {data}".encode()).hexdigest()
            private.ledger = self.ledger = LedgerFile.beside(folder / "privacy.log", name)

    def own_ledger(self) -> None:
        """Puts the run's ledger in the place of another run's, which is over now."""
        if self.ledger is not None:
            self.ledger.move(self.folder / "privacy.log")

    def restore(self) -> bool:
        """Takes up the newest whole checkpoint; False where there is none."""
        restored = self.checkpoints.restore(self.simulation)
        done, asked = self.simulation.round, self.simulation.schedule.rounds
        if restored and done > asked:
            raise ConfigError(f"rounds={asked} should be at least the {done} rounds that the run has done already")
        return restored

    def on_start(self, moment: Moment) -> None:
        self.rounds.restart(moment.records)
        if moment.round == 0 and len(moment.records) == 1:
            self.checkpoints.save(self.simulation)

    def on_round(self, moment: Moment) -> None:
        self.rounds.add(moment.record)
        self.checkpoints.save(self.simulation)
