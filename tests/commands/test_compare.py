"""clusterfl compare: tables, files, and runs that are not run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterfl.commands.compare import parse_methods, parse_seeds
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS
from clusterfl.runs.folder import exclusive, write_config

from .calls import SMALL, call, words


def test_compare_shows_the_honest_under_attack(tmp_path: Path) -> None:
    attack = words(["data.clients=12", "data.clusters=3", "rounds=1", "attack.kind=gaussian"])
    out = ["--methods", "ifca", "--seeds", "0", "--out", str(tmp_path / "t"), "--quiet"]
    done = call("compare", *SMALL, *attack, *out)
    assert done.exit_code == 0, done.stderr
    assert "gaussian by 20% of the clients (spread)" in done.stdout
    assert "worst cluster" in done.stdout and "ARI honest" in done.stdout
    found = json.loads((tmp_path / "t" / "compare.json").read_text(encoding="utf-8"))
    assert found["attack"]["kind"] == "gaussian"
    assert all(m["accuracy_honest"] and m["accuracy_worst_cluster"] for m in found["methods"])
    assert (tmp_path / "t" / "table.md").read_text(encoding="utf-8").startswith("| method | honest |")


def test_compare(tmp_path: Path) -> None:
    done = call("compare", *SMALL, "--methods", "ifca", "--seeds", "0-1", "--out", "t", folder=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "run 1 of 6: local, seed 0  round" in done.stderr and "run 6 of 6: ifca, seed 1  round" in done.stderr
    lines = done.stdout.splitlines()
    starts = [line.split()[0] for line in lines if line and line.split()[0] in METHODS]
    assert starts[:3] == ["local", "fedavg", "ifca"]
    assert any("±" in line for line in lines) and any("cluster 0:" in line for line in lines)
    found = json.loads((tmp_path / "t" / "compare.json").read_text(encoding="utf-8"))
    assert found["seeds"] == [0, 1] and [m["method"] for m in found["methods"]] == ["local", "fedavg", "ifca"]
    ifca = found["methods"][2]
    runs = [json.loads((tmp_path / f"t/runs/ifca-seed{s}/summary.json").read_text(encoding="utf-8")) for s in (0, 1)]
    a, b = (run["accuracy_mean"] for run in runs)
    assert ifca["accuracy_mean"]["mean"] == pytest.approx((a + b) / 2)
    assert ifca["accuracy_mean"]["std"] == pytest.approx(abs(a - b) / 2**0.5)
    assert ifca["unseen_accuracy"]["mean"] == pytest.approx(sum(run["unseen_accuracy"] for run in runs) / 2)
    assert [r["seed"] for r in ifca["runs"]] == [0, 1]
    table = (tmp_path / "t" / "table.md").read_text(encoding="utf-8")
    assert table.startswith("| method |") and len(table.splitlines()) == 5
    assert (
        (tmp_path / "t" / "table.csv")
        .read_text(encoding="utf-8")
        .splitlines()[0]
        .startswith("method,accuracy_mean_mean,")
    )
    again = call(
        "compare", *SMALL, "--methods", "ifca", "--seeds", "0-1", "--out", "t", "--json", "--quiet", folder=tmp_path
    )
    assert again.exit_code == 0 and json.loads(again.stdout)["methods"][2]["ari"] == ifca["ari"]
    other = call("compare", *SMALL, "--set", "local.lr=0.3", "--seeds", "0-1", "--out", "t", folder=tmp_path)
    assert other.exit_code == 2 and "holds another run" in other.stderr


def test_compare_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    asked = ["compare", *SMALL, "--methods", "ifca", "--out", "t", "--quiet"]
    assert call(*asked, "--seeds", "0", folder=tmp_path).exit_code == 0
    runs = tmp_path / "t" / "runs"
    (runs / "fedavg-seed0" / "summary.json").unlink()  # it was stopped in the middle of this one
    old = {f.parent.name: f.stat().st_mtime_ns for f in runs.glob("*/rounds.jsonl")}
    assert call(*asked, "--seeds", "0-1", folder=tmp_path).exit_code == 0
    new = {f.parent.name: f.stat().st_mtime_ns for f in runs.glob("*/rounds.jsonl")}
    assert {name for name in old if new[name] != old[name]} == {"fedavg-seed0"}
    assert {"local-seed1", "fedavg-seed1", "ifca-seed1"} <= new.keys()
    found = json.loads((tmp_path / "t" / "compare.json").read_text(encoding="utf-8"))
    assert [len(m["runs"]) for m in found["methods"]] == [2, 2, 2]


def test_compare_counts_bytes_to_an_accuracy(tmp_path: Path) -> None:
    asked = ["compare", *SMALL, "--methods", "ifca", "--seeds", "0-1", "--out", "t", "--quiet"]
    done = call(*asked, "--reach", "0.16", folder=tmp_path)
    assert done.exit_code == 0 and "MB to 16 %" in done.stdout, done.stderr
    found = json.loads((tmp_path / "t" / "compare.json").read_text(encoding="utf-8"))
    assert found["reach"] == 0.16 and found["methods"][0]["bytes_to_accuracy"]["mean"] == 0.0  # local sends nothing
    for run in found["methods"][1]["runs"]:
        lines = (tmp_path / f"t/runs/fedavg-seed{run['seed']}/rounds.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        there = [r["bytes_up"] + r["bytes_down"] for r in rows if r["accuracy_mean"] >= 0.16]
        assert run["bytes_to_accuracy"] == there[0] > 0
    assert (tmp_path / "t" / "table.csv").read_text(encoding="utf-8").splitlines()[0].endswith("bytes_to_accuracy_std")

    done = call(*asked, "--reach", "1", "--json", folder=tmp_path)
    never = json.loads(done.stdout)["methods"][1]
    assert never["bytes_to_accuracy"] is None and [r["bytes_to_accuracy"] for r in never["runs"]] == [None, None]
    assert call(*asked, "--reach", "1.5", folder=tmp_path).exit_code == 2


def test_compare_gives_every_method_the_same_clients(tmp_path: Path) -> None:
    call("compare", *SMALL, "--methods", "ifca", "--seeds", "1", "--out", "t", "--quiet", folder=tmp_path)
    digests = {
        json.loads(p.read_text(encoding="utf-8"))["data_sha256"]
        for p in (tmp_path / "t" / "runs").glob("*/summary.json")
    }
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


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    arguments = ("compare", *SMALL, "--methods", "local", "--seeds", "0", "--out", str(tmp_path / "t"), "--quiet")
    with exclusive(tmp_path / "t"):
        done = call(*arguments)
        assert done.exit_code == 2 and "is in use by another run" in done.stderr
    with exclusive(tmp_path / "t"):  # one that was stopped before its table
        write_config(tmp_path / "t", Config.load(None, ["seed=5"]))
    done = call(*arguments)
    assert done.exit_code == 2 and "holds another run" in done.stderr
