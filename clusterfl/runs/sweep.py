"""One scenario under every combination of some settings: the grid, its runs, and a table with the best first."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterfl.callback import Callback
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.runs.compare import learnt_nothing
from clusterfl.runs.jobs import Cell, Ended, run_cells
from clusterfl.scores import Metric
from clusterfl.scores import told as told_metric

LARGEST = 10_000  # runs of a sweep
FIGURES = ("accuracy_mean", "accuracy_bottom5", "ari", "clusters_found", "bytes_up", "bytes_down", "seconds")


@dataclass(frozen=True)
class Axis:
    """A key of the config and the values that it takes."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One combination: ``key=value`` texts, as ``--set`` takes them."""

    settings: tuple[str, ...]

    @property
    def label(self) -> str:
        return ", ".join(self.settings) or "as it is"

    @property
    def folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9._=+-]+", "-", "_".join(self.settings)) or "as-it-is"


def parse_axis(text: str) -> Axis:
    """``local.lr=0.01,0.1`` or ``local.epochs=2-6``: values, or whole numbers from one to another."""
    key, sign, values = (part.strip() for part in text.partition("="))
    if not key or not sign or not values:
        raise ConfigError(f"--grid {text!r} should be key=value,value or key=2-6")
    if key == "seed":
        raise ConfigError(f"--grid {text!r} should be --seeds {values}: every combination is run with each seed")
    span = re.fullmatch(r"(\d+)-(\d+)", values)
    if span:
        low, high = int(span[1]), int(span[2])
        if high < low or high - low >= LARGEST:
            raise ConfigError(f"--grid {text!r} should go from a smaller to a larger number, in at most {LARGEST:,}")
        return Axis(key, tuple(str(n) for n in range(low, high + 1)))
    return Axis(key, tuple(dict.fromkeys(v.strip() for v in values.split(",") if v.strip())))


def points(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest."""
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        twice = next(k for k in keys if keys.count(k) > 1)
        raise ConfigError(f"--grid {twice} should be given once, with all its values")
    count = math.prod(len(axis.values) for axis in axes)
    if count > LARGEST:
        raise ConfigError(f"--grid has {count:,} combinations and should have at most {LARGEST:,}")
    chosen = itertools.product(*(axis.values for axis in axes))
    return [Point(tuple(f"{k}={v}" for k, v in zip(keys, values, strict=True))) for values in chosen]


def sweep(
    load: Callable[[Iterable[str], int], Config],
    grid: Sequence[Point],
    seeds: Sequence[int],
    folder: Path,
    *,
    jobs: int = 1,
    told: Callable[[Ended, int, int], None] = lambda ended, done, total: None,
    watch: Callable[[str, int, int], Sequence[Callback]] = lambda label, number, total: (),
) -> dict[str, Any]:
    """Runs what is missing below ``folder``; the figures of each combination, best first, as JSON.

    ``load(settings, seed)`` is the config of one run; all of them are checked before the first starts. ``watch`` is
    asked for the callbacks of each run that is carried out in this process (``jobs=1``).
    """
    cells, where = [], {}
    for point, seed in itertools.product(grid, seeds):
        cell = Cell(load(point.settings, seed), folder / "runs" / f"{point.folder}-seed{seed}")
        cells.append(cell)
        where[cell.folder] = point
    summaries: dict[Point, list[dict[str, Any]]] = {point: [] for point in grid}
    failed, lost = [], []

    def watched(cell: Cell, number: int) -> Sequence[Callback]:
        return watch(f"{where[cell.folder].label}, seed {cell.config.seed}", number, len(cells))

    for done, ended in enumerate(run_cells(cells, jobs, watched), start=1):
        told(ended, done, len(cells))
        if ended.summary is None:
            settings = where[ended.cell.folder].label
            failed.append({"settings": settings, "seed": ended.cell.config.seed, "error": ended.error})
        else:
            summaries[where[ended.cell.folder]].append(ended.summary)
            if learnt_nothing(ended.summary):
                lost.append({"settings": where[ended.cell.folder].label, "seed": ended.cell.config.seed})
    metric = told_metric(next((runs[0] for runs in summaries.values() if runs), {}))
    rows = [row(point, sorted(runs, key=lambda s: s["seed"]), metric) for point, runs in summaries.items() if runs]
    main = metric.key("accuracy_mean")
    rows.sort(key=lambda r: math.inf if r[main] is None else -metric.sign * r[main])
    said = {"seeds": list(seeds), "metric": metric.name, "better": metric.better}
    return {**said, "points": rows, "failed": failed, "learnt_nothing": lost}


def row(point: Point, runs: list[dict[str, Any]], metric: Metric) -> dict[str, Any]:
    """The means over seeds of one combination."""
    means = {}
    for figure in map(metric.key, FIGURES):
        values = [run[figure] for run in runs if run[figure] is not None]
        means[figure] = statistics.fmean(values) if values else None
    spread = statistics.stdev(r[metric.key("accuracy_mean")] for r in runs) if len(runs) > 1 else 0.0
    settings = dict(text.split("=", 1) for text in point.settings)
    return {"settings": settings, **means, metric.key("accuracy_seeds_std"): spread, "runs": len(runs)}
