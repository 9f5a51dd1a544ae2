"""The mix of labels by client (as in FedDSMIC's figure 3): one dot per client and class, as large as its share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clusterfl.data.population import Population
from clusterfl.errors import DataError


def draw_labels(population: Population, path: Path, limit: int = 100) -> None:
    """Writes the picture; clients are ordered by their true cluster where it is known."""
    from matplotlib.figure import Figure

    if population.regression:
        raise DataError("a picture of labels should be asked for where targets are classes, not numbers")
    n = len(population.train)
    order = list(range(n)) if population.truth is None else np.argsort(population.truth.numpy(), kind="stable").tolist()
    order = order[:limit]
    counts = np.stack([population.train.of(i)[1].bincount(minlength=population.classes).numpy() for i in order])
    figure = Figure(figsize=(max(6.0, 0.16 * len(order) + 2), max(3.0, 0.2 * population.classes + 1.5)))
    axes = figure.add_subplot()
    client, label = np.nonzero(counts)
    sizes = counts[client, label]
    groups = np.zeros(len(order)) if population.truth is None else population.truth.numpy()[order]
    axes.scatter(client, label, s=120 * sizes / counts.max(), c=groups[client], cmap="tab10", vmin=0, vmax=9)
    axes.set_xlabel("client" + ("" if population.truth is None else ", ordered and coloured by true cluster"))
    axes.set_ylabel("class")
    axes.set_xticks(range(len(order)), [str(i) for i in order], fontsize=5, rotation=90)
    axes.set_yticks(range(population.classes))
    axes.set_title(population.name, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
