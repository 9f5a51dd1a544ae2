"""Clients that were never in training get a cluster, a model and an accuracy from a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from clusterfl.cli import app


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "r"
    done = CliRunner().invoke(app, ["run", "--out", str(folder), "--set", "rounds=6", "--quiet"])
    assert done.exit_code == 0, done.output
    return folder


def test_the_runs_own_unseen_clients(run: Path) -> None:
    found = CliRunner().invoke(app, ["admit", str(run), "--json"])
    assert found.exit_code == 0, found.output
    got = json.loads(found.stdout)
    summary = json.loads((run / "summary.json").read_text())
    assert {str(c["client"]): c["cluster"] for c in got["clients"]} == summary["unseen_assignments"]
    assert got["accuracy_mean"] == pytest.approx(summary["unseen_accuracy"])


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
    found = CliRunner().invoke(app, ["admit", str(run), "--data", f"folder:{new}", "--out", str(out), "--json"])
    assert found.exit_code == 0, found.output
    got = json.loads(found.stdout)
    assert len({c["cluster"] for c in got["clients"]}) == 4, "four rotations, four clusters"
    assert got["accuracy_mean"] > 0.7
    assert load_file(out / "client-0.safetensors").keys() == {"head.weight", "head.bias"}


def test_a_run_without_unseen_clients_says_what_to_do(run: Path, tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["admit", str(tmp_path)])
    assert missing.exit_code == 2 and "config.toml" in missing.stderr
