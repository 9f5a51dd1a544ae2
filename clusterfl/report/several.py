"""The page of several runs: methods against each other over seeds and scenarios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clusterfl.errors import DataError
from clusterfl.report.groups import Comparison, Group, compared
from clusterfl.report.heat import heat_map
from clusterfl.report.lines import Curve, Point, curves, points
from clusterfl.report.parts import Column, Figure, Filter, Kind, Page, Section, Table, Tile
from clusterfl.report.runs import Run
from clusterfl.report.svg import Unit, said
from clusterfl.report.trees import rank_diagram
from clusterfl.runs.statistics import TEST, Interval, Standing, ranks, standing

SCENARIOS = 8  # that have pictures of their own


def page_of_several(runs: Sequence[Run]) -> Page:
    import clusterfl

    found = compared(runs)
    if not found.groups:
        raise DataError("the folders should hold at least one run that has ended")
    scenarios = found.scenarios[:SCENARIOS]
    notes = list(found.left_out)
    if len(found.scenarios) > SCENARIOS:
        notes.append(f"Pictures show the first {SCENARIOS} of {len(found.scenarios)} scenarios, tables show all.")
    rank_figures, rank_lead = rank_part(found)
    sections = [
        Section("Results", table=results(found), lead=results_lead(found)),
        Section("Learning", [figure for s in scenarios for figure in learning(found, s)]),
        Section("Ranks and clusters", [*rank_figures, *agreement(found)], lead=rank_lead),
        Section("Cost", [figure for s in scenarios for figure in cost(found, s)]),
        Section("All runs", table=every_run(found), lead="One row for each run, with its own figures."),
    ]
    filters = [
        Filter("method", found.methods),
        Filter("scenario", found.scenarios),
        Filter("seed", [str(s) for s in found.seeds]),
    ]
    title = found.scenarios[0] if len(found.scenarios) == 1 else f"{len(found.scenarios)} scenarios"
    return Page(
        title=title or "Comparison",
        subtitle=f"{_many(len(found.methods), 'method')} compared over {_many(len(found.seeds), 'seed')}",
        badges=[],
        tiles=tiles(found),
        sections=[s for s in sections if s.figures or s.table],
        notes=notes,
        filters=[f for f in filters if len(f.values) > 1],
        made_by=f"Drawn by clusterfl {clusterfl.__version__} from the runs' folders; nothing is loaded from elsewhere. "
        "Filters hide what is switched off; they do not compute means and tests anew.",
    )


def _many(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def tiles(found: Comparison) -> list[Tile]:
    made = [
        Tile("methods", "methods", len(found.methods), "count"),
        Tile("scenarios", "scenarios", len(found.scenarios), "count"),
        Tile("runs", "runs", sum(len(g.runs) for g in found.groups), "count", _many(len(found.seeds), "seed")),
    ]
    for scenario in found.scenarios[:3]:
        stand = standing_in(found, scenario)
        if stand is not None:
            group = found.group(stand.best, scenario)
            assert group is not None
            mean = Interval.of(list(group.values(found.metric.key).values())).mean
            ties = sum(stand.tied(name) for name in stand.p)
            note = f"{stand.best}" + (f" and {_many(ties, 'tie')}" if ties else "")
            made.insert(0, Tile("best", f"best {found.metric.name}", mean, found.metric.unit, note))
    return made


def standing_in(found: Comparison, scenario: str) -> Standing | None:
    values = {g.method: g.values(found.metric.key) for g in found.of(scenario)}
    known = {name: v for name, v in values.items() if v}
    return standing(known, higher=found.metric.higher) if known else None


# -- tables --------------------------------------------------------------------------------------------


def figures_of(found: Comparison) -> list[tuple[str, str, Kind, Unit]]:
    """(key of the summary, heading, kind, unit) of the figures that some run has."""
    m = found.metric
    known: list[tuple[str, str, Kind, Unit]] = [
        (m.key, m.name, m.unit, m.unit),
        (f"{m.name}_bottom5", "worst 5", m.unit, m.unit),
        ("ari", "ARI", "index", "index"),
        ("clusters_found", "clusters", "count", "count"),
        ("settled", "settled", "count", "count"),
        (f"unseen_{m.name}", "unseen", m.unit, m.unit),
        (f"{m.name}_honest", "honest", m.unit, m.unit),
        ("rejected", "rejected", "count", "count"),
        ("bytes_up", "up", "bytes", "bytes"),
        ("bytes_down", "down", "bytes", "bytes"),
        ("seconds", "time", "seconds", "seconds"),
    ]
    attacked = any(run.summary.get("attackers") for g in found.groups for run in g.runs.values())
    shown = [f for f in known if attacked or f[1] not in ("honest", "rejected")]
    return [f for f in shown if any(g.values(f[0]) for g in found.groups)]


def results(found: Comparison) -> Table:
    wanted = figures_of(found)
    several = len(found.scenarios) > 1
    columns = [Column("method"), *([Column("scenario")] if several else [])]
    columns += [Column(heading, kind) for _, heading, kind, _ in wanted]
    columns += [Column("p against best", "number", TEST), Column("seeds", "count")]
    stands = {s: standing_in(found, s) for s in found.scenarios}
    rows, tags = [], []
    for g in found.groups:
        stand = stands[g.scenario]
        row: list[Any] = [g.method, *([g.scenario] if several else [])]
        for key, _, _, unit in wanted:
            row.append(_cell(g, key, unit, stand if key == found.metric.key else None))
        p = stand.p.get(g.method) if stand else None
        best = stand is not None and stand.best == g.method
        row.append({"v": 2.0 if best else p, "s": "best"} if best else p if p is None else {"v": p, "s": _p(p)})
        rows.append([*row, len(g.runs)])
        tags.append(g.tags)
    return Table(columns, rows, "results", sort=1 + several, falling=found.metric.higher, tags=tags)


def _cell(group: Group, key: str, unit: Unit, stand: Standing | None) -> Any:
    over = Interval.of(list(group.values(key).values()))
    if not over.values:
        return None
    exact = math.isnan(over.half) or over.half == 0 or unit in ("bytes", "seconds")
    shown = said(over.mean, unit) if exact else f"{said(over.mean, unit)} ± {said(over.half, unit)}"
    mark = "" if stand is None else "best" if stand.best == group.method else "tied" if stand.tied(group.method) else ""
    return {"v": over.mean, "s": shown, "c": mark}


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def results_lead(found: Comparison) -> str:
    if len(found.seeds) < 2:
        return "One seed: no interval and no test. ★ is the best mean."
    return (
        "Means over seeds with 95 % confidence intervals (Student's t). ★ is the best mean, ≈ is not distinguishable "
        f"from it: {TEST}; – is what cannot be tested (the same gap for every seed, or fewer than two common seeds)."
    )


def every_run(found: Comparison) -> Table:
    wanted = figures_of(found)
    several = len(found.scenarios) > 1
    columns = [Column("method"), *([Column("scenario")] if several else []), Column("seed", "count")]
    columns += [Column(heading, kind) for _, heading, kind, _ in wanted] + [Column("folder")]
    rows, tags = [], []
    for g in found.groups:
        for seed, run in g.runs.items():
            figures = [run.summary.get(key) for key, *_ in wanted]
            rows.append([g.method, *([g.scenario] if several else []), seed, *figures, str(run.folder)])
            tags.append({**g.tags, "seed": str(seed)})
    return Table(columns, rows, "runs", tags=tags)


# -- pictures ------------------------------------------------------------------------------------------


def learning(found: Comparison, scenario: str) -> list[Figure]:
    m = found.metric
    lines = []
    for g in found.of(scenario):
        x, table = over_seeds(g)
        if len(x):
            low, high = (table.min(axis=0), table.max(axis=0)) if len(table) > 1 else (None, None)
            mean = table.mean(axis=0)
            lines.append(Curve(g.method, x, mean, found.methods.index(g.method), low, high, strong=True, tags=g.tags))
    if not lines:
        return []
    alone = len(found.scenarios) == 1
    width, height = (1160.0, 380.0) if alone else (560.0, 320.0)
    drawing = curves(lines, title=f"{m.name} over rounds", x_name="round", unit=m.unit, width=width, height=height)
    band = "Means over clients and seeds; a band goes from the lowest seed to the highest."
    return [Figure(f"{m.name.capitalize()} over rounds{_in(found, scenario)}", drawing, band, wide=alone)]


def over_seeds(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """(rounds ``[T]``, mean over clients ``[seeds, T]``) in the rounds that every seed measured."""
    curves_ = [
        dict(zip(r.measured.tolist(), np.nanmean(r.values, axis=1).tolist(), strict=True)) for r in group.runs.values()
    ]
    common = sorted(set.intersection(*(set(c) for c in curves_)))
    return np.array(common, dtype=float), np.array([[c[t] for t in common] for c in curves_])


def _in(found: Comparison, scenario: str) -> str:
    return "" if len(found.scenarios) == 1 else f": {scenario}"


def rank_part(found: Comparison) -> tuple[list[Figure], str]:
    """Mean ranks over every scenario and seed that all methods have."""
    blocks = [
        (s, seed)
        for s in found.scenarios
        for seed in found.seeds
        if all((g := found.group(m, s)) is not None and seed in g.values(found.metric.key) for m in found.methods)
    ]
    table = {m: [_group(found, m, s).values(found.metric.key)[seed] for s, seed in blocks] for m in found.methods}
    got = ranks(table, higher=found.metric.higher)
    if got is None:
        return [], ""
    drawing = rank_diagram(got.mean, got.distance, {m: i for i, m in enumerate(found.methods)}, title="mean ranks")
    test = "" if math.isnan(got.p) else f" Friedman's test: p {_p(got.p) if got.p < 0.001 else '= ' + _p(got.p)}."
    note = (
        f"Mean rank over {got.blocks} blocks (scenario and seed); a bar joins methods that are closer than Nemenyi's "
        f"critical distance at level 0.05.{test}"
    )
    lead = "" if len(found.scenarios) > 1 else "One scenario: ranks over seeds of the same data say little beyond it."
    return [Figure("Mean ranks", drawing, note)], lead


def _group(found: Comparison, method: str, scenario: str) -> Group:
    group = found.group(method, scenario)
    assert group is not None
    return group


def cost(found: Comparison, scenario: str) -> list[Figure]:
    m = found.metric
    figures = []
    axes: tuple[tuple[str, Unit, tuple[str, ...]], ...] = (
        ("traffic", "bytes", ("bytes_up", "bytes_down")),
        ("time", "seconds", ("seconds",)),
    )
    for word, unit, keys in axes:
        made = []
        for g in found.of(scenario):
            gains = g.values(m.key)
            spent = [sum(g.runs[s].summary[k] for k in keys) for s in gains]
            if gains:
                y, x = list(gains.values()), spent
                made.append(
                    Point(
                        g.method,
                        float(np.mean(x)),
                        float(np.mean(y)),
                        found.methods.index(g.method),
                        float(np.std(x)),
                        float(np.std(y)),
                        g.tags,
                    )
                )
        if made:
            drawing = points(made, title=f"{m.name} against {word}", x_name=word, x_unit=unit, unit=m.unit)
            what = "up and down" if word == "traffic" else "wall-clock"
            note = f"Means over seeds, {what}; bars are one standard deviation."
            figures.append(Figure(f"{m.name.capitalize()} against {word}{_in(found, scenario)}", drawing, note))
    return figures


def agreement(found: Comparison) -> list[Figure]:
    """ARI by method and scenario; by seed where there is one scenario."""
    by_seed = len(found.scenarios) == 1
    columns = [f"seed {s}" for s in found.seeds] if by_seed else list(found.scenarios)
    table = np.full((len(found.methods), len(columns)), math.nan)
    for i, method in enumerate(found.methods):
        for j, column in enumerate(found.seeds if by_seed else found.scenarios):
            group = found.group(method, found.scenarios[0] if by_seed else str(column))
            values = {} if group is None else group.values("ari")
            if by_seed and isinstance(column, int):
                table[i, j] = values.get(column, math.nan)
            elif values:
                table[i, j] = float(np.mean(list(values.values())))
    if not np.isfinite(table).any():
        return []
    short = columns if by_seed else [f"({chr(97 + j)})" if j < 26 else f"({j})" for j in range(len(columns))]
    drawing = heat_map(table, title="ARI", rows=found.methods, columns=short, unit="index", low=0.0, high=1.0)
    words = "" if by_seed else " " + "; ".join(f"{s} {c}" for s, c in zip(short, columns, strict=True)) + "."
    what = "each seed" if by_seed else "the mean over seeds"
    return [Figure("ARI against the true clusters", drawing, f"1 is the true grouping, 0 is chance; {what}.{words}")]
