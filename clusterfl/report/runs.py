"""A run's folder as one value: what a page is drawn from. Also of a run that has not ended."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clusterfl.errors import DataError
from clusterfl.report.svg import Unit
from clusterfl.scores import told


@dataclass(frozen=True)
class Metric:
    """What a run is judged by, as its files name it."""

    name: str = "accuracy"
    higher: bool = True  # is better

    @property
    def unit(self) -> Unit:
        return "share" if self.name in ("accuracy", "auc", "f1") else "number"

    @property
    def key(self) -> str:
        """In the summary and in rounds.jsonl."""
        return f"{self.name}_mean"


@dataclass(frozen=True)
class Run:
    """One run. Clients are in the order of the summary; T rounds were measured, R were done."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    summary: dict[str, Any]
    rows: list[dict[str, Any]]  # of rounds.jsonl
    names: list[str]
    unseen: list[str]
    metric: Metric
    rounds: np.ndarray  # [R]
    assign: np.ndarray  # [R, N]
    measured: np.ndarray  # [T]: round numbers
    values: np.ndarray  # [T, N] of the metric
    truth: np.ndarray | None = None  # [N]
    unseen_values: np.ndarray | None = None  # [U]
    details: dict[str, Any] = field(default_factory=dict)
    finished: bool = True

    @property
    def title(self) -> str:
        return str(self.summary.get("method", self.config.get("method", {}).get("name", "run")))

    @property
    def seed(self) -> int:
        return int(self.summary.get("seed", self.config.get("seed", 0)))

    @cached_property
    def last(self) -> np.ndarray:
        """Each client's cluster at the end."""
        found: np.ndarray = self.assign[-1]
        return found

    @cached_property
    def clusters(self) -> list[int]:
        return [int(k) for k in np.unique(self.last)]

    @cached_property
    def clustered(self) -> bool:
        """Whether the method puts clients into groups: not one model for all, not one for each."""
        return self.summary.get("settled") is not None or 1 < len(self.clusters) < len(self.names)

    def cluster_name(self, k: int) -> str:
        """What a model is called: its cluster, or its client where every client has one of its own."""
        alone = len(self.clusters) == len(self.names) > 1 and not self.clustered
        return (
            self.names[int(np.flatnonzero(self.last == k)[0])] if alone and (self.last == k).any() else f"cluster {k}"
        )

    @cached_property
    def moves(self) -> np.ndarray:
        """How often each client changed its cluster."""
        found: np.ndarray = (self.assign[1:] != self.assign[:-1]).sum(axis=0)
        return found

    @cached_property
    def assign_measured(self) -> np.ndarray:
        """``[T, N]``: the clusters in the rounds that were measured."""
        found: np.ndarray = self.assign[np.searchsorted(self.rounds, self.measured)]
        return found

    @cached_property
    def cross(self) -> np.ndarray | None:
        """``[N, K]``: every cluster's model on every client's test data."""
        table = self.details.get("cross")
        if table is None:
            return None
        return np.array([[math.nan if v is None else v for v in row] for row in table], dtype=float)

    @cached_property
    def margins(self) -> np.ndarray | None:
        """How much better its own model is to a client than the best other one; below 0: another would be better."""
        if self.cross is None or self.cross.shape[1] < 2:
            return None
        table = self.cross if self.metric.higher else -self.cross
        places = np.arange(len(table))
        own = table[places, self.last]
        others = table.copy()
        others[places, self.last] = -math.inf
        found: np.ndarray = own - np.nanmax(others, axis=1)
        return found

    @cached_property
    def classes(self) -> list[str]:
        named = self.details.get("class_names") or self.summary.get("class_names")
        counts = self.details.get("cluster_labels") or {}
        n = max((len(v) for v in counts.values()), default=0)
        return [str(c) for c in named] if named and len(named) >= n else [str(c) for c in range(n)]


def read_run(folder: str | Path) -> Run:
    """A run's folder, finished or, as far as its journal goes, not."""
    place = Path(folder)
    try:
        config_text = (place / "config.toml").read_text(encoding="utf-8")
    except OSError:
        raise DataError(f"{place} should be the folder of a run, with a config.toml") from None
    config = tomllib.loads(config_text)
    rows = _lines(place / "rounds.jsonl")
    if not (place / "summary.json").exists():
        from clusterfl.runs.checkpoint import read_journal

        return unfinished(place, config, config_text, rows, read_journal(place))
    try:
        summary: dict[str, Any] = json.loads((place / "summary.json").read_text(encoding="utf-8"))
        details = json.loads(p.read_text(encoding="utf-8")) if (p := place / "details.json").exists() else {}
    except (OSError, ValueError) as e:
        raise DataError(f"{place} should hold a run's results, but one is damaged: {e}") from None
    return _finished(place, config, config_text, summary, rows, details)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(text))
        except ValueError:  # the last line of a run that was killed
            break
    return found


