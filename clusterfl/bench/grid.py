"""The benchmark's fixed grid: worlds that differ in how groups differ, in label skew and in dataset, and one row per
method, world and seed. What a version of the grid means never changes; another grid is another version."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from clusterfl.bench.evidence import limit
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.methods import METHODS

VERSION = "v1"
ORACLE = "oracle"  # FedAvg inside the true groups: what perfect knowledge of them is worth

SHIFTS: Mapping[str, Mapping[str, Any]] = {
    "rotate": {"shift": "rotate", "clusters": 4},
    "permuted": {"shift": "permute_labels", "clusters": 4},
    "rotate+swap": {"shift": "rotate+swap", "clusters": 4},
    "one swap": {"shift": "swap_labels", "clusters": 2},
    "contrast": {"shift": "contrast", "clusters": 4},
    "none": {"shift": "none", "clusters": 1},
}
SKEWS: Mapping[str, float | None] = {"IID": None, "Dir .3": 0.3, "Dir .1": 0.1}
OPEN = ("digits", "mnist", "fashion_mnist")  # settings may be chosen here
HELD_OUT = ("emnist_letters", "svhn", "cifar10")  # and are only measured here
SAMPLES = {"digits": 60}  # of a client; 200 elsewhere
ROUNDS, CLIENTS = 20, 32
FIRST_CUT = {"name": "cfl", "start_round": 5}  # whatever the default is by then: rows of one version are alike


@dataclass(frozen=True)
class World:
    """What clients hold: a dataset, how its groups differ, and how skewed labels are."""

    dataset: str
    scenario: str
    skew: str

    @property
    def held_out(self) -> bool:
        return self.dataset not in OPEN

    @property
    def groups(self) -> int:
        """How many there are in truth; 1 where there are none, or none that are known."""
        found: int = self.table(0)["data"].get("clusters", 1)
        return found

    def table(self, seed: int) -> dict[str, Any]:
        """The config's table, but for the method."""
        if self.scenario == "natural writers":
            data: dict[str, Any] = {"source": "femnist", "split": "natural", "clients": 0}
        elif self.scenario == "multi-source":
            data = {"source": "multi_source", "clusters": 4, "clients": CLIENTS, "samples": 200}
        else:
            samples = SAMPLES.get(self.dataset, 200)
            data = {"source": self.dataset, "clients": CLIENTS, "samples": samples, **SHIFTS[self.scenario]}
        alpha = SKEWS[self.skew]
        if alpha is not None:
            data |= {"alpha": alpha, "alpha_per_class": True}
        return {
            "seed": seed,
            "rounds": ROUNDS,
            "eval_every": 5,
            "data": {**data, "test": "own"},
            "model": {"name": "mlp", "widths": [64]},
            "local": {"epochs": 2, "batch": 20, "lr": 0.1},
            "engine": {"name": "stacked"},
            "checkpoint": {"every": 0},
            "methods": {"cfl": FIRST_CUT, "awcfl": {"base": FIRST_CUT}, "mcfl": {"base": FIRST_CUT}},
        }


def worlds(datasets: Sequence[str]) -> list[World]:
    """All worlds over these datasets; "multi-source" and "natural writers" are datasets of their own."""
    found = [World(d, s, a) for d in datasets if d in (*OPEN, *HELD_OUT) for s in SHIFTS for a in SKEWS]
    if "multi_source" in datasets:
        found += [World("multi_source", "multi-source", skew) for skew in SKEWS]
    if "femnist" in datasets:
        found.append(World("femnist", "natural writers", "IID"))
    return found


class Entry(NamedTuple):
    """One row that is wanted."""

    world: World
    method: str
    seed: int


def entries(chosen: Sequence[World], methods: Sequence[str], seeds: Sequence[int]) -> Iterator[Entry]:
    """World by world, so that a table fills evenly when it is stopped."""
    for seed in seeds:
        for world in chosen:
            for method in methods:
                yield Entry(world, method, seed)


def config_of(entry: Entry, data_root: str | None = None) -> Config:
    """Methods that take a number of clusters are given the true one (1 counts as 4: nobody tells them)."""
    table = entry.world.table(entry.seed)
    if data_root is not None:
        table["data"]["root"] = data_root
    if entry.method != ORACLE and "public samples" in METHODS[entry.method].needs:
        table["data"]["indicators"] = 10
    k = table["data"].get("clusters", 4)
    base = {**table, "method": {"name": "ifca", "k": k if k > 1 else 4}}
    return Config.parse(base).with_method("fedavg" if entry.method == ORACLE else entry.method)


def measure(entry: Entry, data_root: str | None = None) -> dict[str, Any]:
    """The row of one entry; ``error`` says why there are no figures."""
    from clusterfl.runs.run import carry_out

    world = entry.world
    row: dict[str, Any] = {
        "version": VERSION,
        "dataset": world.dataset,
        "scenario": world.scenario,
        "skew": world.skew,
        "method": entry.method,
        "seed": entry.seed,
    }
    try:
        config = config_of(entry, data_root)
        population = config.population()
        start = time.process_time()  # what else this machine does should not count
        if entry.method == ORACLE:
            found = _oracle(config, population)
            return row | found | {"seconds": time.process_time() - start}
        outcome = carry_out(config, population).outcome
        seconds = time.process_time() - start
    except Exception as e:
        return row | {"error": f"{type(e).__name__}: {e}"[:300]}
    truth = outcome.clusters
    return row | {
        "accuracy": outcome.accuracy.mean,
        "worst5": outcome.accuracy.bottom5,
        "each": _each(outcome.records[-1].accuracy),
        "ari": None if truth is None else truth.ari,
        "clusters": outcome.clusters_found if METHODS[entry.method].clustered else None,
        "bytes_up": outcome.bytes_up,
        "bytes_down": outcome.bytes_down,
        "seconds": seconds,
        "error": "",
    }


def _each(accuracy: torch.Tensor) -> list[float | None]:
    """Client by client, so that methods can be compared in pairs."""
    return [None if math.isnan(value) else round(value, 5) for value in accuracy.tolist()]


def _oracle(config: Config, population: Population) -> dict[str, Any]:
    """FedAvg inside each true group, as if the groups were separate federations."""
    from clusterfl.runs.run import carry_out

    truth = population.truth if population.truth is not None else torch.zeros(len(population.train), dtype=torch.int64)
    accuracy = torch.zeros(population.clients, dtype=torch.float64)
    up = down = 0
    for group in truth.unique():
        ids = (truth[: population.clients] == group).nonzero().flatten()
        part = replace(
            population,
            train=population.train.select(ids),
            test=population.test.select(ids),
            clients=len(ids),
            truth=None,
            names=(),
        )
        outcome = carry_out(config, part).outcome
        accuracy[ids] = outcome.records[-1].accuracy.double()
        up, down = up + outcome.bytes_up, down + outcome.bytes_down
    known = accuracy[~accuracy.isnan()]
    return {
        "accuracy": float(known.mean()),
        "worst5": float(known.sort().values[:5].mean()),
        "each": _each(accuracy),
        "ari": limit(population),
        "clusters": len(truth.unique()),
        "bytes_up": up,
        "bytes_down": down,
        "error": "",
    }
