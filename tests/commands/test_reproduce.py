"""clusterfl reproduce: which cells are run, and which are not run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterfl.callback import Callback, Moment
from clusterfl.commands import reproduce as command
from clusterfl.commands.app import app
from clusterfl.reproduce.compare import compare
from clusterfl.reproduce.page import page
from clusterfl.reproduce.spec import load, load_all
from clusterfl.runs import run as runner
from tests.reproduce.tiny import TINY, made_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # unfinished cells lie in runs/ below the current folder
    return made_folder(tmp_path)


def run(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words, "--dir", str(folder)])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the simulations that were run."""
    labels: list[str] = []
    real = runner.carry_out

    def counted(*given: Any, callbacks: Any, **more: Any) -> Any:
        labels.append(callbacks[0].label.partition("] ")[2])
        return real(*given, callbacks=callbacks, **more)

    monkeypatch.setattr(runner, "carry_out", counted)
    return labels


def test_finished_cells_are_not_run_again(folder: Path, runs: list[str]) -> None:
    first = run(folder, "some.table1", "--seeds", "0", "--only", "ifca")
    assert first.exit_code == 0, first.output
    assert runs == ["some.table1, IFCA+2, R=1.0, seed 0"]
    again = run(folder, "some.table1", "--seeds", "0")
    assert again.exit_code == 0 and "3 cells: 1 finished, 2 to run" in again.output
    assert runs[1:] == ["some.table1, Global, R=0.5, seed 0", "some.table1, Global, R=1.0, seed 0"]
    assert run(folder, "some.table1", "--seeds", "0").exit_code == 0 and len(runs) == 3
    found = json.loads((folder / "some" / "results" / "table1-global-r-1.0-0.json").read_text())
    assert {"digest", "seed", "commit", "seconds", "scale", "version"} <= found.keys()
    assert 0 <= found["metrics"]["accuracy_mean"] <= 1 and [r for r, _ in found["curve"]] == [1, 2]
    assert "root" not in found["config"]["data"]  # where this machine keeps its data is nobody's business


def test_only_takes_a_row_by_its_name_and_a_method_by_its_own(folder: Path) -> None:
    (folder / "some" / "table1.toml").write_text(TINY.replace('name = "Global"\nmethod', 'name = "IFCA"\nmethod'))
    experiment = load(folder / "some" / "table1.toml")
    for only, names in (
        ("IFCA", {"IFCA"}),
        ("IFCA+2", {"IFCA+2"}),
        ("ifca", {"IFCA", "IFCA+2"}),
        ("ifca+2", {"IFCA+2"}),
    ):
        assert {cell.row.name for cell in command.wanted([experiment], "full", [0], only, None)} == names


def test_what_changed_is_run_again(folder: Path, runs: list[str]) -> None:
    run(folder, "some.table1", "--seeds", "0")
    path = folder / "some" / "table1.toml"
    path.write_text(TINY.replace("lr = 0.2", "lr = 0.3"))
    run(folder, "some.table1", "--seeds", "0")
    assert len(runs) == 4 and runs[3] == "some.table1, IFCA+2, R=1.0, seed 0"


def test_a_damaged_result_is_run_again(folder: Path, runs: list[str]) -> None:
    run(folder, "some.table1", "--seeds", "0", "--only", "ifca")
    (folder / "some" / "results" / "table1-ifca-plus-2-r-1.0-0.json").write_text('{"dig')
    run(folder, "some.table1", "--seeds", "0", "--only", "ifca")
    assert len(runs) == 2


def test_a_run_that_stands_in_two_tables_is_run_once(folder: Path, runs: list[str]) -> None:
    (folder / "some" / "table2.toml").write_text(TINY.replace('name = "Global"', 'name = "FedAvg"'))
    done = run(folder, "some", "--seeds", "0")
    assert done.exit_code == 0 and len(runs) == 3
    assert len(compare(load(folder / "some" / "table2.toml"), "full").results) == 3


def test_one_cell_that_cannot_run_does_not_stop_the_others(folder: Path, runs: list[str]) -> None:
    (folder / "some" / "table1.toml").write_text(TINY.replace('name = "fedavg"', 'name = "fedavgg"'))
    done = run(folder, "some.table1", "--seeds", "0")
    assert done.exit_code == 1 and "cannot run" in done.output and len(runs) == 1


