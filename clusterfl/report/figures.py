"""The papers' figures, from results of ``clusterfl reproduce``.

Every function takes the results that a figure shows (row, setting, seed, metrics and curves of each), the config of the
figure, and where to write. Those that need a small run of their own are in :mod:`clusterfl.report.small_runs`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.errors import ClusterflError

Result = Mapping[str, Any]
Points = list[tuple[float, float]]
DPI = 90  # small files: they are kept with the sources
LINES = ("-", (0, (3, 3)))  # in turns, so that of two lines on one another both are seen
READINGS = ((0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))  # of a method that is there already


def accuracy_curves(results: Sequence[Result], config: Config, path: Path) -> None:
    """Mean accuracy over rounds, a line for each row and a panel for each setting."""
    _curves(results, "curve", "accuracy, mean over clients", path)


def micro_curves(results: Sequence[Result], config: Config, path: Path) -> None:
    """The same, weighted by clients' sizes (FeSEM's Fig. 3)."""
    _curves(results, "weighted_curve", "accuracy, by size (micro)", path)


def inter_curves(results: Sequence[Result], config: Config, path: Path) -> None:
    """Accuracy of cluster models on the other clusters, round by round (AWCFL's Figs. 5-8); while there is one cluster
    that of its model, which is everybody's."""
    whole = [{**r, "abroad": abroad(r)} for r in results if r.get("inter_curve")]
    _curves(whole, "abroad", "inter-cluster accuracy", path)


def abroad(r: Result) -> Points:
    inter = dict(r.get("inter_curve") or ())
    return [(t, inter.get(t, value)) for t, value in r.get("intra_curve") or r["inter_curve"]]


def cluster_courses(results: Sequence[Result], config: Config, path: Path) -> None:
    """ARI after every round, and how many clients changed their cluster in it: a thin line for each seed."""
    results = [r for r in results if r.get("ari_curve")]
    settings = _by(results, "setting")
    figure = figure_of(0.8 + 4.6 * len(settings), 5.0)
    grid = figure.subplots(2, len(settings), squeeze=False, sharex="col")
    for column, (setting, mine) in enumerate(settings):
        above, below = grid[0, column], grid[1, column]
        styles = _styles(row for row, _ in _by(mine, "row"))
        for row, runs in _by(mine, "row"):
            for place, r in enumerate(runs):
                drawn = {**styles[row], "lw": 1.1, "label": row if place == 0 else None}
                above.step(*_columns(r["ari_curve"]), where="post", **drawn)
                below.step(*_columns(moves_of(r)), where="post", **drawn)
        above.set(title=setting, ylabel="ARI", ylim=(-0.1, 1.05))
        below.set(xlabel="round", ylabel="% of clients that moved", ylim=(-4, 104))
        for axes in (above, below):
            axes.grid(alpha=0.3)
    _legend(figure, grid[0, 0])
    figure.savefig(path, dpi=DPI)


def moves_of(r: Result) -> Points:
    """The share of clients that moved, in per cent, of every round: results keep the rounds in which some did."""
    last = int(r["ari_curve"][-1][0])
    moved = {int(t): 100.0 * share for t, share in r.get("moved") or ()}
    return [(float(t), moved.get(t, 0.0)) for t in range(1, last + 1)]


def by_setting(results: Sequence[Result], config: Config, path: Path) -> None:
    """The first figure of every row by setting, mean over seeds."""
    figure = figure_of(7.6, 3.8)
    axes = figure.add_subplot()
    settings = list(dict.fromkeys(r["setting"] for r in results))
    styles = _styles(row for row, _ in _by(results, "row"))
    for row, mine in _by(results, "row"):
        points = [(s, _mean(r["metrics"]["accuracy_top5_weighted"] for r in rs)) for s, rs in _by(mine, "setting")]
        places, values = [settings.index(s) for s, _ in points], [100 * v for _, v in points]
        axes.plot(places, values, label=row, marker="." if len(points) > 1 else "x", ms=9, **styles[row])
    axes.set_xticks(range(len(settings)), settings)
    axes.set(ylabel="accuracy, best 5 rounds, by size")
    _save(figure, axes, path)


def by_clusters(results: Sequence[Result], config: Config, path: Path) -> None:
    """Accuracy before and after personalisation by the number of clusters asked for, the latter with its spread between
    clients (FCCA's Fig. 3)."""
    figure = figure_of(7.6, 3.6)
    axes = figure.add_subplot()
    names = list(dict.fromkeys(r["setting"] for r in results))
    for place, (row, mine) in enumerate(_by(results, "row")):
        settings = _by(mine, "setting")
        for metric, label in (("global_weighted", "global"), ("accuracy_mean", "personalised")):
            values = [100 * _mean(r["metrics"][metric] for r in runs) for _, runs in settings]
            spread = None
            if metric == "accuracy_mean" and all("accuracy_std" in r["metrics"] for r in mine):
                spread = [100 * _mean(r["metrics"]["accuracy_std"] for r in runs) for _, runs in settings]
            at = [names.index(name) for name, _ in settings]
            line = (LINES[0], *READINGS)[place % 4]
            axes.errorbar(at, values, spread, marker="o", capsize=3, ls=line, label=f"{row}, {label}")
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="accuracy")
    _save(figure, axes, path)


