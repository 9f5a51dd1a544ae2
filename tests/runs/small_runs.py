"""A small run on digits, written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.record import Outcome
from clusterfl.runs.results import write_run
from clusterfl.runs.setup import prepare

SMALL = ["rounds=3", "data.clients=8", "data.samples=30", "data.unseen=2", "data.test_samples=100"]
SMALL += ["engine.name=serial"]

Run = tuple[Path, Config, Outcome, dict[str, Any]]  # folder, config, outcome, summary


def done(folder: Path, *overrides: str) -> tuple[Config, Outcome, dict[str, Any]]:
    setup = prepare(Config.load(None, [*SMALL, *overrides]))
    with setup.simulation() as simulation:
        outcome = simulation.run()
    return setup.config, outcome, write_run(folder, setup.config, setup.population, outcome)
