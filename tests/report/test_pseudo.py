"""Pseudo samples of MD-ICFL: saved, drawn, and what fresh models make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from clusterfl import keys
from clusterfl.data.scenario import DataConfig, build
from clusterfl.engines import Stacked
from clusterfl.errors import ClusterflError
from clusterfl.methods.md_icfl import MDICFL
from clusterfl.parts.local import SGD
from clusterfl.report import pseudo as report
from clusterfl.task import Task
from clusterfl.testing.small import play

PNG = b"\x89PNG\r\n\x1a\n"


def test_saved_samples_come_back(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 1, 8, 8)
    assert torch.equal(report.load_samples(report.save_samples(x, tmp_path / "x.safetensors")), x)


def test_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for shape in ((1, 8, 8), (3, 8, 8), (8, 8)):
        path = report.draw_samples(torch.randn(2, 3, 4, *shape), tmp_path / "a.png", title="samples")
        assert path.read_bytes().startswith(PNG)
    path = report.draw_outputs(torch.rand(1, 3, 3), tmp_path / "b.png", title="outputs")
    assert path.read_bytes().startswith(PNG)
    with pytest.raises(ClusterflError, match=r"shape=\(6,\) should be an image"):
        report.draw_samples(torch.randn(2, 3, 4, 6), tmp_path / "c.png")


def test_fresh_models_know_the_samples() -> None:
    """Figs. 5-6: the diagonal is strong, and weak on the samples of another cluster."""
    config = DataConfig(source="digits", shift="permute_labels", clients=6, clusters=2, samples=200)
    population = build(config, keys.key(0))
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 10)
    engine = Stacked(task, population)
    method = MDICFL(k=2, local=SGD(epochs=3), samples=5, iterations=60)
    state = play(method, engine, rounds=4)
    x = report.pseudo_samples(method, state, engine, keys.key(1))
    assert x.shape == (2, 10, 5, 1, 8, 8)
    rule = SGD(epochs=10)
    at_home = report.fresh_outputs(task, population, state.assign, x, rule, keys.key(2), seeds=2)
    torch.testing.assert_close(at_home.sum(dim=1), torch.ones(2, 10))
    abroad = report.fresh_outputs(task, population, state.assign, x.flip(0), rule, keys.key(2), seeds=2)
    diagonal, other = (m.diagonal(dim1=1, dim2=2).mean(dim=1) for m in (at_home, abroad))
    assert float(diagonal.min()) > 0.6 and float(other.max()) < 0.5
