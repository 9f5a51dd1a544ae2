"""A finished run is used: predictions of the model that each client really has, personal ones included."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import clusterfl
from clusterfl.config import Config
from clusterfl.errors import ConfigError, DataError
from clusterfl.methods import FedPer
from clusterfl.runs.model_files import file_name
from clusterfl.testing.small import CLASSES, WIDTH, small_population
from tests.hospitals import NAMES, hospital_run
from tests.runs.python_runs import LOCAL, module, run

PERSONAL = {
    "local": [],
    "fedavg-ft": [],
    "fedper": ["model.name=mlp", "model.widths=[8]"],
    "fedfomo": ["method.models=3"],
    "per-fedavg": [],
    "feddsmic": ["data.indicators=5"],
    "fcca": ["model.name=mlp", "model.widths=[8]", "method.per=true"],
    "ifca": ["method.k=2"],
}


@pytest.mark.parametrize("name", PERSONAL)
def test_predictions_are_what_the_run_measured(name: str, tmp_path: Path) -> None:
    folder = hospital_run(tmp_path, f"method.name={name}", *PERSONAL[name], "rounds=2")
    trained, population = clusterfl.load(folder), Config.load(folder / "config.toml").population()
    summary = json.loads((folder / "summary.json").read_text())
    models = []
    for i, client in enumerate(NAMES):
        x, y = population.test.of(i)
        words = np.array(trained.class_names)[y.numpy()]
        assert float((trained.predict(client, x) == words).mean()) == pytest.approx(
            summary["per_client"][client]["accuracy"]
        )
        models.append(torch.cat([t.flatten() for _, t in sorted(trained.tree(client).items())]))
    assert len({tuple(m.tolist()) for m in models}) == (2 if name == "ifca" else 8)
    assert clusterfl.load(folder).predict(NAMES[0], x[0]).shape == (1,)  # one sample alone


def test_pixels_are_scaled_as_the_runs_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "clients").mkdir()
    for i in range(3):
        x = rng.integers(0, 255, (20, 6, 6), dtype=np.uint8)
        np.savez(tmp_path / "clients" / f"c{i}.npz", x=x, y=np.arange(20) % 2)
    settings = [f"data.source=folder:{tmp_path / 'clients'}", "method.name=fedavg", "rounds=1", "engine.name=serial"]
    clusterfl.run(Config.load(None, settings), out=tmp_path / "run")
    trained = clusterfl.load(tmp_path / "run")
    ready = torch.from_numpy(x).float().unsqueeze(1) / 255 * 2 - 1
    torch.testing.assert_close(trained.outputs("c1", x), trained.outputs("c1", ready))
    torch.testing.assert_close(trained.outputs("c1", x[0]), trained.outputs("c1", ready)[:1])
    assert trained.predict("c1", x).dtype == np.int64  # classes are numbers here


def test_numbers_are_predicted_and_admitted_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = np.repeat([f"city-{i}" for i in range(6)], 40)
    x, turn = rng.normal(size=(240, 2)), np.repeat(np.arange(6) % 2 * 2 - 1, 40)
    frame = pd.DataFrame({"client": names, "area": x[:, 0], "age": x[:, 1], "label": turn * x[:, 0] + 0.5})
    frame[names != "city-5"].to_csv(tmp_path / "t.csv", index=False)
    frame[names == "city-5"].to_csv(tmp_path / "new.csv", index=False)
    settings = [f"data.source=table:{tmp_path / 't.csv'}", "task.loss=mse", "rounds=6", "engine.name=serial"]
    outcome = clusterfl.run(Config.load(None, [*settings, "method.name=ifca", "method.k=2"]), out=tmp_path / "run")
    assert "rmse 0.0" in repr(outcome) and "targets that are numbers" in repr(outcome.population)
    trained = clusterfl.load(tmp_path / "run")
    assert trained.predict("city-0", x).shape == (240,)
    assert np.abs(trained.predict("city-0", x) - (-x[:, 0] + 0.5)).max() < 0.5
    found = clusterfl.admit(tmp_path / "run", f"table:{tmp_path / 'new.csv'}")
    assert found["clients"]["city-5"]["cluster"] == trained.cluster_of("city-1") and found["rmse_mean"] < 0.3
    clusterfl.export(trained, tmp_path / "out", client="city-1")
    with pytest.raises(ConfigError, match="probabilities are of classes"):
        trained.probabilities("city-0", x)


def test_a_module_and_clients_from_python_are_asked_for(tmp_path: Path) -> None:
    outcome = run(tmp_path, FedPer(local=LOCAL))
    with pytest.raises(ConfigError, match=r"run with a module from Python and should be used there"):
        clusterfl.load(tmp_path)
    other = nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, CLASSES))
    with pytest.raises(ConfigError, match="model=Sequential should be the module that"):
        clusterfl.load(tmp_path, model=other)
    x, y = outcome.population.test.of(3)
    with pytest.raises(ConfigError, match="its personal models need population="):
        clusterfl.load(tmp_path, model=module()).predict("client-03", x)
    with pytest.raises(DataError, match=r"data should be what .* was trained on"):
        clusterfl.load(tmp_path, model=module(), population=small_population(seed=1)).predict("client-03", x)
    trained = clusterfl.load(tmp_path, model=module(), population=outcome.population)
    right = float((torch.from_numpy(trained.predict("client-03", x)) == y).double().mean())
    assert right == pytest.approx(float(outcome.records[-1].accuracy[3]))


def test_what_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="should be the folder of a run"):
        clusterfl.load(tmp_path)
    folder = hospital_run(tmp_path, "data.unseen=1", "rounds=1")
    trained = clusterfl.load(folder)
    with pytest.raises(
        ConfigError, match="client='hospital-7' should be a client of the run; did you mean 'hospital-07'"
    ):
        trained.predict("hospital-7", np.zeros((1, 3)))
    with pytest.raises(DataError, match=r"samples of shape \(4,\) should be like the run's, \(3,\)"):
        trained.predict("hospital-00", np.zeros((2, 4)))
    assert trained.predict("hospital-07", np.zeros((1, 3))).shape == (1,)  # admitted at the end
    (folder / "summary.json").unlink()
    with pytest.raises(ConfigError, match=r"should be a finished run, .*; go on with: clusterfl resume"):
        clusterfl.load(folder)


def test_files_of_clients_never_share_a_name() -> None:
    names = ["a/b", "a_b", "a:b", "..", "", "x" * 300, "Ünï-1", "hospital-07"]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names) and all("/" not in f and f not in ("", ".", "..") for f in files)
    assert files[-1] == "hospital-07" and files[1] == "a_b"
