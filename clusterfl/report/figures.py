"""The papers' figures, from results of ``clusterfl reproduce`` or from a small run of their own.

Every function takes the results that a figure shows (row, setting, seed, metrics and curves of each), the config of the
figure, and where to write.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterfl.config import Config
from clusterfl.errors import ClusterflError

Result = Mapping[str, Any]
DPI = 90  # small files: they are kept with the sources


def accuracy_curves(results: Sequence[Result], config: Config, path: Path) -> None:
    """Mean accuracy over rounds, a line for each row and a panel for each setting."""
    _curves(results, "curve", "accuracy", path)


def inter_curves(results: Sequence[Result], config: Config, path: Path) -> None:
    """Accuracy of cluster models on the other clusters, round by round (AWCFL's Figs. 5-8)."""
    _curves(results, "inter_curve", "inter-cluster accuracy", path)


def by_setting(results: Sequence[Result], config: Config, path: Path) -> None:
    """The first figure of every row by setting, mean over seeds."""
    figure = figure_of(6.4, 3.6)
    axes = figure.add_subplot()
    settings = list(dict.fromkeys(r["setting"] for r in results))
    for row, mine in _by(results, "row"):
        points = [(s, _mean(r["metrics"]["accuracy_top5_weighted"] for r in rs)) for s, rs in _by(mine, "setting")]
        axes.plot([settings.index(s) for s, _ in points], [100 * v for _, v in points], marker="o", label=row)
    axes.set_xticks(range(len(settings)), settings)
    axes.set(ylabel="accuracy, best 5 rounds, by size")
    _save(figure, axes, path)


def by_clusters(results: Sequence[Result], config: Config, path: Path) -> None:
    """Accuracy before and after personalisation by the number of clusters asked for (FCCA's Fig. 3)."""
    figure = figure_of(6.4, 3.6)
    axes = figure.add_subplot()
    settings = _by(results, "setting")
    for metric, label in (("global_weighted", "global"), ("accuracy_mean", "personalised")):
        values = [100 * _mean(r["metrics"][metric] for r in runs) for _, runs in settings]
        axes.plot(range(len(settings)), values, marker="o", label=label)
    axes.set_xticks(range(len(settings)), [name for name, _ in settings])
    axes.set(ylabel="accuracy")
    _save(figure, axes, path)


def megabytes(results: Sequence[Result], config: Config, path: Path) -> None:
    """Metered traffic of whole runs (FedDSMIC's Fig. 5)."""
    figure = figure_of(5.6, 3.2)
    axes = figure.add_subplot()
    rows = list(_by(results, "row"))
    for offset, way in ((-0.2, "bytes_down"), (0.2, "bytes_up")):
        values = [_mean(r["metrics"][way] for r in mine) / 1e6 for _, mine in rows]
        axes.bar([j + offset for j in range(len(rows))], values, 0.38, label=f"MB {way.removeprefix('bytes_')}")
    axes.set_xticks(range(len(rows)), [row for row, _ in rows])
    _save(figure, axes, path)


def split_by_alpha(results: Sequence[Result], config: Config, path: Path) -> None:
    """Who holds which classes, for three values of alpha (FedDSMIC's Fig. 3)."""
    figure = figure_of(10.5, 3.2)
    for axes, alpha in zip(figure.subplots(1, 3, sharey=True), (0.05, 0.5, 1.0), strict=True):
        data = replace(config.data, alpha=alpha)
        people = config.model_copy(update={"data": data}).population()
        for i in range(people.clients):
            held = people.train.of(i)[1].bincount(minlength=people.classes)
            axes.scatter([i] * people.classes, range(people.classes), s=(held / 12.0).tolist(), color="tab:blue")
        axes.set(title=f"alpha = {alpha:g}", xlabel="client")
        axes.set_yticks(range(people.classes))
    figure.savefig(path, dpi=DPI)


def pseudo_samples(results: Sequence[Result], config: Config, path: Path) -> None:
    """Pseudo samples of every centre and class by both samplers (MD-ICFL's Fig. 7), of a small run."""
    import torch

    from clusterfl.report.pseudo import draw_samples

    _, found = _searched(config, ("back-search", "generator"))
    names = [f"{how} {j}" for how, x in zip(("searched", "generated"), found, strict=True) for j in range(len(x))]
    draw_samples(torch.cat(found), path, per_class=1, names=names)


def fresh_answers(results: Sequence[Result], config: Config, path: Path) -> None:
    """Mean answers of newly trained models to the pseudo samples (MD-ICFL's Figs. 5 and 6), of a small run."""
    from clusterfl import keys
    from clusterfl.report.pseudo import draw_outputs, fresh_outputs

    method: Any = config.method
    (engine, outcome), (found,) = _searched(config, (method.sampler,))
    key = keys.fold_in(keys.key(config.seed), "fresh")
    rule = config.local.longer(4)
    answers = fresh_outputs(engine.task, outcome.population, outcome.served.index, found, rule, key, seeds=3)
    draw_outputs(answers, path)


def _searched(config: Config, samplers: Sequence[str]) -> tuple[tuple[Any, Any], list[Any]]:
    """A run of the config, and the pseudo samples of its last centres by each sampler."""
    from clusterfl import keys
    from clusterfl.report.pseudo import pseudo_samples as searched
    from clusterfl.runs.setup import prepare

    with prepare(config).simulation() as simulation:
        outcome, engine, state = simulation.run(), simulation.engine, simulation.state
        methods: list[Any] = [replace(simulation.method, sampler=name) for name in samplers]  # type: ignore[type-var]
        samples = [searched(method, state, engine, keys.key(config.seed)) for method in methods]  # type: ignore[arg-type]
        return (engine, outcome), samples


def unknown_labels(results: Sequence[Result], config: Config, path: Path) -> None:
    """FCCA's B, P and S of the same clients, without UNKNOWN samples above and with them below (its Fig. 2)."""
    import torch

    from clusterfl.runs.setup import prepare

    figure = figure_of(9.6, 6.4)
    grid = figure.subplots(2, 3)
    for line, alpha in zip(grid, (0.0, 1.0), strict=True):
        changed = config.model_copy(update={"method": replace(config.method, alpha=alpha)})  # type: ignore[type-var]
        with prepare(changed).simulation() as simulation:
            simulation.run()
            method: Any = simulation.method
            matrices, ids = method.similarity(simulation.state)
            truth = simulation.population.truth
        assert truth is not None
        order = ids[torch.argsort(truth[ids], stable=True)]
        for axes, name, matrix in zip(line, "BPS", matrices.mean(), strict=True):
            image = axes.imshow(matrix[order][:, order].numpy(), cmap="viridis")
            axes.set(title=f"{name}, {'with' if alpha else 'without'} UNKNOWN", xticks=[], yticks=[])
            figure.colorbar(image, ax=axes, shrink=0.8)
    figure.savefig(path, dpi=DPI)


def _curves(results: Sequence[Result], name: str, label: str, path: Path) -> None:
    """Lines over rounds of what results keep by that name, mean over seeds."""
    results = [r for r in results if r.get(name)]
    if not results:
        raise ClusterflError(f"{path.name}: no result holds a {name} yet")
    settings = list(_by(results, "setting"))
    figure = figure_of(0.8 + 4.6 * len(settings), 3.4)
    for axes, (setting, mine) in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        for row, runs in _by(mine, "row"):
            rounds = [t for t, _ in runs[0][name]]
            lines = [dict(map(tuple, r[name])) for r in runs]
            shown = [t for t in rounds if all(t in line for line in lines)]
            axes.plot(shown, [100 * _mean(line[t] for line in lines) for t in shown], label=row)
        axes.set(title=setting, xlabel="round", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=DPI)


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


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=DPI)
