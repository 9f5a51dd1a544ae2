"""Scores of clients: sums over their test samples, metrics of all their outputs, and what these come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clusterfl.losses import absolute_error, squared_error
from clusterfl.scores import LOSS, Metric, answered
from clusterfl.task import Task
from clusterfl.tree import Tree


@dataclass(frozen=True)
class Scores:
    """What models score on each client's test data ``[m]``."""

    sums: dict[str, Tensor]  # over each client's test samples: of every column of row_scores
    samples: Tensor
    whole: dict[str, Tensor]  # metrics of all of a client's outputs together; NaN where it did not answer

    @staticmethod
    def nothing(m: int, columns: Sequence[str], whole: Sequence[Metric]) -> Scores:
        zeros = torch.zeros(len(columns) + 1, m, dtype=torch.float64)
        nans = {metric.name: torch.full((m,), torch.nan, dtype=torch.float64) for metric in whole}
        return Scores(dict(zip(columns, zeros, strict=False)), zeros[-1], nans)

    def take(self, positions: Tensor) -> Scores:
        """The scores at these positions."""
        sums, whole = ({name: v[positions] for name, v in found.items()} for found in (self.sums, self.whole))
        return Scores(sums, self.samples[positions], whole)

    def of(self, name: str) -> Tensor:
        """A metric of every client; NaN where it has no test samples."""
        if name in self.whole:
            return self.whole[name]
        column, finish = MEANS[name]
        return finish(self.sums[column] / self.samples)

    def by_name(self) -> dict[str, Tensor]:
        """All there are, by the names of metrics."""
        means = [name for name, (column, _) in MEANS.items() if column in self.sums]
        return {name: self.of(name) for name in (*means, *self.whole)}

    @property
    def accuracy(self) -> Tensor:
        return self.of("accuracy")

    @property
    def mean_loss(self) -> Tensor:
        return self.of("loss")


# metrics that are means over samples: of which column, and what is done with its mean
MEANS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "accuracy": ("correct", lambda mean: mean),
    "rmse": ("squared", torch.sqrt),
    "mae": ("absolute", lambda mean: mean),
    "loss": ("loss", lambda mean: mean),
}


def columns_of(task: Task) -> tuple[str, ...]:
    """What is summed over samples for this task."""
    if task.metric == LOSS:
        return ("loss",)
    return ("squared", "absolute", "loss") if task.regression else ("correct", "loss")


def sample_scores(task: Task, outputs: Tensor, y: Tensor) -> Tree:
    """Of every sample what :func:`columns_of` names."""
    known: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "correct": lambda outputs, y: answered(outputs) == y,
        "squared": squared_error,
        "absolute": absolute_error,
        "loss": task.per_sample,
    }
    return {name: known[name](outputs, y) for name in columns_of(task)}


def of_outputs(task: Task, metrics: Sequence[Metric] | None) -> list[Metric]:
    """Those of the metrics that need all of a client's outputs at once."""
    return [m for m in ((task.metric,) if metrics is None else metrics) if m.of is not None]


def values_of(metric: Metric, outputs: Tensor, y: Tensor) -> Tensor:
    """A metric of ``m`` clients from what they have ``[m, n, …]``: all at once where it can."""
    if metric.stacked is not None:
        return metric.stacked(outputs, y).double()
    return torch.tensor([value_of(metric, *one) for one in zip(outputs, y, strict=True)], dtype=torch.float64)


def value_of(metric: Metric, outputs: Tensor, y: Tensor) -> float:
    """A metric of one client; NaN of one without test samples."""
    assert metric.of is not None
    return float(metric.of(outputs, y)) if len(y) else float("nan")
