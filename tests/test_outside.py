"""A user's own method and model by name, on the command line and in every engine."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from clusterfl.config import Config
from clusterfl.errors import ConfigError, DataError
from clusterfl.outside import is_outside, load_outside, offered, only
from clusterfl.runs.admission import admit
from clusterfl.runs.run import run

ENGINES = ("serial", "wire", "pool", *(("ray",) if find_spec("ray") else ()))

METHOD = '''
from dataclasses import dataclass
from clusterfl.methods.fedavg import FedAvg
from clusterfl.message import Model, Weight, on_client
from clusterfl.parts.aggregate import reply
from clusterfl.parts.local import sgd


@dataclass(frozen=True)
class Halved(FedAvg):
    """FedAvg whose clients go half as far."""

    name = "halved"
    share: float = 0.5

    @on_client(theta=Model(of="theta"), n=Weight())
    def train(self, me, theta):
        new = sgd(me, theta, self.local)
        return reply(me, self.weights, theta={n: theta[n] + self.share * (new[n] - theta[n]) for n in new})
'''
MODEL = '''
from torch import nn


def build(input_shape, classes, *, width: int = 16):
    """One hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))
'''


REST = '''
import numpy as np
import torch


def wards(seed=0):
    """Six clients in two kinds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 30, 3)).astype(np.float32)
    return {f"ward {i}": (x[i], np.where((x[i, :, 0] > 0) == (i % 2 == 0), "ill", "well")) for i in range(6)}


def later():
    return {"ward 9": wards(1)["ward 1"]}


def sizes():
    """The same with numbers as targets."""
    return {name: (x, x.sum(1) * (1 if i % 2 else -1)) for i, (name, (x, _)) in enumerate(wards().items())}


def surprise(outputs, y):
    return -torch.log_softmax(outputs, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)


def cubic(outputs, y):
    return (outputs.squeeze(1) - y).abs() ** 3


def ends(x):
    return x.flatten(1)[:, ::2]


def largest(outputs, y):
    return (outputs.squeeze(1) - y).abs().max()


largest.better = "lower"
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_halved.py").write_text(METHOD)
    (tmp_path / "own_net.py").write_text(MODEL)
    (tmp_path / "own_rest.py").write_text(REST)
    return tmp_path


def clusterfl(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "clusterfl", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_a_reference() -> None:
    assert all(map(is_outside, ("mine.py:A", "a/b.py:C", "package.module:C")))
    assert not any(map(is_outside, ("ifca", "table:x.csv", "folder:/a/b", "a b:C", "mine.py:", "mine.py:1")))


@pytest.mark.parametrize("engine", ["serial", "pool", "wire"])
def test_own_method_and_model_run_and_resume_from_anywhere(engine: str, folder: Path, tmp_path: Path) -> None:
    names = ["--set", "method.name=own_halved.py:Halved", "--set", "method.share=1.0"]
    small = ["data.clients=4", "data.samples=10", "rounds=1", f"engine.name={engine}", "model.name=own_net.py:build"]
    words = [word for setting in [*small, "model.width=8"] for word in ("--set", setting)]
    out = str(folder / "out")
    first = json.loads(clusterfl(folder, "run", *names, *words, "--out", out, "--json", "-q"))
    plain = json.loads(clusterfl(folder, "run", "--set", "method.name=fedavg", *words, "--json", "-q"))
    assert first["accuracy_mean"] == plain["accuracy_mean"]  # share 1 is FedAvg
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = json.loads(clusterfl(elsewhere, "resume", out, "--json", "-q"))
    assert again["accuracy_mean"] == first["accuracy_mean"]


def test_compare_takes_a_method_with_settings_of_its_own(folder: Path) -> None:
    small = ["--set", "data.clients=4", "--set", "data.samples=10", "--set", "rounds=1", "--set", "engine.name=serial"]
    methods = "ifca,ifca:k=2,own_halved.py:Halved:share=0.25"
    said = clusterfl(folder, "compare", "--methods", methods, "--seeds", "0", *small, "--out", "t", "--json", "-q")
    rows = {entry["method"]: entry for entry in json.loads(said)["methods"]}
    assert list(rows) == ["local", "fedavg", *methods.split(",")]
    assert rows["ifca"]["runs"][0]["k"] == 4 and rows["ifca:k=2"]["runs"][0]["k"] == 2
    assert rows["own_halved.py:Halved:share=0.25"]["accuracy_mean"] != rows["fedavg"]["accuracy_mean"]


@pytest.fixture
def imports(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder, and as if its files had never been imported."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("imports")
def test_own_data_loss_and_feature_in_every_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is cross-entropy in other words, so that the library's own loss says what must come out."""
    given = ["data.source=own_rest.py:wards", "rounds=1", "data.unseen=2", "engine.workers=1", "method.name=mcfl"]
    given += ["method.feature=own_rest.py:ends", "method.base.name=ifca", "method.base.k=2"]
    loss = ["task.loss=own_rest.py:surprise", "task.targets=classes"]
    configs = {engine: Config.load(None, [*given, *loss, f"engine.name={engine}"]) for engine in ENGINES}
    plain = run(Config.load(None, [*given, "engine.name=serial"])).accuracy.mean
    monkeypatch.chdir("/")
    for engine, config in configs.items():
        assert Config.parse(tomllib.loads(config.toml())) == config  # from anywhere
        outcome = run(config, out=folder / engine)
        assert outcome.accuracy.mean == plain and list(outcome.assignments()) == [f"ward {i}" for i in range(4)]
    card = json.loads((folder / "pool" / "data.json").read_text())
    assert card["class_names"] == ["ill", "well"] and card["data"] == "own_rest.py:wards, natural"
    new = admit(folder / "serial", f"{folder}/own_rest.py:later")
    assert list(new["clients"]) == ["ward 9"]


