"""The short way into the library from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from clusterfl.data.population import Population
from clusterfl.engines.make import EngineConfig, EngineName, Load, make_engine
from clusterfl.engines.pool import in_script
from clusterfl.loop import Outcome, Record, Schedule, Simulation
from clusterfl.method import Method
from clusterfl.models import build_model
from clusterfl.parts.local import SGD
from clusterfl.task import Task


def run(
    population: Population,
    model: nn.Module | Task | str,
    method: Method[Any],
    *,
    rounds: int = 20,
    participation: float = 1.0,
    seed: int = 0,
    eval_every: int = 1,
    engine: EngineName | EngineConfig = "auto",
    device: str = "cpu",
    on_round: Callable[[Record], None] | None = None,
) -> Outcome:
    """Trains the method on the population and measures it.

    ``model`` is any module that maps a batch to logits, a :class:`Task` (for another loss), or a name of
    ``clusterfl models``. ``on_round`` is called with the record of the start and of every round.
    """
    if isinstance(model, str):
        model = build_model(model, population.input_shape, population.classes)
    task = model if isinstance(model, Task) else Task(model, population.classes)
    task.public = None if population.indicators is None else population.indicators[0]
    chosen = engine if isinstance(engine, EngineConfig) else EngineConfig(engine)
    schedule = Schedule(rounds, participation, seed, eval_every)
    rule = getattr(method, "local", SGD())
    alone = in_script(method) or in_script(task)
    load = Load(rule, max(1, round(participation * population.clients)), rounds, alone)
    with make_engine(chosen, task, population, device, load) as made:
        simulation = Simulation(method, population, made, schedule)
        tell = on_round or (lambda record: None)
        tell(simulation.start())
        while simulation.round < rounds:
            tell(simulation.step())
        return simulation.finish()
