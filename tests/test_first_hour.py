"""The same hospitals as a folder, a Parquet file and datasets: run, who is where, one new client, predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset

import clusterfl
from clusterfl.config import Config
from tests.commands.calls import call
from tests.hospitals import NAMES, hospital_table

SETTINGS = ["rounds=8", "engine.name=serial"]


class Rows(Dataset[Any]):
    """A user's own dataset: a tensor and a word per sample."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.x, self.y = torch.tensor(frame[["a", "b", "c"]].to_numpy()), frame["label"].tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, j: int) -> tuple[torch.Tensor, str]:
        return self.x[j], self.y[j]


def as_folder(frame: pd.DataFrame, place: Path) -> str:
    place.mkdir()
    for name, rows in frame.groupby("client"):
        x, y = rows[["a", "b", "c"]].to_numpy(), np.array(rows["label"].tolist())
        np.savez(place / f"{name}.npz", x=x, y=y)
    return f"folder:{place}"


def as_parquet(frame: pd.DataFrame, place: Path) -> str:
    frame.to_parquet(place.with_suffix(".parquet"))
    return f"table:{place.with_suffix('.parquet')}"


def as_datasets(frame: pd.DataFrame, class_names: Any = None) -> clusterfl.Population:
    parts = [rows for _, rows in frame.groupby("client", sort=False)]
    train, test = [Rows(p[: len(p) * 4 // 5]) for p in parts], [Rows(p[len(p) * 4 // 5 :]) for p in parts]
    names = frame["client"].unique().tolist()
    return clusterfl.Population.from_datasets(train, test, names=names, class_names=class_names)


@pytest.mark.parametrize("kind", ["folder", "parquet", "datasets"])
def test_the_hour_with(kind: str, tmp_path: Path) -> None:
    everybody, new = hospital_table(NAMES), hospital_table(["hospital-30", "hospital-31"], seed=1)
    new = new[new["label"] != "none"]
    newcomers: Any
    if kind == "datasets":
        method = clusterfl.METHODS["ifca"](k=2, local=clusterfl.SGD(lr=0.1, batch=20, epochs=2))
        clusterfl.run(as_datasets(everybody), "mclr", method, rounds=4, engine="serial", out=tmp_path / "run")
        newcomers = as_datasets(new, ["mild", "none", "severe"])
    else:
        write = as_folder if kind == "folder" else as_parquet
        source, newcomers = write(everybody, tmp_path / "all"), write(new, tmp_path / "new")
        clusterfl.run(Config.load(None, [f"data.source={source}", *SETTINGS]), out=tmp_path / "run")
    trained = clusterfl.load(tmp_path / "run")
    homes = trained.clusters
    assert list(homes) == NAMES and [homes[name] == homes[NAMES[0]] for name in NAMES] == [True, False] * 4
    found = clusterfl.admit(tmp_path / "run", newcomers)
    assert {name: c["cluster"] for name, c in found["clients"].items()} == {
        "hospital-30": homes[NAMES[0]],
        "hospital-31": homes[NAMES[1]],
    }
    assert found["accuracy_mean"] > 0.7
    x = new[["a", "b", "c"]].to_numpy()
    clusterfl.export(trained, tmp_path / "out", client=NAMES[2], format="torch")
    plain = torch.export.load(tmp_path / "out" / f"{NAMES[2]}.pt2").module()  # type: ignore[no-untyped-call]
    assert [trained.class_names[k] for k in plain(torch.tensor(x).float()).argmax(1)] == (  # type: ignore[index]
        trained.predict(NAMES[2], x).tolist()
    )


def test_what_the_command_line_cannot_rebuild_it_refuses_in_one_sentence(tmp_path: Path) -> None:
    population = as_datasets(hospital_table(NAMES))
    module = torch.nn.Linear(3, 3)
    clusterfl.run(population, module, clusterfl.METHODS["ifca"](k=2), rounds=1, engine="serial", out=tmp_path / "run")
    for words, says in (
        (["resume", "--set", "rounds=3"], "was started from Python with its own data and model; go on there"),
        (["admit"], "the clients of this run came from Python"),
        (["export", "--to", str(tmp_path / "out")], "was run with a module from Python and should be used there"),
    ):
        done = call(words[0], str(tmp_path / "run"), *words[1:])
        assert done.exit_code == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    again = clusterfl.run(
        population, module, clusterfl.METHODS["ifca"](k=2), rounds=3, engine="serial", out=tmp_path / "run", resume=True
    )
    assert again.records[-1].round == 3


def test_columns_of_words_are_coded_alike_from_run_to_prediction(tmp_path: Path) -> None:
    frame = hospital_table(NAMES)
    frame["b"] = np.where(frame["a"] > 0, "warm", "cold")
    frame.to_csv(tmp_path / "all.csv", index=False)
    given = [f"data.source=table:{tmp_path / 'all.csv'}", 'data.categorical=["b"]', *SETTINGS]
    clusterfl.run(Config.load(None, given), out=tmp_path / "run")
    new = frame[(frame["client"] == NAMES[1]) & (frame["b"] == "warm")]
    new[["label", "b", "c", "client", "a"]].to_csv(tmp_path / "new.csv", index=False)
    trained = clusterfl.load(tmp_path / "run")
    assert trained.manifest["feature_names"] == ["a", "b=cold", "b=warm", "c"]
    assert trained.manifest["categories"] == {"b": ["cold", "warm"]}
    found = clusterfl.admit(tmp_path / "run", f"table:{tmp_path / 'new.csv'}")
    assert found["clients"][NAMES[1]]["cluster"] == trained.cluster_of(NAMES[1])
    words = ["predict", str(tmp_path / "run"), "--client", NAMES[1], "--data", str(tmp_path / "new.csv"), "--json"]
    said = json.loads(call(*words).stdout)["predictions"]
    coded = np.stack([new["a"], np.zeros(len(new)), np.ones(len(new)), new["c"]], 1)
    assert said == trained.predict(NAMES[1], coded).tolist()
    new.assign(b="wram").to_csv(tmp_path / "new.csv", index=False)
    for command in (words, ["admit", str(tmp_path / "run"), "--data", f"table:{tmp_path / 'new.csv'}"]):
        done = call(*command)
        assert (
            done.exit_code == 2
            and "row 1: the category 'wram' should be a known one; did you mean 'warm'" in done.stderr
        )
