"""The ``[task]`` table: what is learnt from the samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from clusterfl.fields import one_of, option
from clusterfl.losses import REGRESSION, LossName
from clusterfl.outside import is_outside, load_outside
from clusterfl.scores import Metric
from clusterfl.task import Task, loss_of, metrics_of


@dataclass(frozen=True)
class TaskConfig:
    """The loss, and by which metric runs are shown and compared."""

    loss: LossName = option(
        "cross-entropy", "cross-entropy of classes, or mse | mae | huber of targets that are numbers"
    )
    metric: str | None = option(
        None,
        "the main metric: accuracy | f1 | auc | log_loss | rmse | mae | r2 | loss, or a function of your own as "
        "mine.py:name; unset: accuracy, or rmse",
    )
    class_weights: tuple[float, ...] | None = option(
        None, "how much a sample of each class counts in the cross-entropy, in the order of classes"
    )

    def __post_init__(self) -> None:
        one_of(LossName, self, "loss")
        classes = 0 if self.regression else len(self.class_weights or ()) or 2
        metrics_of(classes, *self._metric())
        loss_of(self.loss, classes, self.class_weights)

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.loss in REGRESSION

    def of(self, module: nn.Module, classes: int) -> Task:
        """The learning problem of this table for a model."""
        main, own = self._metric()
        return Task(module, classes, self.loss, class_weights=self.class_weights, metric=main, metrics=own)

    def _metric(self) -> tuple[str | None, list[Metric]]:
        """The name of the main metric, and the metric itself where it is the user's own."""
        if self.metric is None or not is_outside(self.metric):
            return self.metric, []
        found = load_outside(self.metric)
        if isinstance(found, Metric):
            return found.name, [found]
        if not callable(found):
            raise ValueError(f"metric={self.metric!r} should be a function of outputs and targets, or a Metric")
        made = Metric(found.__name__, found, getattr(found, "better", "higher"))
        return made.name, [made]
