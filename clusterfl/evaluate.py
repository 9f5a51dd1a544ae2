"""What models score on the clients' test data. It is measured, not exchanged: nothing is metered, nothing kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Engine
from clusterfl.keys import Key
from clusterfl.message import Call, Kept, on_client
from clusterfl.method import Method, NotDefined, Procedures, Served
from clusterfl.task import Task
from clusterfl.tree import Tree, row, rows, take

EVAL_BATCH = 500  # images at a time: batches over about a thousand cost more per image


@dataclass(frozen=True)
class Scores:
    """Sums over each client's test samples ``[m]``; NaN in ``f1`` where a client did not answer."""

    correct: Tensor
    loss: Tensor
    samples: Tensor
    f1: Tensor | None = None  # each client's mean over classes, where it was asked for

    @staticmethod
    def nothing(m: int, *, f1: bool) -> Scores:
        correct, loss, samples = torch.zeros(3, m, dtype=torch.float64)
        return Scores(correct, loss, samples, torch.full((m,), torch.nan, dtype=torch.float64) if f1 else None)

    @property
    def accuracy(self) -> Tensor:
        return self.correct / self.samples

    @property
    def mean_loss(self) -> Tensor:
        return self.loss / self.samples


def row_scores(task: Task, theta: Tree, x: Tensor, y: Tensor) -> Tree:
    """Of every sample: whether it is answered right, its loss, and the answer, in float64."""
    logits = task.logits(theta, x)
    answer = answers(logits)
    columns = {"correct": answer == y, "loss": task.per_sample(logits, y), "answer": answer}
    return {name: column.double().cpu() for name, column in columns.items()}


def answers(logits: Tensor) -> Tensor:
    """The class that a model says, or one that there is not where its outputs are not numbers: that is never right."""
    return torch.where(logits.isnan().any(dim=-1), logits.shape[-1], logits.argmax(dim=-1))


def score(engine: Engine, models: Tree, index: Tensor, ids: Tensor, *, f1: bool = False) -> Scores:
    """Each client's test data under the model that ``index`` gives it.

    Clients that share a model are evaluated together, and samples that they share only once.
    """
    test = engine.population.test
    shards = [test.rows_of(i) for i in ids.tolist()]
    jobs: list[tuple[int, Tensor]] = []
    groups: list[tuple[list[int], Tensor, int]] = []  # members, place of each test row among those used, pieces
    for k in index.unique().tolist():
        members = (index == k).nonzero().flatten().tolist()
        used = torch.zeros(len(test.y), dtype=torch.bool)
        for j in members:
            used[shards[j]] = True
        pieces = used.nonzero().flatten().split(EVAL_BATCH)
        jobs += [(k, piece) for piece in pieces]
        groups.append((members, used.cumsum(0) - 1, len(pieces)))
    results = iter(engine.score_rows(models, jobs))
    out = Scores.nothing(len(ids), f1=f1)
    for members, place, n in groups:
        pieces_of_group = [next(results) for _ in range(n)]
        columns = {name: torch.cat([piece[name] for piece in pieces_of_group]) for name in ROW_SCORES}
        sums, answers = torch.stack([columns["correct"], columns["loss"]], dim=1), columns["answer"].long()
        for j in members:  # one by one: thousands of clients may share a few samples
            mine = place[shards[j]]
            out.correct[j], out.loss[j] = sums[mine].sum(dim=0)
            out.samples[j] = len(mine)
            if out.f1 is not None:
                y = test.y[shards[j]]
                out.f1[j] = class_f1(class_counts(answers[mine], y, torch.ones(len(y)), engine.task.classes))
    return out


ROW_SCORES = ("correct", "loss", "answer")


