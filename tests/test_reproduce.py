"""Experiments, their cells and results, on a small made-up folder; then the experiments that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterfl import reproduce
from clusterfl.cli import app
from clusterfl.commands import reproduce as command
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS
from clusterfl.reproduce import Cell, Experiment, Figure, Results, compare, digest, load, load_all, select, slug

HERE = Path(__file__).parent.parent / "experiments"

TINY = """
citation = "Some, A paper, 2020"
title = "Turned digits"
metrics = ["accuracy_mean", "ari"]
notes = ["The step size is not given."]

[base]
rounds = 2
[base.data]
source = "digits"
clients = 6
clusters = 2
samples = 12
test_samples = 20
[base.local]
lr = 0.1
batch = 6

[scale.laptop]
rounds = 1

[[settings]]
name = "R=0.5"
config = { participation = 0.5 }

[[settings]]
name = "R=1.0"
scale.laptop.data = { samples = 8 }

[[rows]]
name = "Global"
method = { name = "fedavg" }
paper = { "R=0.5" = [10.0], "R=1.0" = [99.9] }

[[rows]]
name = "IFCA+2"
method = { name = "ifca", k = 2 }
config = { local = { lr = 0.2 } }
paper = { "R=1.0" = ["-", -1.0] }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiments" / "some").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "experiments" / "some" / "table1.toml").write_text(TINY)
    return tmp_path / "experiments"


@pytest.fixture
def tiny(folder: Path) -> Experiment:
    return load(folder / "some" / "table1.toml")


def run(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words, "--dir", str(folder)])


def result(cell: Cell, **metrics: float | None) -> dict[str, Any]:
    config = cell.config()
    return {
        "digest": digest(config),
        "seed": cell.seed,
        "seconds": 7.0,
        "metrics": metrics,
        "config": reproduce.decisive(config),
    }


# -- experiments and cells -------------------------------------------------------------------------------


def test_cells_are_where_the_paper_has_figures_seed_by_seed(tiny: Experiment) -> None:
    cells = [(c.seed, c.setting.name, c.row.name) for c in tiny.cells("full", [0, 1])]
    one = [("R=0.5", "Global"), ("R=1.0", "Global"), ("R=1.0", "IFCA+2")]
    assert cells == [(seed, *rest) for seed in (0, 1) for rest in one]


def test_a_cells_config_is_the_base_then_row_setting_scale_and_seed(tiny: Experiment) -> None:
    config = {(c.setting.name, c.row.name): c.config() for c in tiny.cells("full", [5])}
    assert config["R=0.5", "Global"].participation == 0.5 and config["R=1.0", "Global"].participation == 1.0
    assert config["R=1.0", "IFCA+2"].local.lr == 0.2 and config["R=1.0", "Global"].local.lr == 0.1
    assert all(c.seed == 5 and c.rounds == 2 for c in config.values())
    laptop = {(c.setting.name, c.row.name): c.config() for c in tiny.cells("laptop", [5])}
    assert all(c.rounds == 1 for c in laptop.values())
    assert [laptop[s, "Global"].data.samples for s in ("R=0.5", "R=1.0")] == [12, 8]


