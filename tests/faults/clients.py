"""Clients and clusters at the edge."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.loop import Simulation
from clusterfl.method import Method
from clusterfl.methods import IFCA, METHODS, FedAvg
from clusterfl.parts.local import SGD
from clusterfl.record import Outcome, Schedule
from clusterfl.testing import check_same
from clusterfl.testing.compare import tensors
from clusterfl.testing.small import CLASSES, WIDTH, small_population
from tests.methods.small import LOCAL, small_method

from .common import Tally, task_for, with_clients
from .refusals import refuses

ENGINES = (Serial, Stacked)


def run(
    method: Method[Any], population: Population, engine: Any = Serial, module: Any = None, rounds: int = 2
) -> Outcome:
    """A short run behind a guard; everything in it must stay finite and in range."""
    task = task_for(population, module)
    guard = Guard(engine(task, population), sample=population.train.x[0], most=float(population.train.sizes.max()))
    sim = Simulation(method, population, guard, Schedule(rounds))
    outcome = sim.run()
    assert not guard.rejected, f"replies of clients {sorted(guard.rejected)} were rejected"
    for path, t in tensors(sim.state):
        assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{path} is not finite"
    index = outcome.served.index
    assert int(index.min()) >= 0 and int(index.max()) < outcome.served.k
    scored = population.test.sizes[: population.clients] > 0
    assert bool(torch.isfinite(outcome.records[-1].accuracy[scored]).all()), "an accuracy is not finite"
    return outcome


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """What the program logs meanwhile."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Handler(), logging.getLogger("clusterfl")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


# -- how many clusters ------------------------------------------------------------------------------


def impossible_k(tally: Tally, amount: int, folder: Path) -> None:
    """K above the number of clients and K = 0 are refused; K = 1 is FedAvg, bit for bit; K above the truth runs."""
    with tally.case("K > clients"):
        refuses(lambda: Config.load(None, ["method.name=ifca", "method.k=25"]), "method.k=25", "at most")
    with tally.case("K = 0"):
        refuses(lambda: Config.load(None, ["method.name=ifca", "method.k=0"]), "method.k=0", "at least 1")
    with tally.case("K = 1"):
        one = IFCA(k=1, local=LOCAL, start="independent")
        check_same(one, FedAvg(local=LOCAL, weights="uniform"), rounds=3)
    for name in METHODS:
        if "k" in METHODS[name].__dataclass_fields__:  # type: ignore[attr-defined]
            with tally.case(f"{name}: five clusters where there are two groups"):
                run(small_method(name, k=5), small_population())


def own_models(sim: Simulation) -> Any:
    """The clusters' models before a wrapper (AWCFL) mixes them with each other."""
    base = getattr(sim.method, "base", None)
    return sim.method.serve(sim.state, sim.ids) if base is None else base.serve(sim.state.base, sim.ids)


def emptied(name: str, seed: int) -> tuple[Simulation, int, Any] | None:
    """A run in which all clients of a cluster were lost in the last round; None if others moved into it."""
    population = small_population(seed)
    engine = Flaky(Serial(task_for(population), population), 0.0)
    sim = Simulation(small_method(name), population, engine, Schedule(6))
    sim.start()
    while own_models(sim).index.unique().numel() < 2 and sim.round < 4:
        sim.step()
    before = own_models(sim)
    assert before.index.unique().numel() > 1, "there is only one cluster"
    lost = int(before.index[0])
    mine = before.index == lost
    engine.gone = frozenset(sim.ids[mine].tolist())
    sim.step()
    return None if bool((own_models(sim).index[~mine] == lost).any()) else (sim, lost, before.models)


def silent_cluster(tally: Tally, amount: int, folder: Path) -> None:
    """Nobody of a cluster answers any more: nothing is divided by zero, its model stays, and it is reported."""
    # FedGWC cuts only after hundreds of rounds
    names = [name for name in METHODS if METHODS[name].clustered and name != "fedgwc"]
    shared: list[str] = []
    for name in names[:: max(1, len(names) // amount)]:
        with tally.case(name):
            sim, lost, before = next(found for seed in range(9) if (found := emptied(name, seed)))
            for path, t in tensors(sim.state):
                assert not t.is_floating_point() or bool(torch.isfinite(t).all()), f"{path} is not finite"
            after = own_models(sim).models
            moved = [n for n, t in before.items() if not torch.equal(t[lost], after[n][lost])]
            assert len(moved) < len(before), "nothing of its model stayed"
            if moved:
                shared.append(f"{name} ({', '.join(moved)})")
            elif not hasattr(sim.method, "base"):
                assert sim.records[-1].logged["stale"] >= 1.0, "it was not reported"
    tally.figures = "parts that all clusters share move on: " + "; ".join(shared) if shared else ""


# -- what clients hold ------------------------------------------------------------------------------


def edge(n: int, one_class: bool = False) -> Population:
    """Clients 2 and 3 hold ``n`` samples, or all of theirs in one class."""
    base = small_population()
    changed = {}
    for i in (2, 3):
        x, y = base.train.of(i)
        changed[i] = (x, torch.full_like(y, 1)) if one_class else (x[:n], y[:n])
    return with_clients(changed)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


EDGES: dict[str, Callable[[], tuple[Population, Any]]] = {
    "0 samples": lambda: (edge(0), None),
    "1 sample": lambda: (edge(1), None),
    "one class": lambda: (edge(9, one_class=True), None),
    "BatchNorm, 1 sample": lambda: (edge(1), normed()),
    "BatchNorm, a last batch of 1": lambda: (edge(11), normed()),
}


def few_samples(tally: Tally, amount: int, folder: Path) -> None:
    """Clients with 0 samples, 1 sample, one class; batches of 1 with BatchNorm; every method, serial and stacked."""
    cases = [(name, what, engine) for name in METHODS for what in EDGES for engine in ENGINES]
    for name, what, engine in cases[:: max(1, len(cases) // amount)]:
        with tally.case(f"{name}, {what}, {engine.__name__.lower()}"), log_lines() as lines:
            population, module = EDGES[what]()
            run(small_method(name), population, engine, module)
            if what == "0 samples":
                said = [line for line in lines if "without training data take no part: client-02, client-03" in line]
                assert len(said) == 1, "it was not logged once"


def same_clients() -> Population:
    """Everybody holds what client 0 holds."""
    base = small_population()
    everybody = torch.zeros(len(base.train), dtype=torch.int64)
    return dataclasses.replace(base, train=base.train.select(everybody), test=base.test.select(everybody))


def clients_alike(tally: Tally, amount: int, folder: Path) -> None:
    """Clients that are all alike, and updates that are all zero (cosines of 0/0); every method."""
    still = SGD(lr=0.0, batch=10)
    for name in list(METHODS)[:amount]:
        with tally.case(f"{name}, identical clients"):
            run(small_method(name), same_clients(), rounds=3)
        with tally.case(f"{name}, zero updates"):
            run(small_method(name, local=still), small_population(), rounds=3)
        with tally.case(f"{name}, both"):
            run(small_method(name, local=still), same_clients(), rounds=3)
