"""Several methods on one scenario, over several seeds: the runs, each in a folder of its own, and their figures."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterfl.callback import Callback
from clusterfl.config import Config, tables
from clusterfl.data.population import Population
from clusterfl.metrics import bytes_to_reach
from clusterfl.runs.folder import config_of, same_run
from clusterfl.runs.run import carry_out
from clusterfl.scores import ACCURACY, Metric, told

FIGURES = (
    "accuracy_mean",
    "accuracy_weighted",
    "accuracy_std",
    "accuracy_bottom5",
    "accuracy_top5_rounds",
    "f1_micro",
    "f1_macro",
    "ari",
    "nmi",
    "clusters_found",
    "settled",
    "intra_accuracy",
    "inter_accuracy",
    "unseen_accuracy",
    "accuracy_honest",
    "accuracy_worst_cluster",
    "ari_honest",
    "rejected",
    "bytes_up",
    "bytes_down",
    "seconds",
)
REACHED = "bytes_to_accuracy"  # one figure more, with --reach


OnRun = Callable[[str, int, Path, Population], Sequence[Callback]]


def compare(
    base: Config,
    configs: dict[str, Config],
    seeds: Sequence[int],
    folder: Path,
    *,
    force: bool = False,
    reach: float | None = None,
    watch: OnRun = lambda name, seed, place, population: (),
) -> dict[str, Any]:
    """Runs what is missing below ``folder``; the figures of every method, as JSON.

    ``watch`` is asked for the callbacks of each run that is carried out.
    """
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}
    for seed in seeds:
        population: Population | None = None
        for name, config in configs.items():
            one, place = config.with_seed(seed), folder / "runs" / f"{file_name(name)}-seed{seed}"
            summary = None if force else finished(place, one)
            if summary is None:
                population = population or base.with_seed(seed).population()  # the same clients for every method
                callbacks = watch(name, seed, place, population)
                carry_out(one, population, out=place, resume=not force, force=force, callbacks=callbacks)
                summary = finished(place, one)
                assert summary is not None, "a run that has ended has a summary"
            if reach is not None:
                metric = told(summary)
                summary[metric.key(REACHED)] = spent_until(reach, place, metric)
            summaries[name].append(summary)
    first = next(iter(summaries.values()))[0]
    metric = told(first)
    return {
        "data": first["data"],
        "metric": metric.name,
        "better": metric.better,
        "rounds": base.rounds,
        "seeds": list(seeds),
        "attack": tables.write(base.attack) if base.attack.on else None,
        "reach": reach,
        "methods": [row(name, runs, figures(reach, metric)) for name, runs in summaries.items()],
    }


def file_name(text: str) -> str:
    """A method's name and settings as the name of a folder."""
    _, _, rest = text.rpartition("/")
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", rest)


def finished(folder: Path, config: Config) -> dict[str, Any] | None:
    """The summary of a run that an earlier, interrupted comparison finished here."""
    try:
        resolved, there = config.model_copy(update={"data": config.data.resolved()}), config_of(folder)
        if there is None or not same_run(there, resolved.toml()):
            return None
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if {*figures(None, told(summary)), "seed", "k", "assignments"} <= summary.keys() else None


def learnt_nothing(summary: dict[str, Any]) -> bool:
    """Whether no round of a run had a sound reply: its results are those of the start."""
    return bool(summary.get("rounds")) and summary.get("rounds_lost") == summary["rounds"]


def spent_until(level: float, folder: Path, metric: Metric = ACCURACY) -> int | None:
    """Bytes up and down until the mean over clients first was as good as ``level``; None: never."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    means = [math.nan if (mean := r[metric.key("accuracy_mean")]) is None else mean for r in rounds]
    return bytes_to_reach(level, means, [r["bytes_up"] + r["bytes_down"] for r in rounds], metric)


def figures(reach: float | None, metric: Metric = ACCURACY) -> tuple[str, ...]:
    names = FIGURES if reach is None else (*FIGURES, REACHED)
    return tuple(metric.key(name) for name in names)


def row(name: str, runs: list[dict[str, Any]], names: Sequence[str] = FIGURES) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every figure, null where no run has it."""
    found: dict[str, Any] = {}
    for figure in names:
        values = [run[figure] for run in runs if run[figure] is not None]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[figure] = {"mean": statistics.fmean(values), "std": spread} if values else None
    keep = ("seed", "k", *names, "assignments")
    told = [{**{k: run[k] for k in keep}, "learnt_nothing": learnt_nothing(run)} for run in runs]
    return {"method": name, **found, "runs": told}
