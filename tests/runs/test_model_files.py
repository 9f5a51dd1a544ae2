"""Models as files: they come back, and damaged or foreign ones are refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clusterfl.errors import DataError
from clusterfl.runs import model_files
from clusterfl.runs.model_files import load_models, load_modules, read_manifest

from .small_runs import Run, done


def test_models_come_back(ifca: Run) -> None:
    folder, config, outcome, _ = ifca
    manifest = read_manifest(folder)
    assert manifest["model"] == {"name": "mclr"} and manifest["classes"] == 10 and manifest["input_shape"] == [1, 8, 8]
    assert sorted(i for c in manifest["clusters"] for i in c["clients"]) == [f"client-0{i}" for i in range(8)]
    trees = load_models(folder)
    assert sorted(trees) == [0, 1, 2, 3]
    for k, tree in trees.items():
        assert all(torch.equal(t, outcome.served.models[n][k]) for n, t in tree.items())
    population = config.population()
    modules = load_modules(folder / "models")
    right = []
    for i in range(8):
        x, y = population.test.of(i)
        right.append(float((modules[int(outcome.served.index[i])](x).argmax(1) == y).float().mean()))
    assert np.mean(right) == pytest.approx(outcome.accuracy.mean)


def test_damaged_models_are_refused(ifca: Run, tmp_path: Path) -> None:
    for source in (ifca[0] / "models").iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    path = tmp_path / "cluster-2.safetensors"
    whole = path.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError, match=r"cluster-2.*changed or damaged"):
            load_models(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="should be there"):
        load_models(tmp_path)
    for text in ("{", "[]", "{}"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match="manifest"):
            load_models(tmp_path)
    with pytest.raises(DataError, match="manifest"):
        load_models(tmp_path / "nowhere")


def test_a_manifest_cannot_name_files_elsewhere(ifca: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    inner = tmp_path / "models"
    inner.mkdir()
    manifest = read_manifest(ifca[0])
    digest = hashlib.sha256(b"x").hexdigest()
    manifest["clusters"] = [{"cluster": 0, "file": "../secret", "sha256": digest, "clients": []}]
    (inner / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"models/secret should be there"):
        load_models(inner)


def test_writing_again_leaves_nothing_of_the_old_run(tmp_path: Path) -> None:
    done(tmp_path)
    done(tmp_path, "method.name=ifca", "method.k=2")
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == [
        "cluster-0.safetensors",
        "cluster-1.safetensors",
        "manifest.json",
    ]


def test_models_are_synced_together_before_anything_names_them(
    ifca: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was synced twice, which took an hour for a hundred thousand clients with a model each."""
    told: list[str] = []
    real = model_files.write_whole

    def writing(path: Path, data: bytes, *, sync: bool = True) -> None:
        told.append(f"{path.name} {sync}")
        real(path, data, sync=sync)

    monkeypatch.setattr(model_files, "write_whole", writing)
    monkeypatch.setattr(model_files, "sync_files", lambda _, names: told.append(" ".join(names)))
    _, config, outcome, _ = ifca
    model_files.write_models(tmp_path, config.model, config.population(), outcome)
    names = [f"cluster-{k}.safetensors" for k in range(4)]
    assert told == [*(f"{name} False" for name in names), " ".join(names), "manifest.json True"]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        p.name: p.read_bytes() for p in (ifca[0] / "models").iterdir()
    }
