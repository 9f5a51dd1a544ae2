"""clusterfl methods, models, datasets: what there is, in words and as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterfl.commands.about import FILE, as_text, everything
from clusterfl.message import Kept
from clusterfl.method import exchanged
from clusterfl.methods import AWCFL, MCFL, METHODS
from clusterfl.models import MODELS

from .calls import call


@pytest.mark.parametrize(("command", "names"), [("methods", METHODS), ("models", MODELS)])
def test_lists(command: str, names: Any) -> None:
    done = call(command)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(names)
    entries = json.loads(call(command, "--json").stdout)
    assert [e["name"] for e in entries] == list(names)
    for name in names:
        text, one = call(command, name).stdout, json.loads(call(command, name, "--json").stdout)
        assert text.startswith(f"{name}: ") and one["name"] == name
        assert all(p["name"] in text for p in one["parameters"])
    wrong = call(command, "nonsense")
    assert wrong.exit_code == 2 and len(wrong.stderr.splitlines()) == 1


def test_one_method_in_full() -> None:
    text = call("methods", "ifca").stdout
    assert "NeurIPS 2020" in text
    leaves, stays = text.partition("what leaves a client:")[2].split("what stays on it:")
    assert "  IFCA.choose_and_train: theta, a trained model\n" in leaves
    assert "  IFCA.choose_and_train: s, its cluster id\n" in leaves and "Losses.losses: losses, losses of" in leaves
    assert "  IFCA.personalise: theta, a model of its own\n" in stays
    given = text.partition("its parameters")[2]
    keys = [line.split()[0] for line in given.splitlines() if line.startswith("  ")]
    assert keys == ["k", "start", "weights", "aggregate"]


def test_what_leaves_a_client_is_what_procedures_declare() -> None:
    """The wrapped method's procedures and those of its parts included; nothing leaves where nobody trains together."""

    def leaving(name: str) -> set[tuple[str, str]]:
        found = json.loads(call("methods", name, "--json").stdout)["leaves"]
        return {(entry["procedure"], entry["field"]) for entry in found}

    assert leaving("local") == set()
    for name, method in METHODS.items():
        declared = {
            (procedure, field)
            for procedure, fields in exchanged(method()).items()
            for field, kind in fields.items()
            if not isinstance(kind, Kept)
        }
        assert leaving(name) == declared, name
    assert leaving("awcfl") >= leaving(AWCFL().base.name) and leaving("mcfl") > leaving(MCFL().base.name)


def test_datasets(tmp_path: Path) -> None:
    text = call("datasets", "--data-root", str(tmp_path)).stdout
    assert "digits" in text and f"put mnist.npz into {tmp_path}" in text and "alpha" in text
    found = json.loads(call("datasets", "--json", "--data-root", str(tmp_path)).stdout)
    present = {e["name"]: e["present"] for e in found["datasets"]}
    assert present["digits"] and not present["mnist"]
    (tmp_path / "mnist.npz").write_bytes(b"")
    again = json.loads(call("datasets", "mnist", "--json", "--data-root", str(tmp_path)).stdout)
    assert again["present"]


def test_the_listing_is_current() -> None:
    found = json.loads(as_text(everything()))
    assert json.loads(FILE.read_text(encoding="utf-8")) == found, "out of date: `make listing` writes it anew"


def test_a_method_is_shown_with_its_papers_settings_beside_the_defaults() -> None:
    text = call("methods", "md-icfl").stdout
    assert re.search(r"^  start +kmeans-local \(paper: independent\)", text, re.M)
    assert re.search(r"^  warmup +5 \(paper: 0\)", text, re.M)
    assert "\npreset = 'paper': random models" in text
    assert "(paper:" not in call("methods", "fedavg").stdout


def test_methods_of_packages_and_files_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterfl.outside.offered", lambda group: {"theirs": "clusterfl.methods.fedavg:FedAvg"})
    monkeypatch.setattr("clusterfl.config.methods.offered", lambda group: {"theirs": "clusterfl.methods.fedavg:FedAvg"})
    assert len(json.loads(call("methods", "--json").stdout)) == len(METHODS) + 1
    for name in ("theirs", "clusterfl.methods.fedavg:FedAvg"):
        assert call("methods", name).stdout == call("methods", "fedavg").stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["methods"], ["methods", "ifca"], ["models"], ["models", "mlp"]]
)
def test_what_there_is_is_said_without_pytorch(arguments: list[str]) -> None:
    without_pytorch(arguments)


def test_datasets_are_listed_without_pytorch(tmp_path: Path) -> None:
    without_pytorch(["datasets", "--data-root", str(tmp_path)])


def without_pytorch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom clusterfl.commands.app import app\n"
        "code = app(sys.argv[1:], standalone_mode=False)\n"
        "sys.exit(code or 'torch' in sys.modules or 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
