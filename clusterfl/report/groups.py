"""Several runs in order: which are the same but for the seed, and what tells the others apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterfl.report.runs import Metric, Run

NOT_SCENARIO = {"seed", "method", "methods", "local", "engine", "checkpoint", "device"}


@dataclass(frozen=True)
class Group:
    """Runs of one method on one scenario, by seed."""

    method: str
    scenario: str
    runs: dict[int, Run]

    def values(self, figure: str) -> dict[int, float]:
        """A figure of the summaries by seed, where it has a meaning."""
        found = {seed: run.summary.get(figure) for seed, run in self.runs.items()}
        return {seed: float(v) for seed, v in found.items() if v is not None}

    @property
    def tags(self) -> dict[str, str]:
        return {"method": self.method, "scenario": self.scenario}


@dataclass(frozen=True)
class Comparison:
    groups: list[Group]
    metric: Metric
    left_out: list[str]  # sentences

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(g.method for g in self.groups))

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(g.scenario for g in self.groups))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for g in self.groups for seed in g.runs})

    def group(self, method: str, scenario: str) -> Group | None:
        return next((g for g in self.groups if (g.method, g.scenario) == (method, scenario)), None)

    def of(self, scenario: str) -> list[Group]:
        return [g for g in self.groups if g.scenario == scenario]


def compared(runs: Sequence[Run]) -> Comparison:
    """Groups in the order given; runs that cannot be compared are left out with a sentence."""
    done = [run for run in runs if run.finished]
    left_out = [f"{run.folder} has not ended and is left out." for run in runs if not run.finished]
    metric = done[0].metric if done else Metric()
    alike = [run for run in done if run.metric == metric]
    left_out += [f"{r.folder} is measured by {r.metric.name} and left out." for r in done if r.metric != metric]
    scenarios = labels([str(r.summary.get("data", "")) for r in alike], [scenario_of(r.config) for r in alike])
    how = [flat(r.config.get("method", {})) | flat({"local": r.config.get("local", {})}) for r in alike]
    methods = labels([r.title for r in alike], how, scenarios)
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for run, scenario, method in zip(alike, scenarios, methods, strict=True):
        seeds = found.setdefault((method, scenario), {})
        if run.seed in seeds:
            left_out.append(f"{run.folder} repeats {seeds[run.seed].folder} and is left out.")
        else:
            seeds[run.seed] = run
    return Comparison([Group(m, s, dict(sorted(runs.items()))) for (m, s), runs in found.items()], metric, left_out)


def scenario_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides a run but its seed, its method and how clients train."""
    kept = flat({k: v for k, v in config.items() if k not in NOT_SCENARIO})
    return {k: v for k, v in kept.items() if k != "data.root"}


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A nested table as ``{"a.b": value}``."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{path}.{key}" if path else key
        found |= flat(value, place) if isinstance(value, Mapping) else {place: value}
    return found


def labels(names: Sequence[str], tables: Sequence[Mapping[str, Any]], within: Sequence[str] | None = None) -> list[str]:
    """Each name, with those keys of its table that tell it from others of the same name (and place ``within``)."""
    places = within or [""] * len(names)
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for name, place, table in zip(names, places, tables, strict=True):
        alike.setdefault((name, place), []).append(table)
    telling: dict[str, set[str]] = {name: set() for name in names}
    for (name, _), same in alike.items():
        keys = {k for table in same for k in table}
        telling[name] |= {k for k in keys if len({repr(table.get(k)) for table in same}) > 1}
    return [
        name + "".join(f", {k}={table.get(k, 'unset')}" for k in sorted(telling[name]))
        for name, table in zip(names, tables, strict=True)
    ]
