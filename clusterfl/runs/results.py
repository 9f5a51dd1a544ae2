"""What a run leaves behind. Everything but the fields called ``seconds`` is the same each time it is run.

A folder holds ``config.toml``, ``summary.json``, ``rounds.jsonl``, ``metrics.parquet``,
``assignments.parquet`` and ``models/`` (docs/results.md).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.metrics import clustering
from clusterfl.record import Outcome, Record
from clusterfl.runs.data_card import write_data_card
from clusterfl.runs.files import append, write_whole
from clusterfl.runs.model_files import write_models
from clusterfl.runs.parquet import assignments_tables, metrics_tables, write_tables
from clusterfl.scores import ACCURACY, Metric


def write_run(folder: Path, config: Config, population: Population, outcome: Outcome) -> dict[str, Any]:
    """Writes a finished run; returns its summary, which is written last: a folder that has one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)
    write_whole(folder / "config.toml", config.toml().encode())
    write_data_card(folder, config, population)
    lines = [json.dumps(round_row(r, population, outcome.metric)) + "\n" for r in outcome.records]
    write_whole(folder / "rounds.jsonl", "".join(lines).encode())
    write_tables(folder / "metrics.parquet", metrics_tables(outcome, population))
    write_tables(folder / "assignments.parquet", assignments_tables(outcome.records, population))
    write_models(folder / "models", config.model, population, outcome)
    found = summary(config, population, outcome)
    write_whole(folder / "summary.json", (json.dumps(found, indent=2) + "\n").encode())
    return found


class RoundsFile:
    """``rounds.jsonl`` as it grows: one line a round, there as soon as the round is over."""

    def __init__(self, folder: Path, population: Population, metric: Metric = ACCURACY) -> None:
        self.path, self.population, self.metric = folder / "rounds.jsonl", population, metric

    def restart(self, records: Sequence[Record]) -> None:
        """Only the rounds of a run that is taken up again."""
        write_whole(self.path, "".join(self._line(r) for r in records).encode())

    def add(self, record: Record) -> None:
        append(self.path, self._line(record).encode(), sync=False)  # a resume writes it anew

    def _line(self, record: Record) -> str:
        return json.dumps(round_row(record, self.population, self.metric)) + "\n"


def round_row(record: Record, population: Population, metric: Metric = ACCURACY) -> dict[str, Any]:
    """A line of ``rounds.jsonl``."""
    main = record.score(metric.name)
    known = ~main.isnan()
    truth = population.at(record.round).truth
    right = None if truth is None else clustering(record.assign, truth[: len(record.assign)])
    return plain(
        {
            "round": record.round,
            metric.key("accuracy_mean"): float(main[known].mean()),
            "loss_mean": float(record.loss[known].mean()),
            **({} if record.sampled is None else {"clients_measured": record.sampled}),
            "ari": right and right.ari,
            "nmi": right and right.nmi,
            "clusters": int(record.assign.unique().numel()),
            "moved": record.moved,
            metric.key("intra_accuracy"): record.intra,
            metric.key("inter_accuracy"): record.inter,
            "bytes_up": record.bytes_up,
            "bytes_down": record.bytes_down,
            "rejected": record.rejected,
            "epsilon": record.epsilon,
            "logged": record.logged,
            "seconds": record.seconds,
        }
    )


