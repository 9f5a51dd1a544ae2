"""Clients that were never in training get a cluster, a model and an accuracy from a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import clusterfl
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.runs.admission import admit_clients
from clusterfl.runs.checkpoint import CheckpointError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "r"
    clusterfl.run(Config.load(None, ["rounds=6"]), out=folder)
    return folder


def test_the_runs_own_unseen_clients(run: Path) -> None:
    got = admit_clients(run, None, None)
    summary = json.loads((run / "summary.json").read_text())
    assert {str(c["client"]): c["cluster"] for c in got["clients"]} == summary["unseen_assignments"]
    assert got["accuracy_mean"] == pytest.approx(summary["unseen_accuracy"]) and got["round"] == 6


def test_new_clients_from_files_join_the_cluster_of_their_rotation(run: Path, tmp_path: Path) -> None:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16 * 255
    new = tmp_path / "new"
    new.mkdir()
    for turns in range(4):
        part = slice(80 * turns, 80 * turns + 80)
        turned = np.rot90(images[part], turns, axes=(1, 2))[:, None].round().astype(np.uint8)
        np.savez(new / f"{turns}.npz", x=turned, y=labels[part])
    out = tmp_path / "models"
    got = admit_clients(run, f"folder:{new}", out)
    assert len({c["cluster"] for c in got["clients"]}) == 4, "four rotations, four clusters"
    assert got["accuracy_mean"] > 0.7
    assert load_file(out / "client-0.safetensors").keys() == {"head.weight", "head.bias"}


def test_what_cannot_be_admitted_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"should be the folder of a run, with a config\.toml"):
        admit_clients(tmp_path, None, None)
    small = ["rounds=1", "data.clients=4", "data.samples=10", "engine.name=serial", "data.unseen=0"]
    clusterfl.run(Config.load(None, small), out=tmp_path / "none")
    with pytest.raises(ConfigError, match="the run has no unseen clients; name new ones with --data"):
        admit_clients(tmp_path / "none", None, None)
    clusterfl.run(Config.load(None, [*small, "checkpoint.every=0"]), out=tmp_path / "unsaved")
    with pytest.raises(CheckpointError, match="should hold a checkpoint"):
        admit_clients(tmp_path / "unsaved", None, None)
