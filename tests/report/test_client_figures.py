"""Figures that look into clients, drawn from tiny runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterfl.config import Config
from clusterfl.report import client_figures

TINY: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "digits", "clients": 8, "clusters": 2, "shift": "rotate", "samples": 20, "test_samples": 20},
    "model": {"name": "mlp", "widths": [8]},
    "local": {"lr": 0.1, "batch": 10},
    "method": {"name": "fesem", "k": 2},
}
GROUPS = {"split": "class_groups", "alpha": 0.5, "indicators": 1, "shift": "none", "test": "own", "samples": 40}

Draw = Callable[[Sequence[Any], Config, Path], None]


@pytest.mark.parametrize("draw", [client_figures.local_models, client_figures.images_by_cluster])
def test_models_and_images_of_clusters(draw: Draw, tmp_path: Path) -> None:
    draw([], Config.parse(TINY), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("draw", [client_figures.large_client, client_figures.small_client])
def test_features_of_a_client(draw: Draw, tmp_path: Path) -> None:
    draw([], Config.parse({**TINY, "data": {**TINY["data"], **GROUPS}}), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_principal_components_keep_distances_in_a_plane() -> None:
    x = torch.zeros(5, 7)
    x[:, 2], x[:, 4] = torch.tensor([0.0, 3.0, 6.0, -3.0, 1.0]), torch.tensor([1.0, 0.0, 2.0, 0.0, -1.0])
    found = torch.from_numpy(client_figures.principal(x))
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(x.double(), x.double()))
    again = torch.from_numpy(client_figures.principal(x))
    assert torch.equal(found, again)


def test_clients_with_few_images_take_no_part_where_there_are_others() -> None:
    data = {**TINY["data"], "split": "dirichlet", "alpha": 0.3, "test": "own"}
    population = Config.parse({**TINY, "data": {k: v for k, v in data.items() if k != "test_samples"}}).population()
    sizes = population.train.sizes
    enough = int(sizes.sort().values[3])
    kept = client_figures.large(population, enough)
    assert kept.train.sizes.tolist() == [n for n in sizes.tolist() if n >= enough] and kept.clients < population.clients
    assert client_figures.large(population, 10_000) is population
