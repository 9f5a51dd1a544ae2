"""The command line from end to end: files, JSON, exit codes, and nothing written on bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterfl.cli import app
from clusterfl.commands.compare import FIGURES, REACHED, figures, parse_methods, parse_seeds, reached, row
from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS
from clusterfl.models import MODELS

SETTINGS = {
    "rounds": "2",
    "data.clients": "8",
    "data.samples": "20",
    "data.test_samples": "50",
    "engine.name": "serial",
}
SMALL = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


def call(*arguments: str, folder: Path | None = None) -> Any:
    before = Path.cwd()
    if folder is not None:
        os.chdir(folder)
    try:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    finally:
        os.chdir(before)


def process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clusterfl", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_run_as_a_process(tmp_path: Path) -> None:
    done = process("run", *SMALL, "--seed", "3", "--out", "here", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout and "cluster 0:" in done.stdout and "written to here" in done.stdout
    lines = done.stderr.splitlines()
    assert [line for line in lines if "round 2/2" in line and "accuracy" in line and "left" in line]
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["seed"] == 3 and summary["method"] == "ifca"
    assert [p.name for p in tmp_path.iterdir()] == ["here"]


def test_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    done = process("run", *SMALL, "--json", "--out", "x", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "x" / "summary.json").read_text())
    quiet = call("run", *SMALL, "--json", "--quiet", "--out", "x", folder=tmp_path)  # the same run, again
    assert quiet.exit_code == 0 and quiet.stderr == "" and json.loads(quiet.stdout)["method"] == "ifca"


def test_a_config_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    data = "[data]\nclients = 6\nclusters = 2\nsamples = 20\n"
    path.write_text(f'rounds = 1\n{data}[method]\nname = "fedavg"\n[engine]\nname = "serial"\n')
    done = call("run", str(path), "--set", "rounds=2", "--json", "--quiet", folder=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["method"] == "fedavg" and summary["rounds"] == 2 and summary["clients"] == 6
    assert (tmp_path / "runs" / "fedavg-digits-seed0" / "summary.json").exists()


BAD: list[list[str]] = [
    ["--set", "rouns=1"],
    ["--set", "data.clietns=4"],
    ["--set", "method.k=0"],
    ["--set", "method.k=9"],
    ["--set", "data.alpha=0"],
    ["--set", "rounds=many"],
    ["--set", "data.source=nothing"],
    ["--set", "data.source=mnist", "--data-root", "nowhere"],
    ["--set", "method.name=ifcaa"],
    ["--set", "model.name=lenet", "--set", "model.padding=9"],
    ["--set", "rounds"],
    ["--seed", "-1"],
    ["missing.toml"],
]


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("bad", BAD, ids=" ".join)
def test_bad_input_is_one_sentence_exit_2_and_writes_nothing(command: str, bad: list[str], tmp_path: Path) -> None:
    if command == "compare" and "--seed" in bad:
        bad = ["--seeds", "2-1"]
    for more in ([], ["--json"]):
        done = call(command, *SMALL, *bad, *more, "--out", "out", folder=tmp_path)
        assert done.exit_code == 2 and done.stdout == ""
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ") and "should" in lines[0]
        assert list(tmp_path.iterdir()) == []


def test_bad_input_as_a_process(tmp_path: Path) -> None:
    done = process("run", "--set", "method.kk=3", folder=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr == "error: method.kk=3 should be a known key; did you mean 'method.k'?\n"


def test_k_of_one_is_fedavg(tmp_path: Path) -> None:
    """T22: one cluster, started from FedAvg's net and with its weights, bit for bit."""
    fedavg = ["method.name=fedavg", "method.weights=uniform"]
    for name, more in (("ifca", ["method.k=1", "method.init=independent"]), ("fedavg", fedavg)):
        words = [word for setting in more for word in ("--set", setting)]
        assert call("run", *SMALL, *words, "--out", name, "--quiet", folder=tmp_path).exit_code == 0
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

    monkeypatch.setattr(METHODS["ifca"], "init", init)
    done = call("run", *SMALL, "--out", "x", folder=tmp_path)
    assert done.exit_code == 2 and "error: method: share=0.9" in done.stderr and list(tmp_path.iterdir()) == []


