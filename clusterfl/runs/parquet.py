"""The tables of a run, in Parquet: one row per round, client and metric, and one per round and client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from clusterfl.data.population import Population
from clusterfl.evaluate import MEANS
from clusterfl.loop import Outcome, Record
from clusterfl.runs.files import write_whole


def metrics_table(outcome: Outcome, population: Population) -> pa.Table:
    """One row per round, client and metric; unseen clients have ``unseen_accuracy`` after the last round, or of
    whatever the main metric is."""
    parts: list[tuple[int, Tensor, Tensor, str, Tensor]] = []
    for r in outcome.records:
        ids = torch.arange(len(r.assign))
        if r.measured:
            # what only a last round measures is left out of what was one until the run was made longer
            often = {outcome.metric.name, *MEANS} if r is not outcome.records[-1] else r.scores.keys()
            parts += [(r.round, ids, r.assign, name, values) for name, values in r.scores.items() if name in often]
    if outcome.unseen is not None and outcome.unseen_assign is not None:
        ids = population.clients + torch.arange(len(outcome.unseen))
        last = outcome.records[-1].round
        parts.append((last, ids, outcome.unseen_assign, outcome.metric.key("unseen_accuracy"), outcome.unseen))
    return pa.table(
        {
            "round": pa.array([r for r, ids, *_ in parts for _ in ids], pa.int64()),
            "client": pa.array([population.names[i] for _, ids, *_ in parts for i in ids.tolist()], pa.string()),
            "cluster": pa.array(_numbers([a for _, _, a, _, _ in parts]), pa.int64()),
            "metric": pa.array([m for _, ids, _, m, _ in parts for _ in ids], pa.string()),
            "value": pa.array(_numbers([v for *_, v in parts]), pa.float64()),
        }
    )


def assignments_table(records: Sequence[Record], population: Population) -> pa.Table:
    """One row per round (0 is the start) and client."""
    n = population.clients
    truths = [population.at(r.round).truth for r in records]
    real = [k for truth in truths for k in ([None] * n if truth is None else truth[:n].tolist())]
    return pa.table(
        {
            "round": pa.array([r.round for r in records for _ in range(n)], pa.int64()),
            "client": pa.array([name for _ in records for name in population.names[:n]], pa.string()),
            "cluster": pa.array(_numbers([r.assign for r in records]), pa.int64()),
            "true_cluster": pa.array(real, pa.int64()),
        }
    )


def _numbers(parts: Sequence[Tensor]) -> Any:
    return torch.cat(list(parts)).numpy() if parts else []


def write_table(path: Path, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_whole(path, sink.getvalue().to_pybytes())
