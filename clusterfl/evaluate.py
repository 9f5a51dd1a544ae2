"""What models score on the clients' test data. It is measured, not exchanged: nothing is metered, nothing kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Engine
from clusterfl.data.population import Shards
from clusterfl.keys import Key
from clusterfl.losses import absolute_error, squared_error
from clusterfl.message import Call, Kept, on_client
from clusterfl.method import Method, NotDefined, Procedures, Served
from clusterfl.scores import LOSS, Metric, answered
from clusterfl.task import Task
from clusterfl.tree import Tree, row, rows, take

EVAL_BATCH = 500  # images at a time: batches over about a thousand cost more per image
PIECE = 1 << 20  # numbers of clients that are summed up together


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


def row_scores(task: Task, theta: Tree, x: Tensor, y: Tensor, *, outputs: bool = False) -> Tree:
    """What every sample scores, in float64, and the model's outputs if they are asked for."""
    out = task.logits(theta, x)
    found = {name: column.double().cpu() for name, column in sample_scores(task, out, y).items()}
    return {**found, "outputs": out.cpu()} if outputs else found


def score(
    engine: Engine, models: Tree, index: Tensor, ids: Tensor, *, metrics: Sequence[Metric] | None = None
) -> Scores:
    """Each client's test data under the model that ``index`` gives it.

    Clients that share a model are evaluated together, and samples that they share only once. ``metrics``: which ones
    are measured beside the means over samples; the task's main one unless they are given.
    """
    test, task = engine.population.test, engine.task
    n = len(test)
    # who has the same model and the same samples scores the same
    pairs, inverse = (index * n + test.same[ids]).unique(return_inverse=True)
    index, ids = pairs // n, pairs % n
    names, whole = columns_of(task), of_outputs(task, metrics)
    out = Scores.nothing(len(ids), names, whole)
    out.samples.copy_(test.sizes[ids])
    used = rows_used(test, index, ids)
    if len(used):
        results = engine.score_rows(models, jobs_of(used, len(test.y)), outputs=bool(whole))
        columns = {name: torch.cat([piece[name] for piece in results]) for name in results[0]}
        each_row = torch.stack([columns[name] for name in names], dim=1)
        for members, mine in alike(test, ids, columns["outputs"][0].numel() if whole else len(names)):
            place = torch.searchsorted(used, index[members].unsqueeze(1) * len(test.y) + mine)
            for total, found in zip(out.sums.values(), each_row[place].sum(dim=1).unbind(dim=1), strict=True):
                total[members] = found
            for metric in whole:
                out.whole[metric.name][members] = values_of(metric, columns["outputs"][place], test.y[mine])
    return out.take(inverse)


def rows_used(test: Shards, index: Tensor, ids: Tensor) -> Tensor:
    """Model k on test row r as ``k * pool + r``, ascending, of all that some client needs."""
    pool = len(test.y)
    found = [(index[members].unsqueeze(1) * pool + mine).unique() for members, mine in alike(test, ids)]
    return torch.cat(found).unique() if found else torch.zeros(0, dtype=torch.int64)