def test_an_interrupt_is_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusterfl", "run", "--set", "rounds=100000", "--set", "engine.name=serial"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "round 1/" in line:
                break
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait(timeout=60) == 130
    assert "interrupted" in rest and "Traceback" not in rest


def test_compare(tmp_path: Path) -> None:
    done = call("compare", *SMALL, "--methods", "ifca", "--seeds", "0-1", "--out", "t", "--quiet", folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    starts = [line.split()[0] for line in lines if line and line.split()[0] in METHODS]
    assert starts[:3] == ["local", "fedavg", "ifca"]
    assert any("±" in line for line in lines) and any("cluster 0:" in line for line in lines)
    found = json.loads((tmp_path / "t" / "compare.json").read_text())
    assert found["seeds"] == [0, 1] and [m["method"] for m in found["methods"]] == ["local", "fedavg", "ifca"]
    ifca = found["methods"][2]
    runs = [json.loads((tmp_path / f"t/runs/ifca-seed{s}/summary.json").read_text()) for s in (0, 1)]
    a, b = (run["accuracy_mean"] for run in runs)
    assert ifca["accuracy_mean"]["mean"] == pytest.approx((a + b) / 2)
    assert ifca["accuracy_mean"]["std"] == pytest.approx(abs(a - b) / 2**0.5)
    assert ifca["unseen_accuracy"]["mean"] == pytest.approx(sum(run["unseen_accuracy"] for run in runs) / 2)
    assert [r["seed"] for r in ifca["runs"]] == [0, 1]
    table = (tmp_path / "t" / "table.md").read_text()
    assert table.startswith("| method |") and len(table.splitlines()) == 5
    assert (tmp_path / "t" / "table.csv").read_text().splitlines()[0].startswith("method,accuracy_mean_mean,")
    again = call(
        "compare", *SMALL, "--methods", "ifca", "--seeds", "0-1", "--out", "t", "--json", "--quiet", folder=tmp_path
    )
    assert again.exit_code == 0 and json.loads(again.stdout)["methods"][2]["ari"] == ifca["ari"]
    other = call("compare", *SMALL, "--set", "local.lr=0.3", "--seeds", "0-1", "--out", "t", folder=tmp_path)
    assert other.exit_code == 2 and "holds another run" in other.stderr


def test_compare_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    words = ["compare", *SMALL, "--methods", "ifca", "--out", "t", "--quiet"]
    assert call(*words, "--seeds", "0", folder=tmp_path).exit_code == 0
    runs = tmp_path / "t" / "runs"
    (runs / "fedavg-seed0" / "summary.json").unlink()  # it was stopped in the middle of this one
    old = {f.parent.name: f.stat().st_mtime_ns for f in runs.glob("*/rounds.jsonl")}
    assert call(*words, "--seeds", "0-1", folder=tmp_path).exit_code == 0
    new = {f.parent.name: f.stat().st_mtime_ns for f in runs.glob("*/rounds.jsonl")}
    assert {name for name in old if new[name] != old[name]} == {"fedavg-seed0"}
    assert {"local-seed1", "fedavg-seed1", "ifca-seed1"} <= new.keys()
    found = json.loads((tmp_path / "t" / "compare.json").read_text())
    assert [len(m["runs"]) for m in found["methods"]] == [2, 2, 2]


def test_compare_counts_bytes_to_an_accuracy(tmp_path: Path) -> None:
    words = ["compare", *SMALL, "--methods", "ifca", "--seeds", "0-1", "--out", "t", "--quiet"]
    done = call(*words, "--reach", "0.16", folder=tmp_path)
    assert done.exit_code == 0 and "MB to 16 %" in done.stdout, done.stderr
    found = json.loads((tmp_path / "t" / "compare.json").read_text())
    assert found["reach"] == 0.16 and found["methods"][0]["bytes_to_accuracy"]["mean"] == 0.0  # local sends nothing
    for run in found["methods"][1]["runs"]:
        lines = (tmp_path / f"t/runs/fedavg-seed{run['seed']}/rounds.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        there = [r["bytes_up"] + r["bytes_down"] for r in rows if r["accuracy_mean"] >= 0.16]
        assert run["bytes_to_accuracy"] == there[0] > 0
    assert (tmp_path / "t" / "table.csv").read_text().splitlines()[0].endswith("bytes_to_accuracy_std")

    done = call(*words, "--reach", "1", "--json", folder=tmp_path)
    never = json.loads(done.stdout)["methods"][1]
    assert never["bytes_to_accuracy"] is None and [r["bytes_to_accuracy"] for r in never["runs"]] == [None, None]
    assert call(*words, "--reach", "1.5", folder=tmp_path).exit_code == 2


def test_reached_says_how_many_seeds_got_there() -> None:
    runs = [dict.fromkeys(FIGURES, 0) | {"seed": s, "k": 1, "assignments": {}} for s in range(3)]
    spent: list[int | None] = [2_000_000, None, 4_000_000]
    entry = row("fedavg", [r | {REACHED: b} for r, b in zip(runs, spent, strict=True)], figures(0.9))
    assert reached(entry) == "3.00 ± 1.41 (2 of 3)"


def test_compare_gives_every_method_the_same_clients(tmp_path: Path) -> None:
    call("compare", *SMALL, "--methods", "ifca", "--seeds", "1", "--out", "t", "--quiet", folder=tmp_path)
    digests = {json.loads(p.read_text())["data_sha256"] for p in (tmp_path / "t" / "runs").glob("*/summary.json")}
    assert len(digests) == 1


def test_method_and_seed_lists() -> None:
    assert parse_methods("ifca") == ["local", "fedavg", "ifca"]
    assert parse_methods("ifca, fedavg,ifca") == ["local", "ifca", "fedavg"]
    assert parse_seeds("0-2") == [0, 1, 2] and parse_seeds("4, 1,4") == [4, 1] and parse_seeds("7") == [7]
    for wrong in ("", "a", "2-1", "-1", "1,,2", "0-"):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(wrong)
    with pytest.raises(ConfigError, match="did you mean 'ifca'"):
        parse_methods("local,ifcaa")


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
    assert "reveals: its trained model" in text and "NeurIPS 2020" in text
    keys = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert keys[:3] == ["k", "init", "weights"] and "local" not in keys


def test_datasets(tmp_path: Path) -> None:
    text = call("datasets", "--data-root", str(tmp_path)).stdout
    assert "digits" in text and f"put mnist.npz into {tmp_path}" in text and "alpha" in text
    found = json.loads(call("datasets", "--json", "--data-root", str(tmp_path)).stdout)
    present = {e["name"]: e["present"] for e in found["datasets"]}
    assert present["digits"] and not present["mnist"]
    (tmp_path / "mnist.npz").write_bytes(b"")
    again = json.loads(call("datasets", "mnist", "--json", "--data-root", str(tmp_path)).stdout)
    assert again["present"]


def test_help_and_version() -> None:
    text = call("--help").stdout
    assert all(command in text for command in ("run", "compare", "methods", "datasets", "models"))
    assert "clusterfl run --set method.name=fedavg" in call("run", "--help").stdout
    assert call("--version").stdout.strip() == __import__("clusterfl").__version__
    assert call("runn").exit_code == 2 and call("run", "--sett", "x").exit_code == 2


def test_help_is_quick_because_it_loads_no_pytorch() -> None:
    code = "import sys, clusterfl.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
