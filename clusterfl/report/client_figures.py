"""The papers' figures that look into clients: their local models, their images, their features.

As in :mod:`clusterfl.report.figures`, every function takes results (none here), the config of the figure's own small
run, and where to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.evaluate.served import personal_models
from clusterfl.loop import Simulation
from clusterfl.parts.local import Train
from clusterfl.report.figures import DPI, Result, figure_of
from clusterfl.runs.setup import prepare
from clusterfl.tree import flat, row, take

METHODS: tuple[dict[str, Any], ...] = (
    {"name": "local"},
    {"name": "fedavg"},
    {"name": "feddsmic", "k": 3, "warmup": 5},
)  # of FedDSMIC's Figs. 9 and 10


def local_models(results: Sequence[Result], config: Config, path: Path) -> None:
    """Clients' models after one more local round, by their first two principal components (FeSEM's Fig. 4)."""
    with _ended(config) as simulation:
        engine, served = simulation.engine, simulation.method.serve(simulation.state, simulation.ids)
        cohort = engine.cohort(simulation.ids, keys.fold_in(keys.key(config.seed), "figure"))
        got = cohort.run(Train(config.local).train, theta=take(served.models, served.index))
        points = principal(flat(got["theta"], engine.task.params))
        assign = served.index[got.ids]
    figure = figure_of(5.2, 4.0)
    axes = figure.add_subplot()
    for k in assign.unique().tolist():
        mine = points[assign == k]
        axes.scatter(mine[:, 0], mine[:, 1], s=14, label=f"cluster {k}, {len(mine)} clients")
    axes.set(xlabel="first component", ylabel="second component")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=DPI)


def images_by_cluster(results: Sequence[Result], config: Config, path: Path) -> None:
    """Images of three clients of each cluster, the ones nearest to their centre (FeSEM's Fig. 5).

    Clients with few images take no part, where there are others: few steps hardly move a model, and they would be a
    cluster of their own.
    """
    with _ended(config, large(config.population(), ENOUGH)) as simulation:
        population, state = simulation.population, simulation.state
        served = simulation.method.serve(state, simulation.ids)
        cohort = simulation.engine.cohort(simulation.ids, keys.fold_in(keys.key(config.seed), "figure"))
        got = cohort.run(Train(config.local).train, theta=take(served.models, served.index))
        moved = flat(got["theta"]) - flat(take(served.models, served.index[got.ids]))
    far, assign = moved.norm(dim=1), served.index[got.ids]
    chosen = [i for k in assign.unique().tolist() for i in _nearest(far, assign == k, 3)]
    shown = [population.train.of(int(got.ids[i]))[0][:16] for i in chosen]
    figure = figure_of(8.4, 0.62 * len(shown))
    for axes, images, i in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, chosen, strict=True):
        axes.imshow(torch.cat(list(images[:, 0]), dim=1).numpy(), cmap="gray")
        axes.set(xticks=[], yticks=[])
        members = int((assign == assign[i]).sum())
        name = f"cluster {int(assign[i])} of {members} writers\n{population.train.sizes[got.ids[i]]} images"
        axes.set_ylabel(name, fontsize=6, rotation=0, ha="right", va="center")
    figure.savefig(path, dpi=DPI)


ENOUGH = 100  # images of a client


def large(population: Population, enough: int) -> Population:
    """The clients with so many training samples; everybody if there are none."""
    keep = (population.train.sizes[: population.clients] >= enough).nonzero().flatten().tolist()
    train, test = ([shards.of(i) for i in keep] for shards in (population.train, population.test))
    return Population.from_arrays(train, test, classes=population.classes) if keep else population


def large_client(results: Sequence[Result], config: Config, path: Path) -> None:
    """Features of the client with most samples, by t-SNE, under three methods (FedDSMIC's Fig. 9)."""
    _features(config, path, largest=True)


def small_client(results: Sequence[Result], config: Config, path: Path) -> None:
    """The same of the smallest client with samples enough for a picture (FedDSMIC's Fig. 10)."""
    _features(config, path, largest=False)


def _features(config: Config, path: Path, *, largest: bool, enough: int = 60) -> None:
    figure = figure_of(12.2, 4.0)
    grid = figure.subplots(1, len(METHODS))
    for axes, method in zip(grid, METHODS, strict=True):
        with _ended(Config.parse({**config.table(), "method": method})) as simulation:
            engine, population = simulation.engine, simulation.population
            sizes = population.train.sizes[: population.clients]
            who = sizes.argmax() if largest else torch.where(sizes >= enough, sizes, sizes.max() + 1).argmin()
            ids = who.reshape(1)
            served = simulation.method.serve(simulation.state, ids)
            key = keys.fold_in(keys.key(config.seed), "figure")
            _, models = next(personal_models(engine, simulation.method, served, ids, key, simulation.round))
            x, y = population.train.of(int(who))
            with torch.no_grad():
                features, answers = (f(row(models, 0), x) for f in (engine.task.features, engine.task.logits))
        points = neighbours(features, config.seed)
        for c in y.unique().tolist():
            axes.scatter(points[y == c, 0], points[y == c, 1], s=9, color=f"C{c}", label=str(c))
        right = float((answers.argmax(dim=1) == y).double().mean())
        axes.set(title=f"{method['name']}: {100 * right:.0f} % of {len(y)} right", xticks=[], yticks=[])
    named = {text: dot for axes in grid for dot, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside right upper", fontsize=7, title="class", markerscale=2)
    figure.savefig(path, dpi=DPI)


def principal(x: Tensor) -> Any:
    """The first two principal components ``[n, 2]``, their signs such that the largest weight of each is positive."""
    u, s, v = torch.linalg.svd((x - x.mean(dim=0)).double(), full_matrices=False)
    signs = torch.stack([row[row.abs().argmax()].sign() for row in v[:2]])
    return (u[:, :2] * s[:2] * signs).numpy()


def neighbours(x: Tensor, seed: int) -> Any:
    """t-SNE ``[n, 2]``."""
    from sklearn.manifold import TSNE

    values = np.ascontiguousarray(x.double().numpy())
    return TSNE(2, perplexity=min(30.0, (len(values) - 1) / 3), init="pca", random_state=seed).fit_transform(values)


def _nearest(far: Tensor, members: Tensor, n: int) -> list[int]:
    places = members.nonzero().flatten()
    return [int(i) for i in places[far[places].argsort()][:n]]


@contextmanager
def _ended(config: Config, population: Population | None = None) -> Iterator[Simulation]:
    """A run of the config, at its end; on these clients, if they are given."""
    with prepare(replace_engine(config), population).simulation() as simulation:
        simulation.run()
        yield simulation


def replace_engine(config: Config) -> Config:
    """One process: a figure's run is small."""
    return config.model_copy(update={"engine": replace(config.engine, name="serial")})
