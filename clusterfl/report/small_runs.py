"""The papers' figures that are drawn from a small run of their own, or from the data.

As in :mod:`clusterfl.report.figures`, every function takes results (those of the figure's cells, if it has any), the
config of the figure, and where to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.data.shift import even_angles
from clusterfl.report.figures import DPI, Result, figure_of
from clusterfl.runs.setup import prepare


def split_by_alpha(results: Sequence[Result], config: Config, path: Path) -> None:
    """Who holds which classes, for three values of alpha (FedDSMIC's Fig. 3)."""
    figure = figure_of(10.5, 3.6)
    for axes, alpha in zip(figure.subplots(1, 3, sharey=True), (0.05, 0.5, 1.0), strict=True):
        data = replace(config.data, alpha=alpha)
        people = config.model_copy(update={"data": data}).population()
        held = torch.stack([people.train.of(i)[1].bincount(minlength=people.classes) for i in range(people.clients)])
        for i, counts in enumerate((held / held.max()).tolist()):
            sizes = [150.0 * share for share in counts]
            axes.scatter([i] * people.classes, range(people.classes), s=sizes, color="tab:blue", alpha=0.7, lw=0)
        axes.set_title(f"alpha = {alpha:g}; largest dot: {int(held.max())} images", fontsize=10)
        axes.set_xlabel("client")
        axes.set(xlim=(-1.2, people.clients + 0.2), ylim=(-0.8, people.classes - 0.2), ylabel="class")
        axes.set_yticks(range(people.classes))
    figure.savefig(path, dpi=DPI)


def pseudo_samples(results: Sequence[Result], config: Config, path: Path) -> None:
    """Pseudo samples of every centre and class by both samplers (MD-ICFL's Fig. 7), of a small run."""
    from clusterfl.report.pseudo import draw_samples

    _, found = _searched(config, ("back-search", "generator"))
    names = [f"{how} {j}" for how, x in zip(("searched", "generated"), found, strict=True) for j in range(len(x))]
    draw_samples(torch.cat(found), path, per_class=1, names=names)


def fresh_answers(results: Sequence[Result], config: Config, path: Path) -> None:
    """Mean answers of newly trained models to the pseudo samples (MD-ICFL's Figs. 5 and 6), of a small run."""
    from clusterfl.report.pseudo import draw_outputs, fresh_outputs, homes

    method: Any = config.method
    (engine, outcome), (found,) = _searched(config, (method.sampler,))
    key = keys.fold_in(keys.key(config.seed), "fresh")
    rule = config.local.longer(4)
    answers = fresh_outputs(engine.task, outcome.population, outcome.served.index, found, rule, key, seeds=3)
    angles = config.data.angles or even_angles(outcome.population.true_clusters)
    home = homes(outcome.population, outcome.served.index)
    turned = [f"cluster {j}" + (f": {angles[home[j]]:g} degrees" if j in home else "") for j in range(len(answers))]
    draw_outputs(answers, path, names=turned)


def _searched(config: Config, samplers: Sequence[str]) -> tuple[tuple[Any, Any], list[Any]]:
    """A run of the config, and the pseudo samples of its last centres by each sampler."""
    from clusterfl.report.pseudo import pseudo_samples as searched

    with prepare(config).simulation() as simulation:
        outcome, engine, state = simulation.run(), simulation.engine, simulation.state
        methods: list[Any] = [replace(simulation.method, sampler=name) for name in samplers]  # type: ignore[type-var]
        samples = [searched(method, state, engine, keys.key(config.seed)) for method in methods]  # type: ignore[arg-type]
        return (engine, outcome), samples


def unknown_labels(results: Sequence[Result], config: Config, path: Path) -> None:
    """FCCA's B, P and S of the same clients, without UNKNOWN samples above and with them below (its Fig. 2); one scale
    of colours for both, which a tenth of the values go beyond."""
    found = [_similarity(config, alpha) for alpha in (0.0, 1.0)]
    figure = figure_of(8.6, 5.6)
    grid = figure.subplots(2, 3)
    for column, name in enumerate("BPS"):
        both = [matrices[column] for matrices, _ in found]
        most = float(torch.cat([m.flatten() for m in both]).abs().quantile(0.9))
        for axes, matrix, (_, truth) in zip(grid[:, column], both, found, strict=True):
            low, colours = (0.0, "Blues") if name == "P" else (-most, "RdBu")
            image = axes.imshow(matrix.numpy(), cmap=colours, vmin=low, vmax=most)
            for border in (truth.diff().nonzero().flatten() + 0.5).tolist():
                axes.axhline(border, color="black", lw=1.2)
                axes.axvline(border, color="black", lw=1.2)
            axes.set(title=name, xticks=[], yticks=[], xlabel="clients, by true cluster")
        figure.colorbar(image, ax=grid[:, column], shrink=0.6, extend="both")
    for axes, words in zip(grid[:, 0], ("without", "with"), strict=True):
        axes.set_ylabel(f"{words} UNKNOWN", fontsize=11)
    figure.savefig(path, dpi=DPI)


def _similarity(config: Config, alpha: float) -> tuple[Sequence[Tensor], Tensor]:
    """B, P and S at the end of a run, in the order of true clusters, and these."""
    changed = config.model_copy(update={"method": replace(config.method, alpha=alpha)})  # type: ignore[type-var]
    with prepare(changed).simulation() as simulation:
        simulation.run()
        method: Any = simulation.method
        matrices, ids = method.similarity(simulation.state)
        truth = simulation.population.truth
    assert truth is not None
    order = torch.argsort(truth[ids], stable=True)  # rows of matrices are those of ids
    return [matrix[order][:, order] for matrix in matrices.mean()], truth[ids][order]
