"""Models that clients share: those that use the same one are evaluated together, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clusterfl.cohort import Engine
from clusterfl.data.shards import Shards
from clusterfl.evaluate.sums import Scores, columns_of, of_outputs, values_of
from clusterfl.scores import Metric
from clusterfl.tree import Tree

EVAL_BATCH = 500  # images at a time: batches over about a thousand cost more per image
PIECE = 1 << 20  # numbers of clients that are summed up together


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
            yield members, shards.at(ids[members].unsqueeze(1), torch.arange(n))
