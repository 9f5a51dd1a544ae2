"""The models that clients really use, personal ones and mixtures included: what they score, at home and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.call import Call
from clusterfl.cohort import Engine
from clusterfl.evaluate.procedures import FarScore, PersonalScore
from clusterfl.evaluate.shared import score
from clusterfl.evaluate.sums import Scores, columns_of, of_outputs, value_of
from clusterfl.keys import Key
from clusterfl.method import Method, NotDefined, Served
from clusterfl.scores import Metric
from clusterfl.tree import Tree, rows, take


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

    Of its own group that is its own data, of another group those of some of its members, on average.
    """
    name = engine.task.metric.name
    at_home = evaluate(engine, method, served, ids, keys.fold_in(key, "home"), round).of(name)
    columns = []
    for g in groups.unique().tolist():
        guests = (groups != g).nonzero().flatten()
        away = replace(served, index=served.index[guests])
        found = [
            evaluate(engine, method, away, ids[guests], keys.fold_in(key, "abroad", g, v), round, test_of=hosts).of(
                name
            )
            for v, hosts in enumerate(visits(len(guests), ids[groups == g]))
        ]
        columns.append(at_home.index_copy(0, guests, torch.stack(found).nanmean(dim=0)) if found else at_home)
    return torch.stack(columns, dim=1)


VISITS = 100  # to a group, where it and its guests have as many pairs


def visits(guests: int, hosts: Tensor) -> Iterator[Tensor]:
    """Hosts of every guest ``[guests]``, visit by visit: each guest visits as many, and each host is visited as often
    as any other, or once less. Of a small group everybody is visited by everybody."""
    if not guests:
        return
    each = min(len(hosts), -(-max(VISITS, len(hosts)) // guests))
    for v in range(each):
        yield hosts[(each * torch.arange(guests) + v) % len(hosts)]