@pytest.mark.usefixtures("imports")
def test_a_loss_and_a_metric_of_numbers(folder: Path) -> None:
    given = ["data.source=own_rest.py:sizes", "rounds=1", "engine.name=stacked", "local.lr=0.01"]
    own = ["task.loss=own_rest.py:cubic", "task.metric=own_rest.py:largest"]
    config = Config.load(None, [*given, *own])
    assert config.task.regression and config.task.loss == f"{folder}/own_rest.py:cubic"
    assert Config.parse(config.table()) == config
    outcome = run(config)
    assert outcome.metric.name == "largest" and outcome.metric.better == "lower" and outcome.score.mean > 0
    for setting, said in [
        ("task.targets=classes", "loss='mse' says what they are"),
        ("task.targets=words", "should be one of 'classes', 'numbers'"),
        ("task.loss=own_rest.py:np", "should be a function of outputs and targets"),
        ("task.loss=cubic", "loss='cubic' should be one of 'cross-entropy', 'mse', 'mae', 'huber', or a function"),
        ("data.source=own_rest.py:largest", "without arguments, but TypeError"),
    ]:
        with pytest.raises((ConfigError, DataError), match=said):
            Config.load(None, [*given, "task.loss=mse", setting]).population()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("[1, 2]", "should return a dict from clients' names"),
        ("{'a': 1}", "or .x_train, y_train, x_test, y_test. for client 'a'"),
        ("{'a': ([[1.0]] * 3, [0, 1, 1]), 'b': ([[1.0]], [0], [[1.0]], [0])}", "for all clients or for none"),
        (
            "{'a': ([[1.0]] * 3, [0, 1, 1]), 'b': ([[float('nan')]], [0])}",
            "odd.py:made, client b, row 0: samples should",
        ),
        ("{'a': ([[1.0]] * 3, [0, 1])}", "client a: labels of shape .2,. should be one per sample"),
    ],
)
def test_what_a_function_of_data_should_return(
    answer: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(f"def made():\n    return {answer}\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    with pytest.raises(DataError, match=said):
        Config.load(None, [f"data.source={tmp_path}/odd.py:made"]).population()


@pytest.mark.usefixtures("imports")
def test_where_names_come_from_others_only_what_is_allowed_is_loaded(folder: Path) -> None:
    with only([f"{folder}/own_net.py:build"]):
        assert load_outside("/far/away/own_net.py:build").__name__ == "build"
        with pytest.raises(ConfigError, match="should be allowed on the node"):
            load_outside(f"{folder}/own_rest.py:ends")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nowhere.py:A", "should be a Python file"),
        ("json.py:A", "a name of its own"),
        ("own_halved.py:Nothing", "has no 'Nothing'"),
        ("own_halved.py:sgd", "should be a frozen dataclass that derives from clusterfl.Method"),
        ("no_such_package.module:A", "should be importable"),
        ("broken.py:A", "SyntaxError"),
    ],
)
def test_what_cannot_be_loaded_is_said(
    reference: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "json.py").write_text("A = 1")
    (folder / "broken.py").write_text("def")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_halved", raising=False)
    with pytest.raises(ConfigError, match=said):
        Config.load(None, [f"method.name={reference}"])


def test_entry_points_offer_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterfl.config.methods.offered", lambda group: {"theirs": "clusterfl.methods.fedavg:FedAvg"})
    assert Config.load(None, ["method.name=theirs"]).method.name == "fedavg"
    assert offered("methods") == {} and load_outside("clusterfl.methods.fedavg:FedAvg").name == "fedavg"
