"""How a run got on: its metric over rounds, what it cost, what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clusterfl.report.lines import POINTS, Curve, curves
from clusterfl.report.parts import Figure
from clusterfl.report.runs import Run
from clusterfl.report.svg import Unit

LINES = 10  # clusters that have a curve of their own


def metric_figures(run: Run) -> list[Figure]:
    if not len(run.measured):
        return []
    unit, x = run.metric.unit, run.measured.astype(float)
    known = np.isfinite(run.values).any(axis=1)
    x, values, assign = x[known], run.values[known], run.assign_measured[known]
    low, high = np.nanpercentile(values, [10, 90], axis=1) if len(values) else (None, None)
    worst = five_worst(values, higher=run.metric.higher)
    lines = [Curve("mean over clients", x, np.nanmean(values, axis=1), 0, low, high, strong=True)]
    if values.shape[1] > 5:
        lines.append(Curve("five worst clients", x, worst, 3))
    before = run.summary.get(f"global_{run.metric.name}")
    if run.details.get("personal") and before is not None and len(x):
        lines.append(Curve("before personalisation, at the end", x, np.full(len(x), before), None, dashed=True))
    every = "" if len(run.measured) <= POINTS else f" {POINTS} of {len(run.measured)} rounds are drawn."
    figures = [
        Figure(
            f"{run.metric.name.capitalize()} over rounds",
            curves(lines, title=f"{run.metric.name} over rounds", x_name="round", unit=unit),
            "Each client's own test data; the band holds the middle 80 % of clients." + every,
        )
    ]
    if run.clustered:
        clusters, sizes = np.unique(assign, return_counts=True)
        shown = sorted(clusters[np.argsort(-sizes, kind="stable")[:LINES]].tolist())
        found = by_cluster(values, assign, shown)
        each = [Curve(f"cluster {k}", x, found[k], k) for k in shown]
        left_out = f" The {LINES} largest of {len(clusters)} clusters are drawn." if len(clusters) > LINES else ""
        drawing = curves(each, title=f"{run.metric.name} of each cluster", x_name="round", unit=unit)
        note = "Mean over the clients that were in the cluster in that round." + left_out
        figures.append(Figure(f"{run.metric.name.capitalize()} of each cluster", drawing, note))
    else:
        figures += spread_figure(run)
    return figures


def five_worst(values: np.ndarray, *, higher: bool) -> np.ndarray:
    """``[T]``: the mean of the five worst clients of each round."""
    ordered = np.sort(values if higher else -values, axis=1)[:, :5]
    means: np.ndarray = np.nanmean(ordered, axis=1) * (1 if higher else -1)
    return means


def by_cluster(values: np.ndarray, assign: np.ndarray, clusters: Sequence[int]) -> dict[int, np.ndarray]:
    """``[T]`` for each of these clusters: the mean of its clients; NaN in rounds in which it had none."""
    found = {}
    for k in clusters:
        inside = (assign == k) & np.isfinite(values)
        count = inside.sum(axis=1)
        total = np.where(inside, values, 0.0).sum(axis=1)
        found[k] = np.where(count > 0, total / np.maximum(count, 1), math.nan)
    return found


def spread_figure(run: Run) -> list[Figure]:
    """Clients from worst to best, where there are no clusters to tell apart."""
    final = np.sort(run.values[-1][np.isfinite(run.values[-1])])
    if len(final) < 2:
        return []
    x = 100 * np.arange(len(final)) / (len(final) - 1)
    drawing = curves(
        [Curve("clients in order", x, final, 0, strong=True)],
        title="spread between clients",
        x_name="share of clients, %",
        x_unit="number",
        unit=run.metric.unit,
    )
    return [Figure("Spread between clients", drawing, "After the last round, from the lowest client to the highest.")]


def agreement_figure(run: Run) -> list[Figure]:
    """ARI and the share of clients that moved, over rounds."""
    lines = []
    x = np.array([r["round"] for r in run.rows], dtype=float)
    for name, key, k in (("ARI against the truth", "ari", 2), ("clients that moved", "moved", 1)):
        y = _column(run, lambda r, key=key: r.get(key))  # type: ignore[misc]
        if np.isfinite(y).any():
            lines.append(Curve(name, x, y, k, strong=key == "ari"))
    truth = any(c.strong for c in lines)
    told = truth or any(c.y.any() for c in lines)  # without a truth and without moves there is nothing to see
    if len(x) < 2 or not run.clustered or not told:
        return []
    drawing = curves(lines, title="agreement and moves", x_name="round", unit="index", zero=True)
    note = (
        "An ARI of 1 is the true grouping, 0 is chance; moves as a share." if truth else "Moves as a share of clients."
    )
    return [Figure("Do the clusters settle?", drawing, note)]


def cost_figures(run: Run) -> list[Figure]:
    rows = run.rows
    if not rows:
        return []
    spent = _column(run, lambda r: r["bytes_up"] + r["bytes_down"])
    means = dict(zip(run.measured.tolist(), np.nanmean(run.values, axis=1).tolist(), strict=True))
    gain = _column(run, lambda r: means.get(r["round"]))
    x = np.array([r["round"] for r in rows], dtype=float)
    figures = []
    if np.nanmax(spent, initial=0.0) > 0:
        lines = [Curve(run.metric.name, spent, gain, 0, strong=True)]
        drawing = curves(
            lines, title="metric against traffic", x_name="sent so far", x_unit="bytes", unit=run.metric.unit
        )
        figures.append(
            Figure(f"{run.metric.name.capitalize()} against traffic", drawing, "Bytes up and down, the start included.")
        )
        ways = [
            Curve("up, clients to server", x, _column(run, lambda r: r["bytes_up"]), 1),
            Curve("down, server to clients", x, _column(run, lambda r: r["bytes_down"]), 5),
        ]
        drawing = curves(ways, title="traffic", x_name="round", unit="bytes", zero=True)
        figures.append(Figure("Traffic so far", drawing))
    clock = np.cumsum(_column(run, lambda r: r["seconds"]))
    lines = [Curve(run.metric.name, clock, gain, 0, strong=True)]
    drawing = curves(lines, title="metric against time", x_name="time so far", x_unit="seconds", unit=run.metric.unit)
    figures.append(
        Figure(f"{run.metric.name.capitalize()} against time", drawing, "Wall-clock time of all rounds so far.")
    )
    seconds = [Curve("seconds of a round", x, _column(run, lambda r: r["seconds"]), 4)]
    drawing = curves(seconds, title="seconds", x_name="round", unit="seconds", zero=True)
    figures.append(Figure("Time of a round", drawing, "Wall-clock time of each round, its evaluation included."))
    return figures


def loss_figure(run: Run) -> list[Figure]:
    losses = _column(run, lambda r: r.get("loss_mean"))
    if not np.isfinite(losses).any():
        return []
    x = np.array([r["round"] for r in run.rows], dtype=float)
    drawing = curves([Curve("mean over clients", x, losses, 6)], title="loss", x_name="round", unit="number")
    return [Figure("Loss over rounds", drawing, "On the clients' test data.")]


KNOWN = {"clusters_alive", "moved", "k", "silent", "no_replies"}  # drawn elsewhere


def trouble_figures(run: Run) -> list[Figure]:
    """Drop-outs, rejected replies, privacy spent, and the method's own diagnostics, each where there is any."""
    x = np.array([r["round"] for r in run.rows], dtype=float)
    figures = []
    silent = (
        "Clients asked in vain, by round: gone, late, or turned down. A client that two messages miss counts twice."
    )
    found: tuple[tuple[str, Unit, np.ndarray, str], ...] = (
        ("Drop-outs", "count", _column(run, lambda r: r.get("logged", {}).get("silent", 0.0)), silent),
        ("Rejected replies", "count", _column(run, lambda r: r.get("rejected")), "Turned down by the guard."),
        ("Privacy spent (epsilon)", "number", _column(run, lambda r: r.get("epsilon")), ""),
    )
    for title, unit, column, note in found:
        if np.nanmax(column, initial=0.0) > 0:
            drawing = curves([Curve(title, x, column, 3)], title=title, x_name="round", unit=unit, zero=True)
            figures.append(Figure(title, drawing, note))
    return [*figures, *logged_figures(run, x)]