def _finished(
    place: Path,
    config: dict[str, Any],
    config_text: str,
    summary: dict[str, Any],
    rows: list[dict[str, Any]],
    details: dict[str, Any],
) -> Run:
    import pyarrow.parquet as pq

    metric = metric_of(summary)
    names, unseen = list(map(str, summary["assignments"])), list(map(str, summary["unseen_assignments"]))
    table = pq.read_table(place / "assignments.parquet")
    n = len(names)
    rounds = np.unique(table["round"].to_numpy())
    assign = table["cluster"].to_numpy().reshape(len(rounds), n).astype(np.int32)
    true = table["true_cluster"].slice(len(table) - n)
    measured, values = _metric(place, metric.name, n)
    return Run(
        place,
        config,
        config_text,
        summary,
        rows,
        names,
        unseen,
        metric,
        rounds,
        assign,
        measured,
        values,
        None if true.null_count else true.to_numpy().astype(int),
        _metric(place, f"unseen_{metric.name}", len(unseen))[1].reshape(-1) if unseen else None,
        details,
    )


def _metric(place: Path, name: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(rounds ``[T]``, values ``[T, n]``): clients of a round stand in the order of the run."""
    import pyarrow.parquet as pq

    table = pq.read_table(place / "metrics.parquet", columns=["round", "value"], filters=[("metric", "=", name)])
    if not len(table):
        return np.zeros(0, dtype=int), np.zeros((0, n))
    rounds = np.unique(table["round"].to_numpy())
    return rounds, table["value"].to_numpy(zero_copy_only=False).astype(float).reshape(len(rounds), -1)


def metric_of(summary: dict[str, Any]) -> Metric:
    """The metric that the summary names; accuracy where it names none."""
    found = told({k: v for k, v in summary.items() if v is not None})
    return Metric(found.name, found.better == "higher")


def unfinished(
    place: Path,
    config: dict[str, Any],
    config_text: str,
    rows: list[dict[str, Any]],
    records: Sequence[Any],
    *,
    names: Sequence[str] = (),
    truth: np.ndarray | None = None,
    details: dict[str, Any] | None = None,
) -> Run:
    """A run so far, out of the records of its rounds."""
    if not records:
        raise DataError(f"{place} should hold at least one round; run it with checkpoint.every of at least 1")
    last = records[-1]
    n = len(last.assign)
    done = [r for r in records if r.measured]
    metric = metric_of({"metric": next(iter(done[-1].scores)) if done else None})
    row: dict[str, Any] = next((r for r in reversed(rows) if r.get(metric.key) is not None), {})
    so_far = {
        "method": config.get("method", {}).get("name"),
        "seed": config.get("seed", 0),
        "rounds": last.round,
        "clients": n,
        "metric": metric.name,
        "better": "higher" if metric.higher else "lower",
        metric.key: row.get(metric.key),
        "ari": row.get("ari"),
        "nmi": row.get("nmi"),
        "clusters_found": len(last.assign.unique()),
        "bytes_up": last.bytes_up,
        "bytes_down": last.bytes_down,
        "rejected": sum(r.rejected for r in records),
        "seconds": sum(r.seconds for r in records),
        "data": config.get("data", {}).get("source", ""),
    }
    values = np.stack([r.score(metric.name).numpy() for r in done]) if done else np.zeros((0, n))
    return Run(
        place,
        config,
        config_text,
        so_far,
        rows,
        list(names) or [str(i) for i in range(n)],
        [],
        metric,
        np.array([r.round for r in records]),
        np.stack([r.assign.numpy() for r in records]).astype(np.int32),
        np.array([r.round for r in done], dtype=int),
        values,
        truth,
        None,
        details or {},
        finished=False,
    )


def folders_of(places: Sequence[str | Path]) -> list[Path]:
    """Run folders, given these or folders of comparisons; a folder that is given twice counts once."""
    found: list[Path] = []
    for place in map(Path, places):
        if not place.is_dir():
            raise DataError(f"{place} should be the folder of a run or of a comparison, but is none")
        below = sorted(p.parent for p in (place / "runs").glob("*/config.toml"))
        found += below or [place]
    return list(dict.fromkeys(found))