def test_file_names(tiny: Experiment) -> None:
    full, laptop = ([c.path.name for c in tiny.cells(scale, [3])] for scale in ("full", "laptop"))
    assert full == ["table1-global-r-0.5-3.json", "table1-global-r-1.0-3.json", "table1-ifca-plus-2-r-1.0-3.json"]
    assert laptop[0] == "table1-global-r-0.5-3-laptop.json"
    assert slug("FCCA+Per+Prox") != slug("FCCA Per Prox") and slug("FeSEM(2)") == "fesem-2"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('metrics = ["accuracy_mean"', 'metrics = ["acuracy_mean"'), "did you mean 'accuracy_mean'"),
        (('paper = { "R=0.5"', 'paper = { "R=0.6"'), "did you mean 'R=0.5'"),
        (('"R=1.0" = [99.9]', '"R=1.0" = [99.9, 1.0, 2.0]'), "should be one figure per metric"),
        (('name = "IFCA+2"', 'name = "global"'), "should be there once"),
        (("[scale.laptop]", "[scale.desktop]"), "should be a known scale"),
        (('title = "Turned digits"', ""), "title should be given"),
        (('title = "', 'titel = "x"\ntitle = "'), "did you mean 'title'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(folder: Path, change: tuple[str, str], said: str) -> None:
    path = folder / "some" / "table1.toml"
    path.write_text(TINY.replace(*change))
    with pytest.raises(ConfigError, match=r"some/table1.toml: ") as error:
        load(path)
    assert said in str(error.value)


def test_select_by_name_paper_or_beginning(folder: Path) -> None:
    for name in ("table2-mnist", "table2-cifar", "table10"):
        (folder / "some" / f"{name}.toml").write_text(TINY)
    every = load_all(folder)
    assert [e.table for e in every] == ["table1", "table2-cifar", "table2-mnist", "table10"]
    assert [e.table for e in select(every, "some.table2")] == ["table2-cifar", "table2-mnist"]
    assert [e.table for e in select(every, "some.table1")] == ["table1"]
    assert len(select(every, "some")) == 4
    with pytest.raises(ConfigError, match=r"did you mean 'some\.table1'"):
        select(every, "some.table11")


# -- running and resuming --------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the simulations that were run."""
    labels: list[str] = []
    real = command.simulate

    def counted(built: Any, shown: Any, label: str) -> Any:
        labels.append(label.partition("] ")[2])
        return real(built, shown, label)

    monkeypatch.setattr(command, "simulate", counted)
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


def test_an_interrupted_study_keeps_what_is_finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = command.simulate, [None]

    def stopped(*given: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*given)

    monkeypatch.setattr(command, "simulate", stopped)
    assert run(folder, "some.table1", "--seeds", "0").exit_code == 130
    assert len(list((folder / "some" / "results").iterdir())) == 1
    assert "| `some.table1` |" in (folder.parent / "docs" / "reproduction.md").read_text()


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
    assert found["compared"] == 1 and found["seeds"] == [1] and len(runs) == 1


# -- results and the counting rule -----------------------------------------------------------------------


def test_the_digest_is_of_what_decides_the_result(tiny: Experiment) -> None:
    cells = list(tiny.cells("full", [0, 1])) + list(tiny.cells("laptop", [0]))
    assert len({digest(c.config()) for c in cells}) == len(cells)
    one = cells[0].config()
    elsewhere = Config.parse(
        {**one.table(), "engine": {"name": "serial"}, "data": {**one.table()["data"], "root": "/x"}}
    )
    assert digest(elsewhere) == digest(one)
    assert digest(Config.parse({**one.table(), "rounds": 3})) != digest(one)


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


@pytest.mark.parametrize(
    ("metric", "paper", "ours", "void", "reproduced"),
    [
        ("accuracy_mean", 90.0, (88.5,), 0, True),
        ("accuracy_mean", 90.0, (88.4,), 0, False),
        ("accuracy_mean", 90.0, (99.0,), 0, True),
        ("accuracy_mean", 90.0, (80.0, 97.0), 0, True),
        ("ari", 0.95, (0.9,), 0, True),
        ("ari", 0.95, (0.89,), 0, False),
        ("accuracy_mean", None, (99.0,), 0, None),
        ("accuracy_mean", 90.0, (), 0, None),
        ("inter_accuracy", 45.0, (), 2, False),
        ("inter_accuracy", 45.0, (50.0,), 1, False),
        ("bytes_up", 5.0, (4.0,), 0, None),
    ],
)
def test_counting_rule(
    metric: str, paper: float | None, ours: tuple[float, ...], void: int, reproduced: bool | None
) -> None:
    assert Figure("a", "b", metric, paper, ours, void).reproduced is reproduced


def test_comparison_is_over_seeds_in_the_papers_unit(tiny: Experiment) -> None:
    for seed, accuracy in ((0, 0.08), (4, 0.10)):
        cell = next(c for c in tiny.cells("full", [seed]))
        reproduce.write_result(cell, result(cell, accuracy_mean=accuracy, ari=None))
    found = compare(tiny, "full")
    figure = found.figures[0]
    assert (figure.row, figure.setting, figure.paper) == ("Global", "R=0.5", 10.0)
    assert figure.ours == pytest.approx((8.0, 10.0)) and figure.mean == pytest.approx(9.0)
    assert figure.text == "9.00 ± 1.41 / 10 ✓"
    assert (found.reproduced, found.compared, found.seeds) == (1, 1, [0, 4])
    assert found.count == "1 of 1 figures reproduced, 2 seeds"
    assert compare(tiny, "laptop").results == ()
    other = list(tiny.cells("full", [0]))[1]
    reproduce.write_result(other, result(other, accuracy_mean=0.5))
    assert compare(tiny, "full").count == "1 of 2 figures reproduced, 1 to 2 seeds"


# -- the page --------------------------------------------------------------------------------------------


def test_page(folder: Path, tiny: Experiment) -> None:
    for cell in tiny.cells("full", [0]):
        reproduce.write_result(cell, result(cell, accuracy_mean=0.5, ari=0.25))
    laptop = next(c for c in tiny.cells("laptop", [0]))
    reproduce.write_result(laptop, result(laptop, accuracy_mean=0.01, ari=0.0))
    (folder / "some" / "notes.md").write_text("The order of methods is the paper's.\n")
    (folder / "some" / "fig2.toml").write_text(
        'citation = "x"\ntitle = "A drawing"\nkind = "figure"\nuses = "some.table1"\nreport = "a.b:draw"\n'
    )
    done = run(folder, "--page-only")
    assert done.exit_code == 0
    text = (folder.parent / "docs" / "reproduction.md").read_text()
    assert "**At full scale 2 of 3 figures are reproduced.**" in text
    assert "**At laptop scale 0 of 1 figures are reproduced.**" in text
    assert "| Global | 50.00 / 10 ✓ | 25.00" not in text  # ARI is 0.25, not 25 points
    assert "| Global | 50.00 / 10 ✓ | 0.25 / – | 50.00 / 99.9 | 0.25 / – |" in text
    assert "| IFCA+2 |  |  | 50.00 / – | 0.25 / -1 ✓ |" in text
    assert "clusterfl reproduce some.table1 --scale full --seeds 0" in text
    assert "- The step size is not given." in text and "The order of methods is the paper's." in text
    assert "Drawn from the results of `some.table1`." in text and "Drawn by `a.b:draw`." in text
    assert reproduce.page(load_all(folder)) == text  # nothing in it changes by itself


# -- the experiments that there are ----------------------------------------------------------------------

FILES = sorted(HERE.glob("*/*.toml"))


def names(method: dict[str, Any]) -> set[str]:
    nested = [names(v) for v in method.values() if isinstance(v, dict)]
    return {method["name"]}.union(*nested) if "name" in method else set().union(*nested)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_every_experiment_has_valid_configs_at_all_scales(path: Path) -> None:
    experiment, missing = load(path), set()
    for scale in reproduce.SCALES:
        cells = list(experiment.cells(scale, [0]))
        assert len({c.path for c in cells}) == len(cells)
        for cell in cells:
            unknown = names(cell.row.method) - METHODS.keys()
            if unknown:
                missing |= unknown
            else:
                cell.config()
    assert experiment.rows or experiment.notes
    if missing:
        pytest.skip(f"rows of methods that are not there yet: {', '.join(sorted(missing))}")


def test_figures_name_what_they_are_drawn_from() -> None:
    every = load_all(HERE)
    known = {e.name for e in every}
    assert all(e.uses in known for e in every if e.uses)
    for e in every:
        if e.report:
            module, _, function = e.report.partition(":")
            assert hasattr(pytest.importorskip(module), function)


def test_results_that_are_there_belong_to_cells() -> None:
    """A result whose cell is gone, or has another config by now, is on no page."""
    for folder in {path.parent for path in FILES}:
        mine = [load(path) for path in folder.glob("*.toml")]
        seen = {c.path.name for e in mine for scale in reproduce.SCALES for c in e.cells(scale, range(20))}
        assert set(Results(folder).files) <= seen