def summary(config: Config, population: Population, outcome: Outcome) -> dict[str, Any]:
    """``summary.json``: the run in one object, null where a figure has no meaning."""
    right, unseen = outcome.clusters, outcome.unseen
    assign = outcome.records[-1].assign.tolist()
    admitted = [] if outcome.unseen_assign is None else outcome.unseen_assign.tolist()
    seen, joined = population.names[: population.clients], population.names[population.clients :]
    found = plain(
        {
            "method": outcome.method.name,
            "seed": config.seed,
            "rounds": outcome.records[-1].round,
            "clients": population.clients,
            "k": outcome.served.k,
            "metric": outcome.metric.name,
            "better": outcome.metric.better,
            "accuracy_mean": outcome.score.mean,
            "accuracy_weighted": outcome.score.weighted,
            "accuracy_std": outcome.score.std,
            "accuracy_bottom5": outcome.score.bottom5,
            "accuracy_top5_rounds": outcome.top5_rounds,
            "global_accuracy": outcome.global_accuracy,
            "global_weighted": outcome.global_weighted,
            "f1_micro": outcome.f1.weighted,
            "f1_macro": outcome.f1.mean,
            **({} if outcome.records[-1].sampled is None else {"clients_measured": outcome.records[-1].sampled}),
            "metrics": {name: dataclasses.asdict(figures) for name, figures in outcome.figures.items()},
            "ari": right and right.ari,
            "nmi": right and right.nmi,
            "matched": right and right.matched,
            "soft_truth": population.soft_truth,
            "clusters_found": outcome.clusters_found,
            "settled": settled(outcome.records) if outcome.method.clustered else None,
            "true_clusters": population.true_clusters,
            "intra_accuracy": outcome.intra,
            "inter_accuracy": outcome.inter,
            "margin": outcome.margin,
            "unseen": population.unseen,
            "unseen_accuracy": None if unseen is None else float(unseen.mean()),
            "bytes_up": outcome.bytes_up,
            "bytes_down": outcome.bytes_down,
            "seconds": outcome.seconds,
            "rejected": sum(r.rejected for r in outcome.records),
            "rounds_lost": sum(r.lost for r in outcome.records),
            **under_attack(config, population, outcome.records[-1], outcome.metric),
            "privacy": None if outcome.spent is None else dataclasses.asdict(outcome.spent),
            "data": population.name,
            "data_sha256": population.digest,
            "notes": list(population.notes),
            "class_names": population.class_names,
            "assignments": dict(zip(seen, assign, strict=True)),
            "unseen_assignments": dict(zip(joined, admitted, strict=False)),
            "either": {population.names[i]: where for i, where in outcome.either.items()},
            "per_client": per_client(population, outcome),
        }
    )
    return {outcome.metric.key(name): value for name, value in found.items()}


def per_client(population: Population, outcome: Outcome) -> dict[str, dict[str, Any]]:
    """What each client, unseen ones included, holds, uses and gets from it, by name."""
    last, truth = outcome.records[-1], population.at(outcome.records[-1].round).truth
    clusters, scores = last.assign.tolist(), last.score(outcome.metric.name).tolist()
    if outcome.unseen is not None and outcome.unseen_assign is not None:
        clusters, scores = clusters + outcome.unseen_assign.tolist(), scores + outcome.unseen.tolist()
    missing = len(population.names) - len(clusters)
    return {
        name: {
            "cluster": cluster,
            outcome.metric.name: score,
            "train": int(population.train.sizes[i]),
            "test": int(population.test.sizes[i]),
            "true_cluster": None if truth is None else int(truth[i]),
            "unseen": i >= population.clients,
        }
        for i, (name, cluster, score) in enumerate(
            zip(population.names, clusters + [None] * missing, scores + [None] * missing, strict=True)
        )
    }


def settled(records: Sequence[Record]) -> int:
    """The last round in which a client changed its cluster (0: none ever did)."""
    return max((r.round for r in records if r.moved > 0), default=0)


def under_attack(config: Config, population: Population, last: Record, metric: Metric) -> dict[str, Any]:
    """Who lied, and how the others fared: on the whole, in the true cluster that fared worst, and in ARI."""
    liars = config.attackers(population)
    honest = torch.ones(population.clients, dtype=torch.bool)
    honest[liars] = False
    truth = population.at(last.round).truth
    groups = last.assign if truth is None else truth[: population.clients]
    score = last.score(metric.name)
    known = honest & ~score.isnan()
    means = [float(score[known & (groups == k)].mean()) for k in groups[known].unique()]
    right = None if truth is None else clustering(last.assign[honest], groups[honest])
    return {
        "attackers": [population.names[i] for i in liars.tolist()],
        "accuracy_honest": float(score[known].mean()),
        "accuracy_worst_cluster": metric.worst(means),
        "ari_honest": right and right.ari,
    }


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a figure that has no meaning is null."""
    cleaned: dict[str, Any] = _plain(value)
    return cleaned


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
