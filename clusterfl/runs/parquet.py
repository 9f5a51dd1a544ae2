"""The tables of a run, in Parquet: one row per round, client and metric, and one per round and client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from clusterfl.data.population import Population
from clusterfl.evaluate.sums import MEANS
from clusterfl.record import Outcome, Record
from clusterfl.runs.files import write_whole

T = TypeVar("T")

ROWS = 1 << 18  # of a table that are made and written together

Part = tuple[int, Tensor, Tensor, str, Tensor]  # a round, clients, their clusters, a metric, its values


def metrics_tables(outcome: Outcome, population: Population) -> Iterator[pa.Table]:
    """One row per round, client and metric, some rounds at a time; unseen clients have ``unseen_accuracy`` after the
    last round, or of whatever the main metric is."""
    names = pa.array(population.names, pa.string())
    for parts in _gathered(_metric_parts(outcome, population), lambda part: len(part[1])):
        yield pa.table(
            {
                "round": pa.array(_repeated([(r, len(ids)) for r, ids, *_ in parts]), pa.int64()),
                "client": names.take(pa.array(_numbers([ids for _, ids, *_ in parts]), pa.int64())),
                "cluster": pa.array(_numbers([a for _, _, a, _, _ in parts]), pa.int64()),
                "metric": _words([(name, len(ids)) for _, ids, _, name, _ in parts]),
                "value": pa.array(_numbers([v for *_, v in parts]), pa.float64()),
            }
        )


def _metric_parts(outcome: Outcome, population: Population) -> Iterator[Part]:
    for r in outcome.records:
        if not r.measured:
            continue
        ids = torch.arange(len(r.assign))
        if r.sampled is not None:
            ids = ids[~next(iter(r.scores.values())).isnan()]
        # what only a last round measures is left out of what was one until the run was made longer
        often = {outcome.metric.name, *MEANS} if r is not outcome.records[-1] else r.scores.keys()
        for name, values in r.scores.items():
            if name in often:
                yield r.round, ids, r.assign[ids], name, values[ids]
    if outcome.unseen is not None and outcome.unseen_assign is not None:
        ids = population.clients + torch.arange(len(outcome.unseen))
        last = outcome.records[-1].round
        yield last, ids, outcome.unseen_assign, outcome.metric.key("unseen_accuracy"), outcome.unseen


def assignments_tables(records: Sequence[Record], population: Population) -> Iterator[pa.Table]:
    """One row per round (0 is the start) and client, some rounds at a time."""
    n = population.clients
    names = pa.array(population.names[:n], pa.string())
    for some in _gathered(records, lambda _: n):
        truths = [population.at(r.round).truth for r in some]
        real = [pa.nulls(n, pa.int64()) if truth is None else pa.array(truth[:n].numpy()) for truth in truths]
        yield pa.table(
            {
                "round": pa.array(_repeated([(r.round, n) for r in some]), pa.int64()),
                "client": pa.chunked_array([names] * len(some), pa.string()),
                "cluster": pa.array(_numbers([r.assign for r in some]), pa.int64()),
                "true_cluster": pa.chunked_array(real, pa.int64()),
            }
        )


def _gathered(parts: Iterable[T], rows: Callable[[T], int]) -> Iterator[list[T]]:
    """Parts in lists of about ``ROWS`` rows; one empty list of none."""
    held: list[T] = []
    total, given = 0, False
    for part in parts:
        held.append(part)
        total += rows(part)
        if total >= ROWS:
            yield held
            held, total, given = [], 0, True
    if held or not given:
        yield held


def _numbers(parts: Sequence[Tensor]) -> Any:
    return torch.cat(list(parts)).numpy() if parts else []


def _repeated(runs: Sequence[tuple[int, int]]) -> Any:
    """Each number as often as it says."""
    values, times = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    return np.repeat(values, times)


def _words(runs: Sequence[tuple[str, int]]) -> pa.Array:
    words = sorted({word for word, _ in runs})
    places = _repeated([(words.index(word), times) for word, times in runs])
    return pa.array(words, pa.string()).take(pa.array(places, pa.int64()))


def write_tables(path: Path, tables: Iterator[pa.Table]) -> None:
    """Tables of equal columns, one after another, as one file."""
    sink, first = pa.BufferOutputStream(), next(tables)
    with pq.ParquetWriter(sink, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
    write_whole(path, sink.getvalue())