def evaluate(
    engine: Engine,
    method: Method[Any],
    served: Served,
    ids: Tensor,
    key: Key,
    round: int = 0,
    *,
    f1: bool = False,
    test_of: Tensor | None = None,
) -> Scores:
    """Scores of the models that clients really use, personal ones included.

    ``test_of`` ``[m]``: on the test data of these clients in place of their own.
    """
    if not served.personal:
        assert test_of is None, "models that are not personal are compared by cross()"
        return score(engine, served.models, served.index, ids, f1=f1)
    each: dict[str, Any] = {"theta": take(served.models, served.index)}
    procedure = PersonalScore(method, f1)
    call = Call(procedure, "score", ids, served.shared, each, key, round, measure=True, test_of=test_of)
    out = Scores.nothing(len(ids), f1=f1)
    for chunk in engine.execute(call):
        fields: dict[str, Any] = chunk.fields
        out.correct[chunk.positions], out.loss[chunk.positions], out.samples[chunk.positions] = (
            fields["scores"].double().unbind(dim=1)
        )
        if out.f1 is not None:
            out.f1[chunk.positions] = class_f1(fields["counts"])
    return out


def personal_models(
    engine: Engine, method: Method[Any], served: Served, ids: Tensor, key: Key, round: int = 0
) -> Iterator[tuple[Tensor, Tree]]:
    """(ids, stack of the models that they really use), chunk by chunk: the very ones that :func:`evaluate` scores
    with the same key. A simulation can look at them; on devices they stay where they are."""
    if method.mixture:
        raise NotDefined(
            f"clients of {method.name} use a mixture of {served.k} models: none of them has one of its own"
        )
    if not served.personal:
        yield ids, take(served.models, served.index)
        return
    each: dict[str, Any] = {"theta": take(served.models, served.index)}
    call = Call(method, "personalise", ids, served.shared, each, key, round, measure=True)
    for chunk in engine.execute(call):
        models: Any = chunk.fields["theta"]
        yield ids[chunk.positions], models


def cross(engine: Engine, models: Tree, ids: Tensor) -> Tensor:
    """Accuracy ``[len(ids), K]`` of every model on every client's test data."""
    columns = [score(engine, models, torch.full((len(ids),), k), ids).accuracy for k in range(rows(models))]
    return torch.stack(columns, dim=1)


def cross_personal(
    engine: Engine, method: Method[Any], served: Served, ids: Tensor, groups: Tensor, key: Key, round: int
) -> Tensor:
    """Accuracy ``[len(ids), G]`` of what each client would use on the test data of each group of clients.

    Of its own group that is its own data, of another group those of one member, in turn.
    """
    columns = []
    for g in groups.unique().tolist():
        hosts = ids[groups == g]
        guests = hosts[torch.arange(len(ids)) % len(hosts)]
        test_of = torch.where(groups == g, ids, guests)
        scores = evaluate(engine, method, served, ids, keys.fold_in(key, "abroad", g), round, test_of=test_of)
        columns.append(scores.accuracy)
    return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class PersonalScore(Procedures):
    """Scores a method's personal models on the client, where they live."""

    method: Method[Any]
    f1: bool = False

    @on_client(scores=Kept("what its model scores"), counts=Kept("its model's answers by class"))
    def score(self, me: Client, theta: Tree, **shared: Any) -> dict[str, Tensor]:
        mine: Any = self.method.personalise(me, theta, **shared)
        total = torch.zeros(3, device=me.key.device)
        counts = torch.zeros(2, me.task.classes + 1, device=me.key.device)
        for x, y, w in me.test.pieces():
            logits = mixed_answers(me, x, **mine) if self.method.mixture else me.task.logits(mine["theta"], x)
            said = answers(logits)
            right = (said == y).float()
            losses = me.task.per_sample(logits, y)
            ones = torch.ones_like(losses) if w is None else w
            total = total + torch.stack([(right * ones).sum(), (losses * ones).sum(), ones.sum()])
            if self.f1:
                counts = counts + class_counts(said, y, ones, me.task.classes)
        return {"scores": total, "counts": counts} if self.f1 else {"scores": total}


def mixed_answers(me: Client, x: Tensor, theta: Tree, pi: Tensor) -> Tensor:
    """``[B, C]``: the logarithm of the mean of K models' probabilities, weighed by ``pi`` ``[K]``."""

    def log_probabilities(one: Tree) -> Tensor:
        return me.task.logits(one, x).log_softmax(dim=-1)

    if me.stacked:
        each: Tensor = torch.func.vmap(log_probabilities)(theta)
    else:
        each = torch.stack([log_probabilities(row(theta, k)) for k in range(len(pi))])
    return (pi.log().reshape(-1, 1, 1) + each).logsumexp(dim=0)


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
