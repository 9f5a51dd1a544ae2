"""A user's own method and model by name, on the command line and in every engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.outside import is_outside, load_outside, offered

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_halved.py").write_text(METHOD)
    (tmp_path / "own_net.py").write_text(MODEL)
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
