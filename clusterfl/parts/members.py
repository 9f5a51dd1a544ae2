"""What a member of a group does: it trains a model, may compare others with it, and makes it its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from clusterfl.client import Client
from clusterfl.fields import above, one_of, option
from clusterfl.message import Loss, Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.parts.aggregate import Weights, reply
from clusterfl.parts.describe import changed
from clusterfl.parts.holdout import hold_out
from clusterfl.parts.local import SGD, eval_loss, sgd
from clusterfl.tree import Tree

Personal = Literal["none", "steps", "head"]


@dataclass(frozen=True)
class Members(Procedures):
    """Training in a group, and on trial."""

    local: SGD = SGD()
    held: float = option(0.2, "share of its samples that a client holds out during a trial")
    weights: Weights = option("size", "how much a client counts in its group's mean")
    watch: bool = option(True, "clients look in every round whether their data has changed, and say so")

    def __post_init__(self) -> None:
        above(0, self, "held")
        one_of(Weights, self, "weights")

    @on_client(theta=Model(of="theta"), n=Weight(), changed=Statistic("whether its data has changed"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return self.answer(me, sgd(me, theta, self.local))

    @on_client(theta=Model(of="theta"), n=Weight(), changed=Statistic("whether its data has changed"))
    def try_out(self, me: Client, theta: Tree) -> dict[str, Payload]:
        """Training without the samples that :meth:`compare` looks at."""
        return self.answer(me, sgd(hold_out(me, self.held)[0], theta, self.local))

    @on_client(theta=Model(of="theta"), n=Weight(), changed=Statistic("whether its data has changed"), losses=Loss())
    def compare(self, me: Client, theta: Tree, other: Tree) -> dict[str, Payload]:
        """As :meth:`try_out`, and the losses on the samples held out of this model and of another one.

        Both after a round of the client's own training: which classes it has it teaches either of them by itself, and
        a group whose members have the same ones is not worth a model for that.
        """
        rest, held = hold_out(me, self.held)
        own, others = sgd(rest, theta, self.local), sgd(rest, other, self.local)
        return {**self.answer(me, own), "losses": torch.stack([eval_loss(held, own), eval_loss(held, others)])}

    def answer(self, me: Client, theta: Tree) -> dict[str, Payload]:
        news: dict[str, Payload] = {"changed": changed(me)} if self.watch else {}
        return reply(me, self.weights, theta=theta, **news)


def own_model(me: Client, theta: Tree, how: Personal, rule: SGD) -> Tree:
    """The model that a client uses: its group's, as it is or after a step of its own."""
    return theta if how == "none" else sgd(me, theta, rule, only=me.task.head if how == "head" else None)
