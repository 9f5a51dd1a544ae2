"""Clients that were never in training get a cluster, a model and an accuracy from a finished run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import clusterfl
from clusterfl import keys
from clusterfl.commands.admit import line
from clusterfl.commands.run import unsure
from clusterfl.config import Config
from clusterfl.errors import ConfigError, DataError
from clusterfl.methods import Kin, RobustTKM
from clusterfl.models import build_model
from clusterfl.runs.admission import admit
from clusterfl.runs.checkpoint import CheckpointError, newest_snapshot
from clusterfl.runs.ledger import LedgerFile, charge_to
from clusterfl.task import Task
from tests.engines.wrappers.exchanges import private
from tests.hospitals import NAMES, hospital_run, hospital_table
from tests.methods.small import small_method


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "r"
    clusterfl.run(Config.load(None, ["rounds=6"]), out=folder)
    return folder


def test_the_runs_own_unseen_clients(run: Path) -> None:
    got = admit(run)
    summary = json.loads((run / "summary.json").read_text())
    assert {name: c["cluster"] for name, c in got["clients"].items()} == summary["unseen_assignments"]
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
    got = admit(run, f"folder:{new}", out=out)
    assert len({c["cluster"] for c in got["clients"].values()}) == 4, "four rotations, four clusters"
    assert got["accuracy_mean"] > 0.7
    assert load_file(out / "0.safetensors").keys() == {"head.weight", "head.bias"}


def test_what_cannot_be_admitted_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"should be the folder of a run, with a config\.toml"):
        admit(tmp_path)
    small = ["rounds=1", "data.clients=4", "data.samples=10", "engine.name=serial", "data.unseen=0"]
    clusterfl.run(Config.load(None, small), out=tmp_path / "none")
    with pytest.raises(ConfigError, match="the run has no unseen clients; name new ones with --data"):
        admit(tmp_path / "none")
    clusterfl.run(Config.load(None, [*small, "checkpoint.every=0"]), out=tmp_path / "unsaved")
    with pytest.raises(CheckpointError, match="should hold a checkpoint"):
        admit(tmp_path / "unsaved")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hospital_run(tmp_path_factory.mktemp("hospitals"))


def test_one_new_client_that_lacks_a_class_is_scored_by_the_runs_classes(hospitals: Path, tmp_path: Path) -> None:
    new = hospital_table(["hospital-31"])
    new = new[new["label"] != "none"][["c", "label", "b", "client", "a"]]  # columns in another order
    new.to_csv(tmp_path / "new.csv", index=False)
    got = admit(hospitals, f"table:{tmp_path / 'new.csv'}")
    home = json.loads((hospitals / "summary.json").read_text())["assignments"]
    assert list(got["clients"]) == ["hospital-31"]
    assert got["clients"]["hospital-31"]["cluster"] == home["hospital-00"] != home["hospital-01"]
    assert got["accuracy_mean"] > 0.8
    new.assign(label="deadly").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match=r"the class 'deadly' should be a known one; .*mild"):
        admit(hospitals, f"table:{tmp_path / 'new.csv'}")
    new.drop(columns="b").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match="a column 'b' should be there"):
        admit(hospitals, f"table:{tmp_path / 'new.csv'}")
    np.savez(tmp_path / "x.npz", x=np.zeros((5, 2)), y=np.array(["mild"] * 5))
    with pytest.raises(DataError, match=r"samples of shape \(2,\) should be like the run's, \(3,\)"):
        admit(hospitals, f"folder:{tmp_path}")


def test_names_are_in_every_file_of_a_run(hospitals: Path) -> None:
    names = NAMES
    summary, card = (json.loads((hospitals / name).read_text()) for name in ("summary.json", "data.json"))
    assert list(summary["assignments"]) == list(summary["per_client"]) == card["clients"] == names
    assert card["class_names"] == summary["class_names"] == ["mild", "none", "severe"]
    assert card["feature_names"] == ["a", "b", "c"] and card["pixels"] is None
    manifest = json.loads((hospitals / "models" / "manifest.json").read_text())
    assert sorted(n for c in manifest["clusters"] for n in c["clients"]) == names
    assert manifest["class_names"] == card["class_names"] and manifest["feature_names"] == card["feature_names"]
    for table in ("metrics.parquet", "assignments.parquet"):
        assert sorted(set(pq.read_table(hospitals / table)["client"].to_pylist())) == names
    assert summary["ari"] is None and summary["intra_accuracy"] > summary["inter_accuracy"]


def test_what_is_written_is_what_was_measured(tmp_path: Path) -> None:
    """Personal models in the files once were others than those whose accuracy was said."""
    for extra in ([], ["engine.clip_updates=0.05"]):
        settings = ["rounds=2", "data.clients=4", "data.clusters=2", "data.unseen=4", "data.samples=20"]
        config = Config.load(None, [*settings, "engine.name=stacked", "method.name=fedavg-ft", *extra])
        folder = tmp_path / f"run{len(extra)}"
        clusterfl.run(config, out=folder)
        got = admit(folder, out=folder / "theirs")
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
    spent = [admit(tmp_path / "r")["privacy"] for _ in range(2)]
    assert spent[0]["uploads"] < spent[1]["uploads"] and spent[0]["epsilon"] < spent[1]["epsilon"]
    ledger = LedgerFile.open(tmp_path / "r" / "privacy.log")
    assert ledger.releases[6] == 3 and ledger.most == 3, "at the end of the run, and twice since"
    new = tmp_path / "new"
    new.mkdir()
    for name in "ab":
        np.savez(new / f"{name}.npz", x=np.zeros((8, 1, 8, 8), np.uint8), y=np.arange(8))
    first, second = (admit(tmp_path / "r", f"folder:{new}")["privacy"] for _ in range(2))
    assert (first["uploads"], second["uploads"]) == (1, 2), "other clients, a ledger of their own"
    other = [int(charge_to(private(), tmp_path / "r" / name, keys.key(0))) for name in ("privacy.log", "new.log")]
    assert len({int(keys.key(0)), *other}) == 3, "a key of its own after every charge"


def test_two_ledgers_of_one_length_give_two_keys(tmp_path: Path) -> None:
    """privacy.log and privacy-admitted.log are of other clients, whose numbers may be the same."""
    pytest.importorskip("dp_accounting")
    after = [
        int(charge_to(private(), tmp_path / name, keys.key(0))) for name in ("privacy.log", "privacy-admitted.log")
    ]
    assert len({*after, int(keys.key(0))}) == 3


OWN = ["rounds=2", "data.clients=6", "data.clusters=2", "data.unseen=2", "data.samples=40", "engine.name=serial"]


def test_noise_of_kins_own_is_accounted_and_no_two_newcomers_share_it(tmp_path: Path) -> None:
    run = tmp_path / "r"
    outcome = clusterfl.run(Config.load(None, [*OWN, "method.name=kin", "method.epsilon=30"]), out=run)
    assert outcome.spent is not None and outcome.spent.unit == "sample" and outcome.spent.uploads == 1
    assert outcome.spent.epsilon == pytest.approx(30.0, abs=1e-6)
    assert "Members.train: theta" in outcome.spent.uncovered and "Describe.describe: n" in outcome.spent.uncovered
    assert not any("means" in what or "shares" in what for what in outcome.spent.uncovered)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["privacy"]["epsilon"] == pytest.approx(30.0, abs=1e-6)
    assert admit(run)["privacy"]["epsilon"] == pytest.approx(30.0, abs=1e-6)
    method = Config.load(run / "config.toml").method
    state = newest_snapshot(run, method, 6).state
    twice = method.spent(replace(state, times=state.times + (torch.arange(6) == 3)))
    assert twice is not None and twice.epsilon > 40 and twice.uploads == 2


def test_other_newcomers_draw_other_noise_and_the_same_ones_the_same(tmp_path: Path) -> None:
    run = tmp_path / "r"
    clusterfl.run(Config.load(None, [*OWN, "method.name=kin", "method.epsilon=30"]), out=run)
    seen: list[int] = []

    for name, shade in (("a", 0), ("b", 9)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "new.npz", x=np.full((20, 1, 8, 8), shade, np.uint8), y=np.arange(20) % 10)
    real = Kin.admit

    def admitted(self: Kin, state: Any, cohort: Any) -> Any:
        seen.append(int(cohort.key))
        return real(self, state, cohort)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kin, "admit", admitted)
        for name in ("a", "b", "a"):
            admit(run, f"folder:{tmp_path / name}")
    assert seen[0] == seen[2] != seen[1]


def folder_of(path: Path, **shades: int) -> str:
    """Clients by name, each all of one shade."""
    path.mkdir()
    for name, shade in shades.items():
        np.savez(path / f"{name}.npz", x=np.full((20, 1, 8, 8), shade, np.uint8), y=np.arange(20) % 10)
    return f"folder:{path}"


def test_a_client_that_is_admitted_among_others_again_is_charged_again(tmp_path: Path) -> None:
    """Among other data it gets other noise: that is a further release of the same statistics."""
    run = tmp_path / "r"
    clusterfl.run(Config.load(None, [*OWN, "method.name=kin", "method.epsilon=30"]), out=run)
    spent = [
        admit(run, folder_of(tmp_path / f"{i}", **clients))["privacy"]
        for i, clients in enumerate([{"a": 0}, {"a": 0, "b": 9}, {"c": 5}, {"a": 0, "c": 5}])
    ]
    assert [s["uploads"] for s in spent] == [1, 2, 1, 3]
    assert spent[0]["epsilon"] == pytest.approx(30.0, abs=1e-6)
    assert spent[0]["epsilon"] < spent[1]["epsilon"] < spent[3]["epsilon"]
    again = admit(run, f"folder:{tmp_path / '1'}")["privacy"]
    assert again["uploads"] == 3, "the same data gets the same noise, which is no release; a has had three by now"


def test_copies_of_a_run_draw_other_noise_for_other_newcomers(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private_run = [*OWN, "method.name=robust-tkm", "method.k=2", "privacy.clip=0.5", "privacy.noise_multiplier=4.0"]
    clusterfl.run(Config.load(None, private_run), out=tmp_path / "r")
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    seen: list[int] = []
    real = RobustTKM.admit

    def admitted(self: RobustTKM, state: Any, cohort: Any) -> Any:
        seen.append(int(cohort.key))
        return real(self, state, cohort)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RobustTKM, "admit", admitted)
        admit(tmp_path / "r", folder_of(tmp_path / "a", x=0))
        admit(tmp_path / "copy", folder_of(tmp_path / "b", x=9))
    assert len({*seen}) == 2


def test_all_of_newcomers_data_is_used_however_the_runs_was_cut(tmp_path: Path) -> None:
    run = hospital_run(tmp_path, "data.samples=20", "data.test_fraction=0.5")
    hospital_table(["hospital-90"], rows=400, seed=3).to_csv(tmp_path / "new.csv", index=False)
    assert admit(run, f"table:{tmp_path / 'new.csv'}")["clients"]["hospital-90"]["samples"] == 200


def test_who_may_be_in_several_clusters_is_said() -> None:
    assert unsure({}) == [] and unsure({"a": [0, 2]}) == ["may be in several clusters: a (0 or 2)"]
    many = unsure({f"c{i}": [0, 1] for i in range(12)})[0]
    assert many.endswith("c9 (0 or 1), … (12)")
    row = {"cluster": 1, "either": [1, 2], "accuracy": None, "samples": 5, "true_cluster": None}
    assert line("a", row) == "a   cluster 1 (may be 1 or 2)   accuracy -   samples 5"


def test_clients_that_were_never_asked_are_not_said_to_be_in_several(tmp_path: Path) -> None:
    few = ["rounds=1", "data.clients=12", "data.samples=40", "participation=0.25", "engine.name=serial"]
    outcome = clusterfl.run(Config.load(None, [*few, "method.name=kin"]))
    asked = outcome.state.known.nonzero().flatten().tolist()
    assert len(asked) < 12 and not {*outcome.either} - {*asked}


def unlabelled(folder: Path, kind: str) -> str:
    """The hospitals 90 and 91 of each kind, without labels, as a folder, a table or a function."""
    table = hospital_table(["hospital-90", "hospital-91"], seed=3).drop(columns="label")
    if kind == "table":
        table.to_csv(folder / "new.csv", index=False)
        return f"table:{folder / 'new.csv'}"
    (folder / "new").mkdir()
    for name, rows in table.groupby("client"):
        np.savez(folder / "new" / f"{name}.npz", x=rows[["a", "b", "c"]].to_numpy(np.float32))
    if kind == "folder":
        return f"folder:{folder / 'new'}"
    (folder / "mine.py").write_text(
        "import numpy as np, pathlib\n"
        "def new():\n"
        "    files = sorted((pathlib.Path(__file__).parent / 'new').glob('*.npz'))\n"
        "    return {f.stem: np.load(f)['x'] for f in files}\n"
    )
    return f"{folder / 'mine.py'}:new"


@pytest.mark.parametrize("kind", ["table", "folder", "function"])
def test_newcomers_without_labels_are_placed_by_their_inputs(kind: str, tmp_path: Path) -> None:
    run = hospital_run(tmp_path, "method.name=kin", "method.personal=none")
    got = admit(run, unlabelled(tmp_path, kind), out=tmp_path / "models")
    assert list(got["clients"]) == ["hospital-90", "hospital-91"] and got["accuracy_mean"] is None
    assert all(c["accuracy"] is None for c in got["clients"].values())
    everyone = hospital_table(["hospital-90", "hospital-91"], seed=3)["client"].value_counts()
    assert {n: c["samples"] for n, c in got["clients"].items()} == dict(everyone), "nothing is held out"
    assert any("have no labels" in note for note in got["notes"])
    assert {p.stem for p in (tmp_path / "models").iterdir()} == set(got["clients"])


@pytest.mark.parametrize(
    "settings", [["method.name=mcfl"], ["method.name=flux"], ["method.name=fedavg"]], ids=lambda s: s[0]
)
def test_so_are_those_of_other_methods_that_can(settings: list[str], tmp_path: Path) -> None:
    run = hospital_run(tmp_path, *settings)
    got = admit(run, unlabelled(tmp_path, "table"), out=tmp_path / "models")
    assert {p.stem for p in (tmp_path / "models").iterdir()} == set(got["clients"]) == {"hospital-90", "hospital-91"}


@pytest.mark.parametrize("name", ["local", "fedfomo", "fedper", "cfl", "pacfl", "fedem"])
def test_those_that_cannot_do_not_claim_it(name: str) -> None:
    assert small_method(name).for_inputs() is None


def test_a_misspelt_column_of_labels_is_not_taken_for_none(tmp_path: Path) -> None:
    run = hospital_run(tmp_path, "method.name=kin")
    table = hospital_table(["hospital-90"], seed=3).rename(columns={"label": "Label"})
    table.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match="has no column 'label', but 'Label': rename it"):
        admit(run, f"table:{tmp_path / 'new.csv'}")


@pytest.mark.parametrize("value", ["None", "[1.0, 2.0]"])
def test_a_function_of_newcomers_that_returns_no_samples_is_told_so(value: str, tmp_path: Path) -> None:
    run = hospital_run(tmp_path, "method.name=kin")
    file = tmp_path / f"returns_{len(value)}.py"  # modules are known by name
    file.write_text(f"def new():\n    return {{'a': {value}}}\n")
    with pytest.raises(DataError, match=r"should return (an array of samples, or )?\(x, y\)"):
        admit(run, f"{file}:new")


def test_methods_that_need_labels_say_so(tmp_path: Path) -> None:
    run = hospital_run(tmp_path)
    with pytest.raises(ConfigError, match=r"data should have labels for method='ifca'"):
        admit(run, unlabelled(tmp_path, "table"))
    np.savez(tmp_path / "new.npz", x=np.zeros((4, 3), np.float32))
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    np.savez(mixed / "a.npz", x=np.zeros((4, 3), np.float32))
    np.savez(mixed / "b.npz", x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    with pytest.raises(DataError, match="labels for all clients or for none"):
        admit(run, f"folder:{mixed}")


def test_turned_digits_without_labels_find_their_group(tmp_path: Path) -> None:
    """Turned pictures can be told by themselves, renamed labels cannot."""
    run = tmp_path / "r"
    clusterfl.run(Config.load(None, ["rounds=1", "data.unseen=0", "method.name=kin", "engine.name=serial"]), out=run)
    images = load_digits().images / 16 * 255
    new = tmp_path / "new"
    new.mkdir()
    for turns in range(4):
        turned = np.rot90(images[100 * turns : 100 * turns + 100], turns, axes=(1, 2))[:, None].round().astype(np.uint8)
        np.savez(new / f"{turns}.npz", x=turned)
    got = admit(run, f"folder:{new}")
    assert len({c["cluster"] for c in got["clients"].values()}) == 4
