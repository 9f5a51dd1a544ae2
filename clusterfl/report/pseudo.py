"""MD-ICFL's pseudo samples: saved, drawn (its Fig. 7), and put to models that never saw a cluster's centre (Figs. 5-6).

>>> x = pseudo_samples(method, state, engine, keys.key(0))
>>> draw_samples(x, "samples.png")
>>> draw_outputs(fresh_outputs(engine.task, population, state.assign, x, SGD(epochs=20), keys.key(1)), "outputs.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines.base import BaseEngine
from clusterfl.engines.serial import Serial
from clusterfl.errors import ClusterflError
from clusterfl.keys import Key
from clusterfl.methods.md_icfl import MDICFL, MDState
from clusterfl.parts.distances import outputs
from clusterfl.parts.local import SGD, Train
from clusterfl.task import Task
from clusterfl.tree import row


def pseudo_samples(method: MDICFL, state: MDState, engine: BaseEngine, key: Key) -> Tensor:
    """Pseudo samples ``[K, C, M, *shape]`` of a state's centres, as its next round would make them."""
    return method.pseudo(state, engine.cohort(torch.arange(engine.clients), key)).x


def save_samples(x: Tensor, path: str | Path) -> Path:
    save_file({"x": x.contiguous()}, str(path))
    return Path(path)


def load_samples(path: str | Path) -> Tensor:
    return load_file(str(path))["x"]


def fresh_outputs(
    task: Task, population: Population, assign: Tensor, x: Tensor, rule: SGD, key: Key, seeds: int = 5
) -> Tensor:
    """``[K, C, C]``: entry (j, q, y) is the mean probability of class q on centre j's pseudo samples of class y,
    given by fresh models that were trained on all data of j's true cluster alone.

    ``j``'s true cluster is the one that most of its clients come from. A matrix with a strong diagonal says
    that the samples mean to others what they mean to the centre. A cluster without clients is left at 0.
    """
    found, train = homes(population, assign), population.train
    assert population.truth is not None
    members = [(population.truth[: population.clients] == t).nonzero().flatten().tolist() for t in found.values()]
    pooled = [torch.cat([train.rows_of(i) for i in of_one]) for of_one in members]
    shards = Shards.from_rows(train.x, train.y, [rows.unique() for rows in pooled])
    engine = Serial(task, Population(shards, shards, len(pooled), population.classes))
    total = torch.zeros(x.shape[0], population.classes, population.classes)
    for seed in range(seeds):
        start = task.init(keys.fold_in(key, "fresh", seed))
        cohort = engine.cohort(torch.arange(len(pooled)), keys.fold_in(key, "train", seed))
        fresh = cohort.run(Train(rule).train, {"theta": start})["theta"]
        with torch.no_grad():
            for i, j in enumerate(found):
                total[j] += outputs(task, row(fresh, i), x[j], 2).mean(dim=1).T / seeds
    return total


def homes(population: Population, assign: Tensor) -> dict[int, int]:
    """The true cluster that most clients of each cluster come from; of clusters that have clients."""
    if population.truth is None:
        raise ClusterflError("truth=None should be known to train a model of each true cluster")
    truth = population.truth[: population.clients]
    return {j: int(truth[assign == j].mode().values) for j in assign.unique().tolist()}


def draw_samples(
    x: Tensor, path: str | Path, *, per_class: int = 2, title: str = "", names: Sequence[str] = ()
) -> Path:
    """Writes a PNG with a column for each class and ``per_class`` rows for each cluster, which ``names`` may call."""
    k, classes, m = x.shape[:3]
    shown = min(per_class, m)
    figure = _figure(0.6 * classes + 1.0, 0.6 * k * shown + 0.7)
    if title:
        figure.suptitle(title)
    grid = figure.subplots(k * shown, classes, squeeze=False)
    for j in range(k):
        for i in range(shown):
            for y in range(classes):
                axes = grid[j * shown + i, y]
                axes.imshow(_picture(x[j, y, i]), cmap="Greys", vmin=0.0, vmax=1.0)
                axes.set(xticks=[], yticks=[])
                if j == i == 0:
                    axes.set_title(f"{y}", fontsize=8)
            if i == 0:
                grid[j * shown, 0].set_ylabel(names[j] if names else f"cluster {j}", fontsize=7)
    return _save(figure, path)


def draw_outputs(matrices: Tensor, path: str | Path, *, title: str = "", names: Sequence[str] = ()) -> Path:
    """Writes a PNG of :func:`fresh_outputs`, one matrix for each cluster, which ``names`` may call."""
    k = matrices.shape[0]
    figure = _figure(2.6 * k + 0.9, 3.0)
    if title:
        figure.suptitle(title)
    row_of_axes = figure.subplots(1, k, squeeze=False)[0]
    for j, axes in enumerate(row_of_axes):
        image = axes.imshow(matrices[j].numpy(), cmap="viridis", vmin=0.0, vmax=1.0)
        axes.set(xlabel="label of the samples", ylabel="answer of new models" if j == 0 else "")
        axes.set_title(names[j] if names else f"cluster {j}", fontsize=9)
        places = range(0, matrices.shape[1], max(1, matrices.shape[1] // 10))
        axes.set_xticks(places)
        axes.set_yticks(places)
    figure.colorbar(image, ax=row_of_axes, shrink=0.8, label="mean probability")
    return _save(figure, path)


def _picture(sample: Tensor) -> Any:
    """A sample as matplotlib takes it, stretched to 0..1: pseudo samples do not keep to the range of pixels."""
    if sample.dim() == 3 and sample.shape[0] in (1, 3):
        sample = sample[0] if sample.shape[0] == 1 else sample.permute(1, 2, 0)
    elif sample.dim() != 2:
        raise ClusterflError(f"shape={tuple(sample.shape)} should be an image to be drawn")
    low, high = sample.min(), sample.max()
    return ((sample - low) / (high - low).clamp(min=1e-12)).numpy()


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ClusterflError("matplotlib should be installed for figures: pip install 'clusterfl[report]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str | Path) -> Path:
    figure.savefig(Path(path), dpi=150, format="png")
    return Path(path)
