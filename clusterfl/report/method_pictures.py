"""What a method alone can show, out of the state in the run's newest checkpoint."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from clusterfl.report.clusters import by_client_order
from clusterfl.report.heat import heat_map, side_by_side
from clusterfl.report.lines import Curve, curves
from clusterfl.report.parts import Figure
from clusterfl.report.runs import Run
from clusterfl.report.samples import sheet
from clusterfl.report.svg import Html
from clusterfl.report.trees import Cut, split_tree

log = logging.getLogger(__name__)

DRAWN = 200  # clients in a matrix of clients and clients


def method_figures(run: Run) -> list[Figure]:
    """Empty where the method has no picture of its own, or the run keeps no checkpoints."""
    from clusterfl.methods.awcfl import Mixed
    from clusterfl.methods.cfl import CFLState
    from clusterfl.methods.fcca import FCCAState
    from clusterfl.methods.fedfomo import Federation
    from clusterfl.methods.kin import KinState

    figures = pseudo(run)
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
        elif isinstance(state, KinState):
            figures += kin(run, state)
        state = getattr(state, "base", None)  # a method around another has its pictures too
    return figures


def pseudo(run: Run) -> list[Figure]:
    """MD-ICFL's pseudo samples, where the run wrote them."""
    from clusterfl.report.pseudo import load_samples
    from clusterfl.runs.details import PSEUDO

    path = run.folder / PSEUDO
    if not path.exists():
        return []
    x = load_samples(path).numpy()  # [K, C, M, (channels,) height, width]
    x = x if x.ndim == 5 else x[:, :, :, 0] if x.shape[3] == 1 else np.moveaxis(x, 3, -1)
    names = run.classes or [str(c) for c in range(x.shape[1])]
    drawing = sheet(x, [f"cluster {j}" for j in range(len(x))], names, title="pseudo samples")
    note = "What each cluster's model takes for each class: inputs that the server found by itself, each stretched."
    return [Figure("Pseudo samples", drawing, note, wide=True)]


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
    drawings = []
    for name, what, matrix in zip(("B", "P", "S"), ("mean cosine", "confidence", "B · P"), matrices, strict=True):
        drawings.append((f"{name}: {what}", _between(run, chosen, matrix.numpy(), both=name != "P", width=380.0)))
    note = "Clients that have trained a flow, ordered by cluster; a mean over labels. Blue is above 0, red below." + cut
    drawing = side_by_side(drawings, title="B, P and S", columns=3)
    return [Figure("How alike the clients' flows are", drawing, note, wide=True)]


def fedfomo(run: Run, state: Any) -> list[Figure]:
    truth = run.truth if run.truth is not None else np.zeros(len(run.names), dtype=int)
    order = np.argsort(truth, kind="stable")[:: max(1, -(-len(truth) // DRAWN))]
    weights = np.stack([state.useful(int(i)).numpy()[order] for i in order])
    np.fill_diagonal(weights, np.nan)
    drawing = _between(run, order, weights, both=True, groups=truth[order])
    cut = "" if len(order) == len(truth) else f" {len(order)} of {len(truth):,} clients are drawn."
    by = ", ordered by true group" if run.truth is not None else ""
    note = f"Row: who judges; column: whose model. Sums of the weights over rounds{by}; blue helps, red hurts." + cut
    return [Figure("Whose models help whom", drawing, note)]


SURE = 50.0  # a log Bayes factor of more is not told from this one


def kin(run: Run, state: Any) -> list[Figure]:
    """The evidence by which clients were grouped, between each two of them."""
    import torch

    from clusterfl.parts.describe import summaries
    from clusterfl.parts.evidence import evidence
    from clusterfl.parts.spreads import measured

    chosen, cut = by_client_order(run, DRAWN)
    chosen = chosen[state.known.numpy()[chosen]]
    if len(chosen) < 2:
        return []
    labels = run.config.get("method", {}).get("by") == "concept+labels"
    ids = torch.as_tensor(chosen)
    s, _ = summaries(
        state.counts[ids], state.means[ids], state.blur[ids], state.scatter, float(state.freedom), labels=labels
    )
    found = measured(s, state.assign[ids].unique(return_inverse=True)[1])
    turned = found.turned(s)
    table = evidence(turned, turned, found.spread).clamp(-SURE, SURE).numpy()
    np.fill_diagonal(table, np.nan)
    note = (
        "Log Bayes factor of one group against two, out of what clients said about their classes; blue speaks for one "
        f"group, red for two, and beyond ±{SURE:g} nothing is told apart. Clients are ordered by group." + cut
    )
    return [Figure("The evidence between clients", _between(run, chosen, table, both=True), note)]


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


def _between(
    run: Run,
    chosen: np.ndarray,
    matrix: np.ndarray,
    *,
    both: bool,
    groups: np.ndarray | None = None,
    width: float = 560.0,
) -> Html:
    of = run.last[chosen] if groups is None else groups
    small = len(chosen) <= 40
    return heat_map(
        matrix,
        title="clients and clients",
        rows=[run.names[i] for i in chosen] if small else [],
        columns=[],
        unit="number",
        palette="both" if both else "rising",
        cuts=[int(i) for i in np.flatnonzero(np.diff(of)) + 1],
        width=width,
        cell=min(0.77 * width / len(chosen), 30.0) if small else None,
        x_name="clients",
    )
