"""Clients that were never in training get a cluster, a model and an accuracy from a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import clusterfl
from clusterfl import keys
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.models import build_model
from clusterfl.runs.admission import admit_clients
from clusterfl.runs.checkpoint import CheckpointError
from clusterfl.runs.ledger import LedgerFile, charge_to
from clusterfl.task import Task
from tests.engines.wrappers.exchanges import private


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


def test_what_is_written_is_what_was_measured(tmp_path: Path) -> None:
    """Personal models in the files once were others than those whose accuracy was said."""
    for extra in ([], ["engine.clip_updates=0.05"]):
        settings = ["rounds=2", "data.clients=4", "data.clusters=2", "data.unseen=4", "data.samples=20"]
        config = Config.load(None, [*settings, "engine.name=stacked", "method.name=fedavg-ft", *extra])
        folder = tmp_path / f"run{len(extra)}"
        clusterfl.run(config, out=folder)
        got = admit_clients(folder, None, folder / "theirs")
        population = config.population()
        module = build_model(config.model.name, population.input_shape, population.classes, **config.model.params)
        task = Task(module, population.classes)
        files, ids = sorted((folder / "theirs").iterdir()), range(population.clients, len(population.train))
        for i, file, said in zip(ids, files, accuracies(got), strict=True):
            x, y = population.test.of(i)
            right = task.logits(load_file(file), x).argmax(1) == y
            assert float(right.double().mean()) == pytest.approx(said)


def accuracies(got: dict[str, Any]) -> list[float]:
    clients = got["clients"]
    return [c["accuracy"] for c in (clients.values() if isinstance(clients, dict) else clients)]


def test_admissions_under_privacy_have_fresh_noise_are_charged_and_say_so(tmp_path: Path) -> None:
    """The same noise for the same client number: what A sent minus what B sent once was free of it."""
    pytest.importorskip("dp_accounting")
    settings = ["rounds=1", "data.clients=6", "data.clusters=2", "data.unseen=2", "data.samples=20", "method.k=2"]
    settings += ["engine.name=serial", "method.name=robust-tkm", "privacy.clip=0.5", "privacy.noise_multiplier=4.0"]
    clusterfl.run(Config.load(None, settings), out=tmp_path / "r")
    spent = [admit_clients(tmp_path / "r", None, None)["privacy"] for _ in range(2)]
    assert spent[0]["uploads"] < spent[1]["uploads"] and spent[0]["epsilon"] < spent[1]["epsilon"]
    ledger = LedgerFile.open(tmp_path / "r" / "privacy.log")
    assert ledger.releases[6] == 3 and ledger.most == 3, "at the end of the run, and twice since"
    new = tmp_path / "new"
    new.mkdir()
    for name in "ab":
        np.savez(new / f"{name}.npz", x=np.zeros((8, 1, 8, 8), np.uint8), y=np.arange(8))
    first, second = (admit_clients(tmp_path / "r", f"folder:{new}", None)["privacy"] for _ in range(2))
    assert (first["uploads"], second["uploads"]) == (1, 2), "other clients, a ledger of their own"
    other = [int(charge_to(private(), tmp_path / "r" / name, keys.key(0))) for name in ("privacy.log", "new.log")]
    assert len({int(keys.key(0)), *other}) == 3, "a key of its own after every charge"
