"""Hooks of a run: who is told how it goes on, what they may look at, and how they end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from clusterfl.data.population import Population
from clusterfl.method import Method, Served, State
from clusterfl.record import Outcome, Record, Schedule
from clusterfl.scores import ACCURACY, Metric


class Stop(Exception):
    """Raised by a callback: the run ends here, with its outcome."""


@dataclass(frozen=True)
class Moment:
    """A run between two rounds, for callbacks to look at."""

    method: Method[Any]
    population: Population
    schedule: Schedule
    state: State
    record: Record  # of the round that has just ended
    records: Sequence[Record]  # of all rounds so far
    metric: Metric = ACCURACY  # the main one

    @property
    def round(self) -> int:
        return self.record.round

    @cached_property
    def served(self) -> Served:
        """The models, and which one each client uses."""
        return self.method.serve(self.state, torch.arange(self.population.clients))


class Callback:
    """Is told how a run goes on. Raising :class:`Stop` ends it with its outcome."""

    def on_start(self, moment: Moment) -> None:
        """After the start (round 0), or where an earlier run is taken up."""

    def on_round(self, moment: Moment) -> None:
        """After each round."""

    def on_end(self, moment: Moment, outcome: Outcome) -> None:
        """After the last round, when all has been measured."""

    def on_saved(self, folder: Path) -> None:
        """After the run's folder is complete, where it has one."""
