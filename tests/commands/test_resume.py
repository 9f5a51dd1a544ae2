"""clusterfl resume: goes on, longer if asked, and only as what the run was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.folders import contents

from .calls import SMALL, call, words


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert call("run", *SMALL, "--out", str(tmp_path / "r"), "--quiet").exit_code == 0
    return tmp_path / "r"


def test_a_finished_run_is_left_alone_or_made_longer(run: Path, tmp_path: Path) -> None:
    before = contents(run)
    done = call("resume", str(run))
    assert done.exit_code == 0 and "is finished: 2 rounds; --set rounds=N goes on" in done.stdout
    summary = json.loads((run / "summary.json").read_text())
    assert json.loads(call("resume", str(run), "--json").stdout) == summary and contents(run) == before
    longer = call("resume", str(run), *words(["rounds=3"]), "--quiet")
    assert longer.exit_code == 0, longer.stderr
    assert call("run", *SMALL, *words(["rounds=3"]), "--out", str(tmp_path / "3"), "--quiet").exit_code == 0
    assert contents(run) == contents(tmp_path / "3")


def test_a_run_that_lost_its_end_goes_on(run: Path) -> None:
    before = contents(run)
    (run / "summary.json").unlink()
    (run / "metrics.parquet").unlink()
    assert call("resume", str(run), "--quiet").exit_code == 0 and contents(run) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("local.lr=0.3", "--set may change only rounds, engine.workers and checkpoint"),
        ("seed=9", "--set may change only rounds, engine.workers and checkpoint"),
        ("rounds=1", "rounds=1 should be at least the run's own, 2"),
    ],
)
def test_what_a_resume_may_not_change(change: str, said: str, run: Path) -> None:
    before = contents(run)
    done = call("resume", str(run), "--set", change)
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert contents(run) == before


def test_a_folder_that_is_no_runs(tmp_path: Path) -> None:
    done = call("resume", str(tmp_path))
    assert done.exit_code == 2 and "should be the folder of a run, with a config.toml" in done.stderr
    assert list(tmp_path.iterdir()) == []
