"""The ``[task]`` table: what is learnt from the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from torch import nn

from clusterfl.fields import one_of, option
from clusterfl.losses import REGRESSION, LossName, PerSample
from clusterfl.outside import absolute, is_outside, load_function, load_outside
from clusterfl.scores import Metric
from clusterfl.task import Task, loss_of, metrics_of

Targets = Literal["classes", "numbers"]


@dataclass(frozen=True)
class TaskConfig:
    """The loss, and by which metric runs are shown and compared."""

    loss: str = option(
        "cross-entropy",
        "cross-entropy of classes, mse | mae | huber of targets that are numbers, or a function of your own of outputs "
        "and targets, as mine.py:name",
    )
    targets: Targets | None = option(
        None, "what labels are with a loss of your own; unset: classes for cross-entropy, numbers for all others"
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
        for name in ("loss", "metric"):  # so that the run can be taken up from anywhere
            value = getattr(self, name)
            if value is not None and is_outside(value):
                object.__setattr__(self, name, absolute(value))
        if not is_outside(self.loss):
            if self.loss not in get_args(LossName):
                known = ", ".join(repr(name) for name in get_args(LossName))
                raise ValueError(f"loss={self.loss!r} should be one of {known}, or a function, as mine.py:name")
            if self.targets is not None and self.targets != ("numbers" if self.loss in REGRESSION else "classes"):
                raise ValueError(f"targets={self.targets!r} should be unset: loss={self.loss!r} says what they are")
        one_of(Targets, self, *(["targets"] if self.targets is not None else []))
        classes = 0 if self.regression else len(self.class_weights or ()) or 2
        metrics_of(classes, *self._metric())
        loss_of(self._loss(), classes, self.class_weights)

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.targets != "classes" if is_outside(self.loss) else self.loss in REGRESSION

    def of(self, module: nn.Module, classes: int) -> Task:
        """The learning problem of this table for a model."""
        main, own = self._metric()
        return Task(module, classes, self._loss(), class_weights=self.class_weights, metric=main, metrics=own)

    def _loss(self) -> LossName | PerSample:
        if not is_outside(self.loss):
            return cast(LossName, self.loss)
        found: PerSample = load_function(self.loss, "of outputs and targets that gives each sample's loss")
        return found

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
