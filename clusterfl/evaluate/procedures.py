"""What is computed where the test data is: what a model's samples score, and procedures for models that only their
client can make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clusterfl.client import Client
from clusterfl.evaluate.sums import Scores, columns_of, sample_scores, value_of
from clusterfl.message import Kept, on_client
from clusterfl.method import Method, Procedures
from clusterfl.task import Task
from clusterfl.tree import Tree, row, rows


def row_scores(task: Task, theta: Tree, x: Tensor, y: Tensor, *, outputs: bool = False) -> Tree:
    """What every sample scores, in float64, and the model's outputs if they are asked for."""
    out = task.logits(theta, x)
    found = {name: column.double().cpu() for name, column in sample_scores(task, out, y).items()}
    return {**found, "outputs": out.cpu()} if outputs else found


@dataclass(frozen=True)
class PersonalScore(Procedures):
    """Scores a method's personal models on the client, where they live."""

    method: Method[Any]
    longest: int = 0  # the most test samples of a client, where outputs are asked for

    @on_client(scores=Kept("what its model scores"), outputs=Kept("what its model answers"))
    def score(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Tensor]:
        mine: Any = self.method.personalise(me, theta, **shared)

        def answer(x: Tensor) -> Tensor:
            return mixed_answers(me, x, **mine) if self.method.mixture else me.task.logits(mine["theta"], x)

        total, answers = tally(me, answer)
        if not self.longest:
            return {"scores": total}
        answered = torch.cat(answers) if answers else answer(me.train.x[:1])[:0]
        rest = answered.new_zeros(self.longest - len(answered), *answered.shape[1:])
        return {"scores": total, "outputs": torch.cat([answered, rest])}


@dataclass(frozen=True)
class FarScore(Procedures):
    """Scores models on a device, which sends sums and metrics alone. ``method``: whose personal models they are."""

    method: Method[Any] | None = None
    whole: tuple[str, ...] = ()  # metrics of all outputs together, by name

    @on_client(scores=Kept("what its model scores"), whole=Kept("what its model scores"))
    def score(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Tensor]:
        method = self.method
        mine: Any = {"theta": theta} if method is None else method.personalise(me, theta, **shared)

        def answer(x: Tensor) -> Tensor:
            mixed = method is not None and method.mixture
            return mixed_answers(me, x, **mine) if mixed else me.task.logits(mine["theta"], x)

        total, answers = tally(me, answer)
        known = {metric.name: metric for metric in me.task.metrics}
        y = me.test.y
        values = [value_of(known[name], torch.cat(answers), y) if len(y) else torch.nan for name in self.whole]
        return {"scores": total, "whole": torch.tensor(values, dtype=torch.float64)}

    @on_client(scores=Kept("what each model scores"))
    def cross(self, me: Client, models: Tree) -> dict[str, Tensor]:
        """The main metric of each of K models."""
        main, values = me.task.metric, []
        for k in range(rows(models)):
            total, answers = tally(me, partial(me.task.logits, row(models, k)))
            if main.of is not None:
                values.append(value_of(main, torch.cat(answers), me.test.y) if answers else torch.nan)
            else:
                sums = dict(zip(columns_of(me.task), total[:-1].double().unsqueeze(1), strict=True))
                values.append(float(Scores(sums, total[-1:].double(), {}).of(main.name)))
        return {"scores": torch.tensor(values, dtype=torch.float64)}

    @on_client(theta=Kept())
    def personalise(self, me: Client, theta: Tree) -> dict[str, Tree]:
        """The model as it was served, where a method personalises none."""
        return {"theta": theta}


def tally(me: Client, answer: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Sums over the client's test samples of what :func:`columns_of` names, how many they are, and the outputs."""
    total = torch.zeros(len(columns_of(me.task)) + 1, device=me.key.device)
    answers = []
    for x, y, w in me.test.pieces():
        outputs = answer(x)
        columns = [column.float() for column in sample_scores(me.task, outputs, y).values()]
        ones = torch.ones_like(columns[-1]) if w is None else w
        total = total + torch.stack([*((column * ones).sum() for column in columns), ones.sum()])
        answers.append(outputs)
    return total, answers


def mixed_answers(me: Client, x: Tensor, theta: Tree, pi: Tensor) -> Tensor:
    """What K models say together, weighed by ``pi`` ``[K]``: the logarithm of the mean of their probabilities
    ``[B, C]``, or the mean of their numbers."""

    def answers(one: Tree) -> Tensor:
        outputs = me.task.logits(one, x)
        return outputs if me.task.regression else outputs.log_softmax(dim=-1)

    if me.stacked:
        each: Tensor = torch.func.vmap(answers)(theta)
    else:
        each = torch.stack([answers(row(theta, k)) for k in range(len(pi))])
    shares = pi.reshape(-1, *([1] * (each.dim() - 1)))
    return (shares * each).sum(dim=0) if me.task.regression else (shares.log() + each).logsumexp(dim=0)
