"""How clients' models become one, or one per cluster: the mean, and rules that withstand lying clients.

A rule is a part that a method holds (``aggregate = Mean()``). Replies go into what it makes chunk by chunk, in
client order, so that arrival order changes no bit; a cluster that gets nobody keeps its old model.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.fields import option
from clusterfl.message import Fields, Payload, Procedure
from clusterfl.method import Registered
from clusterfl.parts.robust import liars, median, most_central, trimmed_mean
from clusterfl.tree import Tree, concat, repeat, row, rows, stack, take

log = logging.getLogger(__name__)

Weights = Literal["size", "uniform"]
By = str | Tensor | None  # clusters of replies: a field of them, a tensor over all clients, or one cluster


class Aggregation(Protocol):
    """Takes replies as they come; :meth:`result` is the new models, a stack ``[K]``."""

    consumes: tuple[str, ...]

    def add(self, ids: Tensor, fields: Fields) -> None: ...

    def result(self) -> Tree: ...


# -- the mean ----------------------------------------------------------------------------------------------


class MeanBy:
    """A running mean by cluster: replies go in chunk by chunk and only K models are ever held.

    ``by`` names the reply field with the cluster ids (or is a tensor over all clients, or None for one
    cluster); ``weights`` names a reply field (client sizes) or is None for a uniform mean. A cluster
    that gets nobody keeps its old centre. Integer buffers are copied from the cluster's last client.
    """

    def __init__(self, old: Tree, *, field: str = "theta", by: By = None, weights: str | None = None) -> None:
        self.old, self.field, self.by, self.weights = old, field, by, weights
        self.consumes: tuple[str, ...] = (field,)
        self.sums = {n: torch.zeros_like(t) for n, t in old.items()}
        self.mass = torch.zeros(rows(old))

    def add(self, ids: Tensor, fields: Fields) -> None:
        theta = fields[self.field]
        assert isinstance(theta, dict)
        s = _clusters(self.by, ids, fields)
        w = torch.ones(len(ids)) if self.weights is None else fields[self.weights]
        assert isinstance(w, Tensor)
        self.mass.index_add_(0, s, w.to(self.mass.dtype))
        scale = w.tolist()
        for name, t in theta.items():
            sums = self.sums[name].unbind()
            # row by row: the sum stays in the processor's cache, ten times as fast as index_add_
            for i, k in enumerate(s.tolist()):
                if t.is_floating_point():
                    sums[k].add_(t[i], alpha=scale[i])
                else:
                    sums[k].copy_(t[i])

    @property
    def alive(self) -> Tensor:
        """Which clusters anybody answered for."""
        return self.mass > 0

    def result(self) -> Tree:
        """The new centres."""
        out: Tree = {}
        for name, total in self.sums.items():
            shape = (-1, *([1] * (total.dim() - 1)))
            if total.is_floating_point():
                total = total / self.mass.clamp(min=torch.finfo(torch.float32).tiny).reshape(shape).to(total.dtype)
            out[name] = torch.where(
                self.alive.reshape(shape), total, self.old[name]
            )  # an empty cluster keeps its model
        return out


def _clusters(by: By, ids: Tensor, fields: Fields) -> Tensor:
    if by is None:
        return torch.zeros(len(ids), dtype=torch.int64)
    chosen = by[ids] if isinstance(by, Tensor) else fields[by]
    assert isinstance(chosen, Tensor)
    return chosen


def mean_by(theta: Tree, s: Tensor, *, old: Tree, weights: Tensor | None = None) -> Tree:
    """The mean of the rows of ``theta`` with ``s = k``, for every k; an empty cluster keeps ``old[k]``."""
    mean = MeanBy(old, by="s", weights=None if weights is None else "w")
    fields: Fields = {"theta": theta, "s": s}
    if weights is not None:
        fields["w"] = weights
    mean.add(torch.arange(len(s)), fields)
    return mean.result()


def mean_all(theta: Tree, *, weights: Tensor | None = None) -> Tree:
    """The mean of all rows."""
    s = torch.zeros(rows(theta), dtype=torch.int64)
    return row(mean_by(theta, s, old=repeat(row(theta, 0), 1), weights=weights), 0)


def mean_of(
    cohort: Cohort,
    procedure: Procedure,
    sent: dict[str, Payload],
    old: Tree,
    weights: Weights = "uniform",
    *,
    field: str = "theta",
) -> Tree:
    """``sum_i (n_i / n) theta_i`` (or ``1 / m`` each) of what the clients of a cohort make of what they are sent."""
    mean = MeanBy(repeat(old, 1), field=field, weights=weight_field(weights))
    cohort.run(procedure, sent, into=mean)
    return row(mean.result(), 0)


# -- weights -----------------------------------------------------------------------------------------------


def weight_field(weights: Weights) -> str | None:
    """The reply field that a mean weighs clients by; None: all alike."""
    return "n" if weights == "size" else None


def reply(me: Client, weights: Weights, **fields: Payload) -> dict[str, Payload]:
    """A reply, with the client's number of samples where it is weighed by it."""
    return {**fields, "n": me.size} if weights == "size" else fields


