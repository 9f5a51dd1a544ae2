"""What a method alone can show, out of the state in the run's newest checkpoint."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from clusterfl.report.clusters import by_client_order
from clusterfl.report.heat import heat_map
from clusterfl.report.lines import Curve, curves
from clusterfl.report.parts import Figure
from clusterfl.report.runs import Run
from clusterfl.report.trees import Cut, split_tree

log = logging.getLogger(__name__)

DRAWN = 200  # clients in a matrix of clients and clients


def method_figures(run: Run) -> list[Figure]:
    """Empty where the method has no picture of its own, or the run keeps no checkpoints."""
    from clusterfl.methods.awcfl import Mixed
    from clusterfl.methods.cfl import CFLState
    from clusterfl.methods.fcca import FCCAState
    from clusterfl.methods.fedfomo import Federation

    figures: list[Figure] = []
    state = state_of(run)
    while state is not None:
        if isinstance(state, CFLState):
            figures += cfl(run, state)
        elif isinstance(state, FCCAState):
            figures += fcca(run, state)
        elif isinstance(state, Federation):
            figures += fedfomo(run, state)
        elif isinstance(state, Mixed):
            figures += awcfl(run, state)
        state = getattr(state, "base", None)  # a method around another has its pictures too
    return figures


def state_of(run: Run) -> Any:
    from clusterfl.methods import METHODS
    from clusterfl.runs.checkpoint import CheckpointError, newest_snapshot

    if not METHODS:  # importing them is what makes their states readable
        return None
    try:
        return newest_snapshot(run.folder).state
    except (CheckpointError, ValueError) as e:
        log.info("no picture of the method: %s", e)
        return None


def cfl(run: Run, state: Any) -> list[Figure]:
    if not state.splits:
        return []
    cuts = [Cut(int(s.parent), int(s.child), int(s.round)) for s in state.splits]
    ids, counts = np.unique(run.last, return_counts=True)
    sizes = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    drawing = split_tree(cuts, int(run.rounds[-1]), sizes, title="split tree")
    return [Figure("Split tree", drawing, "Where CFL cut a cluster in two.")]


def fcca(run: Run, state: Any) -> list[Figure]:
    from clusterfl.parts.similarity import similarity

    chosen, cut = by_client_order(run, DRAWN)
    chosen = chosen[state.fits.numpy()[chosen] > 0]
    if len(chosen) < 2:
        return []
    matrices = similarity(state.signatures[chosen.tolist()]).mean()
    figures = []
    for name, what, matrix in zip(("B", "P", "S"), ("mean cosine", "confidence", "B · P"), matrices, strict=True):
        note = "Clients that have trained a flow, ordered by cluster; a mean over labels." + cut
        figures.append(Figure(f"{name}: {what}", _between(run, chosen, matrix.numpy(), both=name != "P"), note))
    return figures


def fedfomo(run: Run, state: Any) -> list[Figure]:
    truth = run.truth if run.truth is not None else np.zeros(len(run.names), dtype=int)
    order = np.argsort(truth, kind="stable")[:: max(1, -(-len(truth) // DRAWN))]
    weights = state.weights.numpy()[np.ix_(order, order)].copy()
    np.fill_diagonal(weights, np.nan)
    drawing = _between(run, order, weights, both=True, groups=truth[order])
    cut = "" if len(order) == len(truth) else f" {len(order)} of {len(truth):,} clients are drawn."
    by = ", ordered by true group" if run.truth is not None else ""
    note = f"Row: who judges; column: whose model. Sums of the weights over rounds{by}; blue helps, red hurts." + cut
    return [Figure("Whose models help whom", drawing, note)]


def awcfl(run: Run, state: Any) -> list[Figure]:
    """How far apart the cluster models stay, whatever share of the others they take in."""
    from clusterfl.methods.awcfl import mix
    from clusterfl.tree import flat

    alive = state.assign.unique()
    beta = run.config.get("method", {}).get("beta")
    if len(alive) < 2 or beta is None:
        return []
    shares = np.linspace(0.0, 1.0, 41)

    def apart(share: float) -> float:
        models = flat(mix(state.base.centers, alive, float(share)))[alive]
        return float((models - models.mean(dim=0)).norm(dim=1).mean())

    distance = np.array([apart(s) for s in shares])
    here = Curve(
        f"this run, beta = {beta:g}", np.array([beta, beta]), np.array([0.0, float(distance.max())]), 3, dashed=True
    )
    drawing = curves(
        [Curve("distance to their mean", shares, distance, 0, strong=True), here],
        title="beta",
        x_name="beta",
        x_unit="number",
        unit="number",
        zero=True,
    )
    same = (len(alive) - 1) / len(alive)
    return [
        Figure(
            "What beta does",
            drawing,
            f"Mean distance of the mixed models to their mean; at beta = {same:.3g} all coincide.",
        )
    ]


def _between(run: Run, chosen: np.ndarray, matrix: np.ndarray, *, both: bool, groups: np.ndarray | None = None) -> Any:
    of = run.last[chosen] if groups is None else groups
    small = len(chosen) <= 40
    names = [run.names[i] for i in chosen] if small else []
    ends = [int(i) for i in np.flatnonzero(np.diff(of)) + 1]
    return heat_map(
        matrix,
        title="clients and clients",
        rows=names,
        columns=[],
        unit="number",
        palette="both" if both else "rising",
        cuts=ends,
        cell=min(430 / len(chosen), 30.0) if small else None,
        x_name="clients",
    )
