"""clusterfl run: files, JSON, folders, and nothing written on a start that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterfl.methods import METHODS

from .calls import SMALL, call, process, words


def test_run_as_a_process(tmp_path: Path) -> None:
    done = process("run", *SMALL, "--seed", "3", "--out", "here", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout and "cluster 0:" in done.stdout and "written to here" in done.stdout
    lines = done.stderr.splitlines()
    assert lines[0] == "run: loading PyTorch …"  # which takes seconds
    assert [line for line in lines if "round 2/2" in line and "accuracy" in line and "left" in line]
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["seed"] == 3 and summary["method"] == "kin"
    assert [p.name for p in tmp_path.iterdir()] == ["here"]


def test_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    done = process("run", *SMALL, "--json", "--out", "x", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "x" / "summary.json").read_text())
    quiet = call("run", *SMALL, "--json", "--quiet", "--out", "x", folder=tmp_path)  # the same run, again
    assert quiet.exit_code == 0 and quiet.stderr == "" and json.loads(quiet.stdout)["method"] == "kin"


def test_a_config_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    data = "[data]\nclients = 6\nclusters = 2\nsamples = 20\n"
    path.write_text(f'rounds = 1\n{data}[method]\nname = "fedavg"\n[engine]\nname = "serial"\n')
    done = call("run", str(path), "--set", "rounds=2", "--json", "--quiet", folder=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["method"] == "fedavg" and summary["rounds"] == 2 and summary["clients"] == 6
    assert (tmp_path / "runs" / "fedavg-digits-seed0" / "summary.json").exists()


def test_k_of_one_is_fedavg(tmp_path: Path) -> None:
    """T22: one cluster, started from FedAvg's net and with its weights, bit for bit."""
    fedavg = ["method.name=fedavg", "method.weights=uniform"]
    for name, more in (("ifca", ["method.name=ifca", "method.k=1", "method.start=independent"]), ("fedavg", fedavg)):
        assert call("run", *SMALL, *words(more), "--out", name, "--quiet", folder=tmp_path).exit_code == 0
    one, two = ((tmp_path / name / "models" / "cluster-0.safetensors").read_bytes() for name in ("ifca", "fedavg"))
    assert one == two


def test_a_folder_of_another_run_is_not_written_over(tmp_path: Path) -> None:
    def run(*more: str) -> Any:
        return call("run", *SMALL, *more, "--out", "x", "--quiet", folder=tmp_path)

    assert run().exit_code == 0
    before = (tmp_path / "x" / "config.toml").read_text()
    refused = run("--seed", "1")
    assert refused.exit_code == 2 and "holds another run" in refused.stderr
    assert (tmp_path / "x" / "config.toml").read_text() == before
    assert run().exit_code == 0
    assert run("--set", "engine.name=stacked").exit_code == 0  # the same run on another engine
    assert run("--seed", "1", "--force").exit_code == 0
    (tmp_path / "file").write_text("")
    assert "is a file" in call("run", *SMALL, "--out", "file", folder=tmp_path).stderr


def test_a_start_that_fails_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: Any) -> None:
        raise ValueError("share=0.9 of clients per cluster was not reached; it should be smaller")

    monkeypatch.setattr(METHODS["kin"], "init", init)
    done = call("run", *SMALL, "--out", "x", folder=tmp_path)
    assert done.exit_code == 2 and "error: method: share=0.9" in done.stderr and list(tmp_path.iterdir()) == []


def test_a_refused_force_leaves_the_old_run_as_it_was(tmp_path: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in (tmp_path / "x").rglob("*") if p.is_file() and p.name != ".lock"}

    assert call("run", *SMALL, "--seed", "7", "--out", "x", "--quiet", folder=tmp_path).exit_code == 0
    before = files()
    asked = words(["method.name=kin", "privacy.clip=1", "privacy.unit=sample"])
    done = call("run", *SMALL, *asked, "--out", "x", "--force", "--quiet", folder=tmp_path)
    assert done.exit_code == 2 and "privacy.unit='sample' should be 'client'" in done.stderr
    assert files() == before and len(before) > 8


def test_a_run_in_which_no_reply_was_sound_is_not_one_that_went_well(tmp_path: Path) -> None:
    """It once ended with exit code 0 and the accuracy of the first net."""
    settings = words(["method.name=fedavg", "local.lr=3e38", "local.epochs=3", "data.unseen=0"])
    done = call("run", *SMALL, *settings, "--out", "x", folder=tmp_path)
    assert done.exit_code == 1
    assert "in 2 of 2 rounds no sound reply came: the models stayed as they were" in done.stdout
    assert "error: in none of 2 rounds came a sound reply" in done.stderr
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["rounds_lost"] == 2 and summary["rejected"] == 16
    done = call("compare", *SMALL, *settings, "--methods", "fedavg", "--seeds", "0", "--out", "c", folder=tmp_path)
    assert done.exit_code == 1 and "no round had a sound reply in local, seed 0; fedavg, seed 0" in done.stderr
    for grid, code in (("local.lr=3e38", 1), ("local.lr=3e38,0.1", 0)):
        done = call("sweep", *SMALL, *settings, "--grid", grid, "--out", f"s{code}", folder=tmp_path)
        assert done.exit_code == code and "no round had a sound reply: local.lr=3e38, seed 0" in done.stdout
    once = words(["method.name=local", "local.lr=3e38", "local.epochs=3", "local.lr_decay=1e-39", "data.unseen=0"])
    done = call("run", *SMALL, *once, "--out", "y", "--json", folder=tmp_path)
    assert done.exit_code == 0 and json.loads(done.stdout)["rounds_lost"] == 1, "clients that recover"
    assert json.loads(done.stdout)["accuracy_mean"] > 0.3
