"""Who is where, and why: moves between clusters, every model on every client, labels, confusions, models."""

from __future__ import annotations

import logging
import math

import numpy as np

from clusterfl.errors import ClusterflError
from clusterfl.report.bars import stacked
from clusterfl.report.flow import flow, rounds_shown
from clusterfl.report.heat import heat_map, side_by_side
from clusterfl.report.lines import thinned
from clusterfl.report.parts import Figure
from clusterfl.report.runs import Run
from clusterfl.report.scatter import Dot, scatter
from clusterfl.report.svg import Html, Unit, said

log = logging.getLogger(__name__)

ROWS = 40  # clients with a row of their own
TOGETHER = 300  # clients in the matrix of who was with whom
LARGEST = 40_000_000  # numbers in all models together that are still compared


def flow_figure(run: Run) -> list[Figure]:
    if not run.clustered and len(run.clusters) != 1:
        return []
    moved = [float((run.assign[j] != run.assign[max(j - 1, 0)]).mean()) for j in range(len(run.assign))]
    places = rounds_shown(moved) if len(run.assign) > 1 else [0]
    heads = ["start" if run.rounds[j] == 0 else f"round {run.rounds[j]}" for j in places]
    calm = not any(moved)
    columns = [run.assign[j] for j in places]
    height = 220.0 if calm and run.truth is None else 380.0
    drawing = flow(columns, heads, run.names, title="who is where", true=run.truth, height=height)
    shown = (
        ""
        if len(places) == len(run.rounds)
        else f" {len(places)} of {len(run.rounds)} rounds are drawn: the first, the last and those with most moves."
    )
    against = " On the right the true groups." if run.truth is not None else ""
    return [
        Figure(
            "Who is where",
            drawing,
            "Ribbons are clients, coloured by where they come from." + against + (" Nobody moved." if calm else shown),
            wide=True,
        )
    ]


def by_client_order(run: Run, most: int) -> tuple[np.ndarray, str]:
    """At most so many clients, by cluster and then truth, evenly spaced; and a sentence where some are left out."""
    truth = run.truth if run.truth is not None else np.zeros(len(run.last), dtype=int)
    order = np.lexsort((truth, run.last))
    chosen = order[thinned(len(order), most)]
    return chosen, "" if len(chosen) == len(order) else f" {len(chosen)} of {len(order):,} clients are drawn."


def cross_figure(run: Run) -> list[Figure]:
    """Clients x clusters, with the margin as the last column."""
    if run.cross is None or run.margins is None or run.cross.shape[1] > 30:
        return []
    chosen, cut = by_client_order(run, ROWS)
    table = run.cross[chosen]
    columns = [f"cluster {k}" if table.shape[1] <= 8 else str(k) for k in range(table.shape[1])]
    marked = [(i, int(run.last[c])) for i, c in enumerate(chosen)]
    ends = _ends(run.last[chosen])
    drawing = heat_map(
        table,
        title="clients and clusters",
        rows=[run.names[i] for i in chosen],
        columns=columns,
        unit=run.metric.unit,
        low=float(np.nanmin(table)),
        high=float(np.nanmax(table)),
        marked=marked,
        cuts=[],
        row_cuts=ends,
        beside=("margin", [signed(float(run.margins[i]), run.metric.unit) for i in chosen]),
    )
    narrow = run.margins[np.isfinite(run.margins)]
    wrong = int((narrow < 0).sum())
    note = (
        f"The {run.metric.name} of every cluster's model on every client's test data; a frame is where the client is. "
        "The margin is its own model less the best other one: "
        f"another would serve {wrong} of {len(narrow):,} clients better." + cut
    )
    return [Figure("Every model on every client", drawing, note)]


def signed(value: float, unit: Unit) -> str:
    return said(value, unit) if not value > 0 else "+" + said(value, unit)


def together_figure(run: Run) -> list[Figure]:
    """How similar clients are by the method's own doing: the share of rounds that two were in one cluster."""
    if not run.clustered or len(run.names) < 2:
        return []
    chosen, cut = by_client_order(run, TOGETHER)
    history = run.assign[thinned(len(run.assign), 200)][:, chosen]
    share = np.zeros((len(chosen), len(chosen)))
    for row in history:
        share += row[:, None] == row[None, :]
    share /= len(history)
    small = len(chosen) <= ROWS
    names = [run.names[i] for i in chosen] if small else []
    drawing = heat_map(
        share,
        title="who was with whom",
        rows=names,
        columns=[],
        low=0.0,
        high=1.0,
        cuts=_ends(run.last[chosen]),
        cell=None if not small else min(430 / len(chosen), 30.0),
        x_name="clients, ordered by cluster",
    )
    note = "Similarity as the run saw it: the share of rounds in which two clients were in the same cluster." + cut
    return [Figure("Who was with whom", drawing, note)]


