"""What a member of a group does: it trains a model, on trial it says how well that does, and makes it its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.fields import above, at_least, one_of, option
from clusterfl.message import Loss, Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.parts.aggregate import Weights, reply
from clusterfl.parts.describe import changed
from clusterfl.parts.holdout import folds, hold_out
from clusterfl.parts.local import SGD, eval_error, sgd
from clusterfl.scores import answered
from clusterfl.tree import Tree

Personal = Literal["none", "steps", "head"]


@dataclass(frozen=True)
class Members(Procedures):
    """Training in a group, and on trial."""

    local: SGD = SGD()
    held: float = option(0.2, "share of its samples that a client holds out during a trial")
    tune_epochs: int = option(1, "epochs in which a client makes a model its own")
    weights: Weights = option("size", "how much a client counts in its group's mean")
    watch: bool = option(True, "clients look in every round whether their data has changed, and say so")

    def __post_init__(self) -> None:
        above(0, self, "held")
        at_least(1, self, "tune_epochs")
        one_of(Weights, self, "weights")

    @on_client(theta=Model(of="theta"), n=Weight(), changed=Statistic("whether its data has changed"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return self.answer(me, sgd(me, theta, self.local))

    @on_client(theta=Model(of="theta"), n=Weight(), changed=Statistic("whether its data has changed"), losses=Loss())
    def try_out(self, me: Client, theta: Tree) -> dict[str, Payload]:
        """Training without the samples held out, and what a client's own model would get wrong of these.

        Its own, with a head that it has trained if that pays: which classes it has it teaches any model by itself, and
        a group whose members have the same ones is not worth a model for that. And what is wrong, not the loss: small
        groups' models soon are too sure, which costs loss where they are still right more often.
        """
        rest, held = hold_out(me, self.held)
        own = own_model(rest, theta, "head", self.tuning, self.held)
        return {**self.answer(me, sgd(rest, theta, self.local)), "losses": eval_error(held, own)}

    @property
    def tuning(self) -> SGD:
        """How a client trains a model to be its own."""
        return replace(self.local, epochs=self.tune_epochs, steps=None)

    def answer(self, me: Client, theta: Tree) -> dict[str, Payload]:
        news: dict[str, Payload] = {"changed": changed(me)} if self.watch else {}
        return reply(me, self.weights, theta=theta, **news)


def own_model(me: Client, theta: Tree, how: Personal, rule: SGD, held: float) -> Tree:
    """The model that a client uses: its group's, or after a step of its own if that pays.

    It is tried on every part of its samples in turn without having seen it: there the loss has to fall, by more than
    the standard error of how much it does, and no more samples may be wrong.
    """
    if how == "none" or not me.train.length:
        return theta
    only = me.task.head if how == "head" else None
    gains = torch.stack([_gains(kept, theta, sgd(rest, theta, rule, only=only)) for rest, kept in folds(me, held)])
    n, total, squares, right = gains.sum(dim=0)
    spread = (squares - total.square() / n.clamp(min=1.0)).clamp(min=0.0) / (n - 1.0).clamp(min=1.0)
    pays = (total > (n * spread).sqrt()) & (right >= 0)
    own = sgd(me, theta, rule, only=only)
    return {name: torch.where(pays, own[name], theta[name]) for name in theta}


def _gains(me: Client, before: Tree, after: Tree) -> Tensor:
    """``[4]``: how many samples there are, by how much their losses fall together, the squares of that, and how many
    more are right (of numbers 0)."""
    total = torch.zeros(4, device=me.key.device)
    for x, y, w in me.train.pieces():
        old, new = me.task.logits(before, x), me.task.logits(after, x)
        fall = me.task.per_sample(old, y) - me.task.per_sample(new, y)
        weight = torch.ones_like(fall) if w is None else w
        right = torch.zeros_like(fall)
        if not me.task.regression:
            right = right + (answered(new) == y).to(fall.dtype) - (answered(old) == y).to(fall.dtype)
        total = total + torch.stack([weight, fall * weight, fall.square() * weight, right * weight]).sum(dim=1)
    return total