class Stopped(Callback):
    """An interrupt at the end of a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, moment: Moment) -> None:
        if moment.round == self.after:
            raise KeyboardInterrupt


def test_an_interrupted_study_keeps_what_is_finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = runner.carry_out, [None]

    def stopped(*given: Any, **more: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*given, **more)

    monkeypatch.setattr(runner, "carry_out", stopped)
    assert run(folder, "some.table1", "--seeds", "0").exit_code == 130
    assert len(list((folder / "some" / "results").iterdir())) == 1
    assert "| `some.table1` |" in (folder.parent / "docs" / "reproduction.md").read_text()


def test_a_cell_that_was_interrupted_goes_on_at_its_last_round(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("some.table1", "--seeds", "0", "--only", "ifca")
    assert run(folder, *asked).exit_code == 0
    path = folder / "some" / "results" / "table1-ifca-plus-2-r-1.0-0.json"
    whole = json.loads(path.read_text())
    path.unlink()
    assert list(Path("runs", "reproduce").iterdir()) == [], "nothing is left of a cell that has ended"

    real = runner.carry_out
    went_on: list[bool] = []

    def watched(*given: Any, callbacks: Any, resume: bool, **more: Any) -> Any:
        went_on.append(resume)
        more["callbacks"] = [*callbacks, *([] if resume else [Stopped(after=1)])]
        return real(*given, resume=resume, **more)

    monkeypatch.setattr(runner, "carry_out", watched)
    assert run(folder, *asked).exit_code == 130 and not path.exists()
    assert run(folder, *asked).exit_code == 0 and went_on == [False, True]
    found = json.loads(path.read_text())
    for name in ("digest", "metrics", "curve", "data_sha256", "config"):
        assert found[name] == whole[name], name


def test_the_page_alone(folder: Path, runs: list[str]) -> None:
    done = run(folder, "--page-only")
    assert done.exit_code == 0 and not runs
    assert (folder.parent / "docs" / "reproduction.md").read_text() == page(load_all(folder))


def test_wrong_words(folder: Path, tmp_path: Path) -> None:
    assert "should be one of global, fedavg" in run(folder, "some.table1", "--only", "ifka").output
    assert "should be one of r-0.5, r-1.0" in run(folder, "some.table1", "--setting", "R=2").output
    nowhere = run(tmp_path / "docs", "--list")
    assert nowhere.exit_code == 2 and "checkout of the project" in nowhere.output


def test_list_json_and_setting(folder: Path, runs: list[str]) -> None:
    listed = run(folder, "--list")
    assert "some.table1  Turned digits:   3 cells a seed, 0 finished" in listed.output and not runs
    done = CliRunner().invoke(
        app, ["reproduce", "some.table1", "--seeds", "1", "--setting", "R=0.5", "--json", "-q", "--dir", str(folder)]
    )
    (found,) = json.loads(done.stdout)
    assert sum(found["verdicts"].values()) == 1 and found["seeds"] == [1] and len(runs) == 1


def test_an_option_that_is_new_since_a_result_counts_as_its_default(folder: Path, runs: list[str]) -> None:
    asked = ("some.table1", "--seeds", "0", "--only", "ifca")
    run(folder, *asked)
    path = folder / "some" / "results" / "table1-ifca-plus-2-r-1.0-0.json"
    found = json.loads(path.read_text())
    assert found["config"]["local"].pop("momentum") == 0.0  # as if momentum had come later
    path.write_text(json.dumps({**found, "digest": "of then"}))
    run(folder, *asked)
    assert len(runs) == 1
    toml = folder / "some" / "table1.toml"
    toml.write_text(toml.read_text().replace("[base.local]", "[base.local]\nmomentum = 0.5"))
    run(folder, *asked)
    assert len(runs) == 2, "a cell that asks for something new is another cell"
    path.write_text(json.dumps({**found, "config": {**found["config"], "gone": 1}}))
    run(folder, *asked)
    assert len(runs) == 3, "a result that cannot be read as a config any more is run again"