def logged_figures(run: Run, x: np.ndarray) -> list[Figure]:
    """What the method logged; what it logs of each cluster (gap_0, gap_1, …) is one figure."""
    names = sorted({name for r in run.rows for name in r.get("logged", {})} - KNOWN)
    kinds: dict[str, list[Curve]] = {}
    for name in names:
        column = _column(run, lambda r, name=name: r.get("logged", {}).get(name))  # type: ignore[misc]
        if np.isfinite(column).sum() > 1 and np.ptp(column[np.isfinite(column)]) > 0:
            kind, _, k = name.rpartition("_")
            each = bool(kind) and k.isdigit()
            curve = Curve(f"cluster {k}" if each else name, x, column, int(k) if each else 8)
            kinds.setdefault(kind if each else name, []).append(curve)
    figures = []
    for kind, lines in list(kinds.items())[:12]:
        lines = sorted(lines, key=lambda c: c.colour or 0)
        cut = f"The first {LINES} of {len(lines)} clusters are drawn." if len(lines) > LINES else ""
        drawing = curves(lines[:LINES], title=kind, x_name="round", unit="number", height=240)
        figures.append(Figure(f"Logged: {kind}", drawing, cut))
    return figures


def _column(run: Run, of: Callable[[dict[str, Any]], Any]) -> np.ndarray:
    found = [of(r) for r in run.rows]
    return np.array([math.nan if v is None else float(v) for v in found])
