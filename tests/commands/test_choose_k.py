"""clusterfl choose-k: a number where there are clusters, one sentence where the range cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterfl.commands.app import app


@pytest.mark.parametrize(("shift", "k"), [("rotate", 4), ("swap_labels", 4), ("none", 1)])
def test_digits(shift: str, k: int) -> None:
    found = CliRunner().invoke(app, ["choose-k", "--k", "1-6", "--set", f"data.shift={shift}", "--json"])
    assert found.exit_code == 0, found.output
    got = json.loads(found.stdout)
    assert got["k"] == k, got["reason"]
    assert [v["k"] for v in got["views"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("k", ["0-3", "1-99", "x"])
def test_an_impossible_range_is_one_sentence(k: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["choose-k", "--k", k])
    assert found.exit_code == 2 and found.stderr.count("\n") == 1 and "should" in found.stderr


@pytest.mark.parametrize(("shift", "k"), [("rotate", 4), ("none", 1)])
def test_evidence_needs_no_training(shift: str, k: int) -> None:
    found = CliRunner().invoke(app, ["choose-k", "--by", "kin", "--set", f"data.shift={shift}", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["k"] == k and json.loads(found.stdout)["runs"] == 0