def megabytes(results: Sequence[Result], config: Config, path: Path) -> None:
    """Metered traffic of whole runs (FedDSMIC's Fig. 5)."""
    figure = figure_of(7.6, 3.2)
    axes = figure.add_subplot()
    rows = list(_by(results, "row"))
    for offset, way in ((-0.2, "bytes_down"), (0.2, "bytes_up")):
        values = [_mean(r["metrics"][way] for r in mine) / 1e6 for _, mine in rows]
        axes.bar([j + offset for j in range(len(rows))], values, 0.38, label=way.removeprefix("bytes_"))
    axes.set_xticks(range(len(rows)), [row.replace(" (", "\n(") for row, _ in rows], fontsize=7)
    axes.set(ylabel="MB in the whole run")
    _save(figure, axes, path)


def _curves(results: Sequence[Result], name: str, label: str, path: Path) -> None:
    """Lines over rounds of what results keep by that name, mean over seeds."""
    results = [r for r in results if r.get(name)]
    if not results:
        raise ClusterflError(f"{path.name}: no result holds a {name} yet")
    settings = list(_by(results, "setting"))
    figure = figure_of(2.6 + 4.4 * len(settings), 3.8)
    grid = figure.subplots(1, len(settings), squeeze=False)[0]
    styles = _styles(row for row, _ in _by(results, "row"))
    for axes, (setting, mine) in zip(grid, settings, strict=True):
        lines = {row: mean_line([r[name] for r in runs]) for row, runs in _by(mine, "row")}
        low, high = height([[y for _, y in points] for points in lines.values()])
        for row, points in lines.items():
            below = "" if max(y for _, y in points) > low else f" (below: {points[-1][1]:.1f} at the end)"
            axes.plot(*_columns(points), label=row + below, **styles[row], marker="o" if len(points) < 4 else None)
        axes.set(title=setting, xlabel="round", ylabel=label, ylim=(low, high))
        axes.grid(alpha=0.3)
    _legend(figure, *grid)
    figure.savefig(path, dpi=DPI)


def mean_line(lines: Sequence[Sequence[Sequence[float]]]) -> Points:
    """In per cent, of the rounds that all have."""
    tables = [{t: value for t, value in line} for line in lines]  # noqa: C416
    return [(t, 100 * _mean(table[t] for table in tables)) for t in tables[0] if all(t in table for table in tables)]


def height(lines: Sequence[Sequence[float]], first: float = 0.1) -> tuple[float, float]:
    """From where to where the y axis goes: what lines do in their first rounds is cut off where it would hide the rest,
    and so is a line that ends far below all others."""
    ends = sorted(line[-1] for line in lines)
    later = [min(line[int(len(line) * first) :]) for line in lines]
    low, high = min(later), max(max(line) for line in lines)
    if len(ends) > 3 and ends[1] - ends[0] > 2 * (ends[-1] - ends[1]):  # one line far below the others
        low = min(value for value, line in zip(later, lines, strict=True) if line[-1] > ends[0])
        low = max(low, ends[0] - (high - ends[0]))
    air = 0.04 * (high - low) or 1.0
    return low - air, high + air


def _styles(rows: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A colour for each method, and dots for its other readings."""
    names, found = list(rows), {}
    methods = list(dict.fromkeys(name.partition(" (")[0] for name in names))
    for name in names:
        method = name.partition(" (")[0]
        alike = [other for other in names if other.partition(" (")[0] == method]
        place = methods.index(method)
        found[name] = {
            "color": f"C{place % 10}",
            "ls": READINGS[(nth - 1) % len(READINGS)] if (nth := alike.index(name)) else LINES[place % 2],
            "lw": 2.6 - 1.6 * place / max(len(methods), 1),  # later lines are thinner: what lies below is seen
        }
    return found


def _columns(points: Iterable[Sequence[float]]) -> tuple[list[float], list[float]]:
    pairs = list(points)
    return [x for x, _ in pairs], [y for _, y in pairs]


def _by(results: Iterable[Result], key: str) -> list[tuple[str, list[Result]]]:
    groups: dict[str, list[Result]] = {}
    for r in results:
        groups.setdefault(r[key], []).append(r)
    return list(groups.items())


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def figure_of(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ClusterflError("matplotlib should be installed for figures: pip install 'clusterfl[report]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _legend(figure: Any, *grid: Any) -> None:
    """One for all panels, beside them: over a panel it would hide what it names."""
    named = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside right upper", fontsize=7, handlelength=3.2)


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    _legend(figure, axes)
    figure.savefig(path, dpi=DPI)
