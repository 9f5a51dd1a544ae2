"""The ``[task]`` table: what is learnt from the samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from clusterfl.fields import one_of, option
from clusterfl.losses import REGRESSION, LossName
from clusterfl.task import Task, loss_of, metrics_of


@dataclass(frozen=True)
class TaskConfig:
    """The loss, and by which metric runs are shown and compared."""

    loss: LossName = option(
        "cross-entropy", "cross-entropy of classes, or mse | mae | huber of targets that are numbers"
    )
    metric: str | None = option(
        None, "the main metric: accuracy | f1 | auc | log_loss | rmse | mae | r2 | loss; unset: accuracy, or rmse"
    )
    class_weights: tuple[float, ...] | None = option(
        None, "how much a sample of each class counts in the cross-entropy, in the order of classes"
    )

    def __post_init__(self) -> None:
        one_of(LossName, self, "loss")
        classes = 0 if self.regression else len(self.class_weights or ()) or 2
        metrics_of(classes, self.metric, ())
        loss_of(self.loss, classes, self.class_weights)

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.loss in REGRESSION

    def of(self, module: nn.Module, classes: int) -> Task:
        """The learning problem of this table for a model."""
        return Task(module, classes, self.loss, class_weights=self.class_weights, metric=self.metric)
