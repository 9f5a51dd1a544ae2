"""What a client's test data says about a model: metrics of one client, from all its outputs and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from clusterfl.losses import errors

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Metric:
    """A number per client. ``of(outputs, targets)`` makes it from all of a client's test samples; without ``of`` it is
    a mean over samples that every evaluation makes anyway."""

    name: str
    of: Callable[[Tensor, Tensor], Any] | None = None
    better: Better = "higher"
    percent: bool = False  # tables show it times 100
    # the same of clients with equally many samples, [m, n, …] each, all at once: [m]; without it one after another
    stacked: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"name={self.name!r} should be one word: it becomes part of file keys")
        if self.better not in ("higher", "lower"):
            raise ValueError(f"better={self.better!r} should be 'higher' or 'lower'")

    @property
    def sign(self) -> float:
        """Times a value, higher is better."""
        return 1.0 if self.better == "higher" else -1.0

    def key(self, name: str) -> str:
        """What a figure is called in files where this is the main metric: "accuracy_mean" becomes "rmse_mean"."""
        return name.replace("accuracy", self.name)

    def worst(self, values: Iterable[float]) -> float:
        """NaN of none."""
        return min(values, key=lambda v: self.sign * v, default=float("nan"))

    def reached(self, value: float, level: float) -> bool:
        return self.sign * value >= self.sign * level


ACCURACY = Metric("accuracy", percent=True)
RMSE = Metric("rmse", better="lower")
MAE = Metric("mae", better="lower")
LOSS = Metric("loss", better="lower")


PERCENT = ("accuracy", "f1", "auc")
LOWER = ("rmse", "mae", "loss", "log_loss")


def label(name: str) -> str:
    """A metric's name as people write it."""
    return {"rmse": "RMSE", "mae": "MAE", "r2": "R2", "f1": "F1", "auc": "AUC"}.get(name, name.replace("_", " "))


def told(summary: Mapping[str, Any]) -> Metric:
    """The main metric of a run, from its summary."""
    name = summary.get("metric", ACCURACY.name)
    better = summary.get("better", "lower" if name in LOWER else "higher")
    return Metric(name, better=better, percent=name in PERCENT)


def classification(classes: int) -> tuple[Metric, ...]:
    """The metrics of a classifier, the main one first."""
    return (
        ACCURACY,
        Metric("f1", partial(f1, classes=classes), percent=True, stacked=partial(each, partial(f1, classes=classes))),
        Metric("auc", auc, percent=True, stacked=stacked_auc),
        Metric("log_loss", log_loss, better="lower", stacked=partial(each, log_loss)),
    )


def regression() -> tuple[Metric, ...]:
    """The metrics of a regression, the main one first."""
    return RMSE, MAE, Metric("r2", r2, stacked=partial(each, r2))


def each(of: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor) -> Tensor:
    """A metric of every client of a stack."""
    found: Tensor = vmap(of)(outputs, y)
    return found


# -- of classes ------------------------------------------------------------------------------------------


def answered(logits: Tensor) -> Tensor:
    """The class that a model says, or one that there is not where its outputs are not numbers: that is never right."""
    return torch.where(logits.isnan().any(dim=-1), logits.shape[-1], logits.argmax(dim=-1))


def f1(logits: Tensor, y: Tensor, classes: int) -> Tensor:
    """The mean F1 over the classes that are answered or true."""
    return class_f1(class_counts(answered(logits), y, torch.ones(len(y)), classes))


def class_counts(answers: Tensor, y: Tensor, w: Tensor, classes: int) -> Tensor:
    """``[2, C + 1]``: right answers of each class, and answers plus labels of it; ``w`` is 0 for padding.

    A model may have outputs for which there is no class: the last column.
    """
    answers, none = answers.clamp(max=classes), torch.zeros(classes + 1, device=y.device)
    right = none.scatter_add(0, y, w * (answers == y))
    return torch.stack([right, none.scatter_add(0, answers, w).scatter_add(0, y, w)])


def class_f1(counts: Tensor) -> Tensor:
    """F1 out of :func:`class_counts`: the mean over the classes that are answered or true."""
    right, both = counts.double().unbind(dim=-2)
    return (2.0 * right / both.clamp(min=1.0)).sum(dim=-1) / (both > 0).sum(dim=-1)


def auc(logits: Tensor, y: Tensor) -> Tensor:
    """The area under the ROC curve of each class against the rest, averaged over those that the client has and has
    samples against; NaN where it has one class only."""
    return stacked_auc(logits.unsqueeze(0), y.unsqueeze(0))[0]


def stacked_auc(logits: Tensor, y: Tensor) -> Tensor:
    """:func:`auc` ``[m]`` of logits ``[m, n, C]``."""
    from scipy.stats import rankdata

    ranks = torch.from_numpy(rankdata(torch.softmax(logits.double(), dim=-1).numpy(), axis=1))
    true = F.one_hot(y, ranks.shape[2]).double()
    positive, n = true.sum(dim=1), y.shape[1]
    some = (positive > 0) & (positive < n)
    wins = (ranks * true).sum(dim=1) - positive * (positive + 1) / 2
    return torch.where(some, wins / (positive * (n - positive)), torch.nan).nanmean(dim=1)


def log_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy, without weights of classes."""
    return F.cross_entropy(logits.double(), y)


# -- of numbers ------------------------------------------------------------------------------------------


def r2(outputs: Tensor, y: Tensor) -> Tensor:
    """The share of the targets' spread around the client's own mean that is explained; NaN where there is none."""
    outputs, y = outputs.double(), y.double()
    spread = (y - y.mean(dim=0)).square().sum()
    return torch.where(spread > 0, 1.0 - errors(outputs, y).square().sum() / spread, torch.nan)