def jobs_of(used: Tensor, pool: int) -> list[tuple[int, Tensor]]:
    """(model, some test rows), with as many rows as are computed together."""
    by_model = used.split(torch.unique_consecutive(used // pool, return_counts=True)[1].tolist())
    return [(int(part[0]) // pool, piece) for part in by_model for piece in (part % pool).split(EVAL_BATCH)]


def alike(shards: Shards, ids: Tensor, width: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Clients with equally many samples, some thousands of numbers at a time: (their positions among ``ids`` ``[m]``,
    their rows ``[m, n]``). Those without any are in none."""
    sizes = shards.sizes[ids]
    for n in sizes[sizes > 0].unique().tolist():
        for members in (sizes == n).nonzero().flatten().split(max(1, PIECE // (n * width))):
            yield members, shards.rows[shards.offsets[ids[members]].unsqueeze(1) + torch.arange(n)]


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


def evaluate(
    engine: Engine,
    method: Method[Any],
    served: Served,
    ids: Tensor,
    key: Key,
    round: int = 0,
    *,
    metrics: Sequence[Metric] | None = None,
    test_of: Tensor | None = None,
) -> Scores:
    """Scores of the models that clients really use, personal ones included.

    ``test_of`` ``[m]``: on the test data of these clients in place of their own. ``metrics``: as in :func:`score`.
    """
    if engine.far:
        assert test_of is None, "test data stays on the devices"
        return far_scores(engine, method, served, ids, key, round, metrics=metrics)
    if not served.personal:
        assert test_of is None, "models that are not personal are compared by cross()"
        return score(engine, served.models, served.index, ids, metrics=metrics)
    test, names, whole = engine.population.test, columns_of(engine.task), of_outputs(engine.task, metrics)
    owners = ids if test_of is None else test_of
    each: dict[str, Any] = {"theta": take(served.models, served.index)}
    procedure = PersonalScore(method, int(test.sizes[owners].max()) if whole else 0)
    call = Call(procedure, "score", ids, served.shared, each, key, round, measure=True, test_of=test_of)
    out = Scores.nothing(len(ids), names, whole)
    for chunk in engine.execute(call):
        fields: dict[str, Any] = chunk.fields
        found = fields["scores"].double()
        for total, column in zip([*out.sums.values(), out.samples], found.unbind(dim=1), strict=True):
            total[chunk.positions] = column
        for place, p in enumerate(chunk.positions.tolist() if whole else ()):
            y = test.of(int(owners[p]))[1]
            for metric in whole:
                out.whole[metric.name][p] = value_of(metric, fields["outputs"][place, : len(y)], y)
    return out


def far_scores(
    engine: Engine,
    method: Method[Any],
    served: Served,
    ids: Tensor,
    key: Key,
    round: int,
    *,
    metrics: Sequence[Metric] | None = None,
) -> Scores:
    """As :func:`evaluate`, where clients are devices of their own: they send sums and metrics, never what one sample
    scores."""
    whole = of_outputs(engine.task, metrics)
    procedure = FarScore(method if served.personal else None, tuple(metric.name for metric in whole))
    each: dict[str, Any] = {"theta": take(served.models, served.index)}
    shared = served.shared if served.personal else {}
    call = Call(procedure, "score", ids, shared, each, key, round, measure=True)
    out = Scores.nothing(len(ids), columns_of(engine.task), whole)
    for chunk in engine.execute(call):
        fields: dict[str, Any] = chunk.fields
        columns = [*out.sums.values(), out.samples, *out.whole.values()]
        found = torch.cat([fields["scores"].double(), fields["whole"].double()], dim=1)
        for total, column in zip(columns, found.unbind(dim=1), strict=True):
            total[chunk.positions] = column
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
    """The main metric ``[len(ids), K]`` of every model on every client's test data."""
    name = engine.task.metric.name
    if engine.far:  # all models in one message
        call = Call(FarScore(), "cross", ids, {"models": models}, {}, keys.key(0), 0, measure=True)
        table = torch.full((len(ids), rows(models)), torch.nan, dtype=torch.float64)
        for chunk in engine.execute(call):
            found: Any = chunk.fields["scores"]
            table[chunk.positions] = found.double()
        return table
    columns = [score(engine, models, torch.full((len(ids),), k), ids).of(name) for k in range(rows(models))]
    return torch.stack(columns, dim=1)


def cross_personal(
    engine: Engine, method: Method[Any], served: Served, ids: Tensor, groups: Tensor, key: Key, round: int
) -> Tensor:
    """The main metric ``[len(ids), G]`` of what each client would use on the test data of each group of clients.

    Of its own group that is its own data, of another group those of one member, in turn.
    """
    columns = []
    for g in groups.unique().tolist():
        hosts = ids[groups == g]
        guests = hosts[torch.arange(len(ids)) % len(hosts)]
        test_of = torch.where(groups == g, ids, guests)
        scores = evaluate(engine, method, served, ids, keys.fold_in(key, "abroad", g), round, test_of=test_of)
        columns.append(scores.of(engine.task.metric.name))
    return torch.stack(columns, dim=1)


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