def bytes_of(weights: Weights) -> int:
    """What the weight adds to a reply."""
    return 4 if weights == "size" else 0


# -- rules -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean(Registered):
    """The mean of a cluster's models: everybody is trusted."""

    name: ClassVar[str] = "mean"

    def by(self, old: Tree, by: By = None, weights: str | None = None) -> Aggregation:
        return MeanBy(old, by=by, weights=weights)


class _Robust(Registered):
    """A rule that looks at all models of a cluster at once; sizes that clients declare do not count."""

    def combine(self, models: Tree) -> Tree:
        """One model out of a stack."""
        raise TypeError(f"{type(self).__name__} should say how it combines models")

    def by(self, old: Tree, by: By = None, weights: str | None = None) -> Aggregation:
        return CombineBy(old, self, by)


@dataclass(frozen=True)
class Median(_Robust):
    """The median of every coordinate."""

    name: ClassVar[str] = "median"

    def combine(self, models: Tree) -> Tree:
        return median(models)


@dataclass(frozen=True)
class Trimmed(_Robust):
    """The mean of every coordinate without the share ``attackers`` of its values at either end."""

    name: ClassVar[str] = "trimmed"
    attackers: float = option(0.2, "the share of a cluster's clients that it withstands")

    def __post_init__(self) -> None:
        check_share(self.attackers)

    def combine(self, models: Tree) -> Tree:
        return trimmed_mean(models, liars(self.attackers, rows(models)))


@dataclass(frozen=True)
class Krum(_Robust):
    """The one model that has most others near it."""

    name: ClassVar[str] = "krum"
    attackers: float = option(0.2, "the share of a cluster's clients that it withstands")

    def __post_init__(self) -> None:
        check_share(self.attackers)

    def combine(self, models: Tree) -> Tree:
        return _krum(models, self.attackers, several=False)


@dataclass(frozen=True)
class MultiKrum(_Robust):
    """The mean of all models that have most others near them."""

    name: ClassVar[str] = "multi-krum"
    attackers: float = option(0.2, "the share of a cluster's clients that it withstands")

    def __post_init__(self) -> None:
        check_share(self.attackers)

    def combine(self, models: Tree) -> Tree:
        return _krum(models, self.attackers, several=True)


Rule = Mean | Median | Trimmed | Krum | MultiKrum


def check_rule(rule: object) -> None:
    """A method's rule is one of the parts above; a name alone is what a config has."""
    if not isinstance(rule, Rule):
        known = ", ".join(f"{part.__name__}()" for part in get_args(Rule))
        raise TypeError(f"aggregate={rule!r} should be one of {known}")


def check_share(attackers: float) -> None:
    if not 0.0 <= attackers < 0.5:
        raise ValueError(f"attackers={attackers} should be at least 0 and below 0.5")


def _krum(models: Tree, attackers: float, *, several: bool) -> Tree:
    n = rows(models)
    f = liars(attackers, n)
    if n < 2 * f + 3:  # the median needs only n >= 2f + 1
        log.info("n=%d clients are too few for Krum with f=%d: their coordinate median is taken", n, f)
        return median(models)
    return mean_all(most_central(models, f, n - f - 2 if several else 1))


class CombineBy:
    """Models by cluster under a robust rule. It has to hold every model until the last has come."""

    def __init__(self, old: Tree, rule: Any, by: By = None, *, field: str = "theta") -> None:
        self.old, self.rule, self.by, self.field = old, rule, by, field
        self.consumes: tuple[str, ...] = (field,)
        self.parts: list[Tree] = []
        self.labels: list[Tensor] = []

    def add(self, ids: Tensor, fields: Fields) -> None:
        theta = fields[self.field]
        assert isinstance(theta, dict)
        self.parts.append(theta)
        self.labels.append(_clusters(self.by, ids, fields))

    def result(self) -> Tree:
        """The new centres."""
        if not self.parts:
            return self.old
        theta, s = concat(self.parts), torch.cat(self.labels)
        combined = []
        for k in range(rows(self.old)):
            members = (s == k).nonzero().flatten()
            combined.append(self.rule.combine(take(theta, members)) if len(members) else row(self.old, k))
        return stack(combined)


def combine_by(rule: Rule, theta: Tree, s: Tensor, *, old: Tree) -> Tree:
    """The models with ``s = k`` made one by a rule, for every k; an empty cluster keeps ``old[k]``."""
    combined = rule.by(old, by="s")
    combined.add(torch.arange(len(s)), {"theta": theta, "s": s})
    return combined.result()
