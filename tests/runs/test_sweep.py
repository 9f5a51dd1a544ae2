"""Sweeps: the grid, runs that are not run again, and the best first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from clusterfl.errors import ConfigError
from clusterfl.runs.sweep import Axis, parse_axis, points
from tests.commands.calls import SMALL, call


def test_axes_are_values_or_a_span() -> None:
    assert parse_axis("local.lr=0.01, 0.1") == Axis("local.lr", ("0.01", "0.1"))
    assert parse_axis("method.k=2-4") == Axis("method.k", ("2", "3", "4"))
    labels = [p.label for p in points([parse_axis("a=1,2"), parse_axis("b=x,y")])]
    assert labels == ["a=1, b=x", "a=1, b=y", "a=2, b=x", "a=2, b=y"]


@pytest.mark.parametrize("text", ["local.lr", "=1", "k=", "method.k=4-2", "seed=1,2"])
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--grid"):
        parse_axis(text)


def test_an_axis_twice_and_a_grid_too_large_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.lr should be given once"):
        points([parse_axis("local.lr=1"), parse_axis("local.lr=2")])
    with pytest.raises(ConfigError, match="at most 10,000"):
        points([parse_axis("a=1-200"), parse_axis("b=1-200")])


def test_a_sweep_leaves_a_runs_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = 1\n")
    done = call("sweep", *SMALL, "--grid", "local.lr=0.1", "--out", str(tmp_path))
    assert done.exit_code == 2 and "holds a run or a comparison" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_and_again(jobs: str, tmp_path: Path) -> None:
    grid = ["--grid", "local.lr=0.001,0.1", "--seeds", "0-1", "--jobs", jobs, "--out", str(tmp_path / "s")]
    done = call("sweep", *SMALL, *grid)
    assert done.exit_code == 0, done.stderr
    assert "run 4 of 4" in done.stderr
    result = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert [p["settings"]["local.lr"] for p in result["points"]] == ["0.1", "0.001"]  # best first
    assert result["points"][0]["accuracy_mean"] > result["points"][1]["accuracy_mean"]
    table = parquet.read_table(tmp_path / "s" / "sweep.parquet").to_pylist()
    assert [row["accuracy_mean"] for row in table] == [p["accuracy_mean"] for p in result["points"]]
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "s" / "runs").rglob("summary.json")}
    assert len(written) == 4
    again = call("sweep", *SMALL, *grid, "--report")
    assert again.exit_code == 0 and f"report: {tmp_path / 's' / 'report.html'}" in again.stdout
    assert "kin, local.lr=0.001" in (tmp_path / "s" / "report.html").read_text()
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "s" / "runs").rglob("summary.json")} == written


def test_a_wrong_value_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = call("sweep", *SMALL, "--grid", "local.lr=0.1,-1", "--out", str(tmp_path / "s"))
    assert done.exit_code == 2 and "local.lr=-1" in done.stderr and not (tmp_path / "s" / "runs").exists()