def _ends(groups: np.ndarray) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.diff(groups)) + 1]


def label_figure(run: Run) -> list[Figure]:
    counts = run.details.get("cluster_labels")
    if not counts or len(counts) > 40 or not run.classes:
        return []
    ids = sorted(map(int, counts))
    table = np.array([counts[str(k)] for k in ids], dtype=float)
    rows = [run.cluster_name(k) for k in ids]
    note = "Training samples of all clients of a cluster, by class."
    return [Figure("What the clusters hold", stacked(rows, run.classes, table, title="label mix"), note, wide=True)]


def confusion_figures(run: Run, most: int = 8) -> list[Figure]:
    """The confusion matrices of the largest clusters, side by side."""
    found = run.details.get("confusion")
    if not found:
        return []
    largest = sorted(map(int, found["counts"]), key=lambda k: (-(run.last == k).sum(), k))[:most]
    width = 1160.0 / min(len(largest), 4) - 12.0  # as wide as it will be shown, so that words keep their size
    tables = {k: np.array(found["counts"][str(k)], dtype=float) for k in sorted(largest)}
    drawings = [(run.cluster_name(k), _confusion(run, table, width)) for k, table in tables.items()]
    before = " before clients personalise it" if run.details.get("personal") else ""
    note = f"Of each true class (row), the answers (column) of the cluster's model{before} on its clients' test data."
    note += "" if found["all"] else " A sample of the test data is counted."
    note += "" if len(largest) == len(found["counts"]) else f" The {most} largest of {len(found['counts'])} clusters."
    return [Figure("Confusion in each cluster", side_by_side(drawings, title="confusion"), note, wide=True)]


def _confusion(run: Run, table: np.ndarray, width: float) -> Html:
    total = table.sum(axis=1, keepdims=True)
    share = np.where(total > 0, table / np.maximum(total, 1), math.nan)
    names = run.classes if len(table) <= 12 else []
    return heat_map(share, title="confusion", rows=names, columns=names, low=0.0, high=1.0, width=width)


def model_figures(run: Run) -> list[Figure]:
    """How alike the models are: cosines around their mean, and their first two principal components."""
    flat = models_of(run)
    if flat is None or len(flat) < 2:
        return []
    centred = flat - flat.mean(axis=0)
    norms = np.linalg.norm(centred, axis=1)
    figures = []
    if 3 <= len(flat) <= 60 and (norms > 0).all():  # two models are opposites around their mean, always
        cosine = centred @ centred.T / np.outer(norms, norms)
        names = [run.cluster_name(k) if len(flat) <= 12 else str(k) for k in range(len(flat))]
        short = [str(k) for k in range(len(flat))]
        drawing = heat_map(
            cosine, title="cosines of models", rows=names, columns=short, unit="index", palette="both", high=1.0
        )
        figures.append(Figure("How alike the models are", drawing, "Cosine between models, each less the mean of all."))
    if len(flat) >= 3:
        left, strength, _ = np.linalg.svd(centred, full_matrices=False)
        where = left[:, :2] * strength[:2]
        share = strength[:2] ** 2 / max(float((strength**2).sum()), 1e-30)
        of_model = len(flat) == len(run.names)
        sizes = np.bincount(run.last, minlength=len(flat))
        dots = [
            Dot(
                run.names[k] if of_model else f"cluster {k}",
                float(where[k, 0]),
                float(where[k, 1]),
                int(run.truth[k]) if of_model and run.truth is not None else 0 if of_model else k,
                float(sizes[k]) if not of_model else 1.0,
            )
            for k in range(len(flat))
        ]
        axes = [f"component {i + 1} ({100 * s:.0f} %)" for i, s in enumerate(share)]
        colours = ", coloured by the true group" if of_model and run.truth is not None else ""
        note = (
            f"Principal components of all weights; a dot is {'a client' if of_model else 'a cluster'}'s model{colours}."
        )
        figures.append(
            Figure("Models on a map", scatter(dots, title="models by PCA", x_name=axes[0], y_name=axes[1]), note)
        )
    return figures


def models_of(run: Run) -> np.ndarray | None:
    """``[K, P]``: the float weights of every model, flat; None where they are too many or not there."""
    from clusterfl.runs.model_files import load_models, read_manifest

    place = run.folder / "models"
    try:
        files = [place / entry["file"] for entry in read_manifest(place)["clusters"]]
        if sum(path.stat().st_size for path in files if path.exists()) > 4 * LARGEST:
            return None
        trees = load_models(place)
    except ClusterflError as e:
        log.info("no models are drawn: %s", e)
        return None
    rows = [
        np.concatenate([t.flatten().double().numpy() for _, t in sorted(tree.items()) if t.is_floating_point()])
        for _, tree in sorted(trees.items())
    ]
    return np.stack(rows) if rows and len({len(r) for r in rows}) == 1 else None
