"""Results: recognised by what they depend on, for as long as it means the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterfl.config import Config
from clusterfl.reproduce.spec import SCALES, Cell, Experiment, load_all
from clusterfl.reproduce.store import Results, digest, modernised


def test_the_digest_is_of_what_decides_the_result(tiny: Experiment) -> None:
    cells = list(tiny.cells("full", [0, 1])) + list(tiny.cells("laptop", [0]))
    assert len({digest(c.config()) for c in cells}) == len(cells)
    one = cells[0].config()
    elsewhere = Config.parse(
        {**one.table(), "engine": {"name": "serial"}, "data": {**one.table()["data"], "root": "/x"}}
    )
    assert digest(elsewhere) == digest(one)
    assert digest(Config.parse({**one.table(), "rounds": 3})) != digest(one)


EXPERIMENTS = load_all(Path(__file__).parent.parent.parent / "experiments")
PAPERS = sorted({e.folder for e in EXPERIMENTS})


def cells_by_file(folder: Path) -> dict[str, list[Cell]]:
    """The cells of a paper's experiments, by the name of their result."""
    found: dict[str, list[Cell]] = {}
    for experiment in (e for e in EXPERIMENTS if e.folder == folder):
        for scale in SCALES:
            for cell in experiment.cells(scale, range(20)):
                found.setdefault(cell.path.name, []).append(cell)
    return found


@pytest.mark.parametrize("folder", PAPERS, ids=lambda folder: folder.name)
def test_every_committed_result_is_recognised_by_its_cell(folder: Path) -> None:
    """Whatever was renamed since: a finished cell is not run again, and is on the page."""
    results, cells = Results(folder), cells_by_file(folder)
    files = sorted((folder / "results").glob("*.json"))
    assert [path.name for path in files] == sorted(results.files), "every file can be read as a config of today"
    for path in files:
        assert len(cells.get(path.name, [])) == 1, f"{path.name} should belong to one cell"
        (cell,) = cells[path.name]
        assert cell.path.resolve() == path.resolve()
        found = results.of(cell)
        assert found is not None and found is results.files[path.name], f"{path.name} is not recognised by {cell.label}"


def test_no_result_lies_where_no_experiment_is() -> None:
    root = PAPERS[0].parent
    assert {path.parent for path in root.glob("*/results") if any(path.iterdir())} <= set(PAPERS)
    assert len(list(root.glob("*/results/*.json"))) > 50, "these tests are about something"


OLD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "fedavg", "weights": "size"}, {"name": "fedavg", "weights": "size"}),
    ({"name": "ifca", "k": 2, "init": "loss-pp"}, {"name": "ifca", "k": 2, "start": "loss-pp"}),
    ({"name": "md-icfl", "init_rounds": 2}, {"name": "md-icfl", "start_rounds": 2}),
    ({"name": "ifca", "aggregate": "mean", "attackers": 0.2}, {"name": "ifca", "aggregate": "mean"}),
    (
        {"name": "ifca", "aggregate": "krum", "attackers": 0.3},
        {"name": "ifca", "aggregate": {"name": "krum", "attackers": 0.3}},
    ),
    (
        {"name": "robust-tkm", "aggregate": "trimmed", "attackers": 0.1},
        {"name": "robust-tkm", "aggregate": {"name": "trimmed", "attackers": 0.1}, "attackers": 0.1},
    ),
    (
        {"name": "awcfl", "base": {"name": "ifca", "init": "independent", "aggregate": "median", "attackers": 0.2}},
        {"name": "awcfl", "base": {"name": "ifca", "start": "independent", "aggregate": "median"}},
    ),
]


@pytest.mark.parametrize(("old", "new"), OLD, ids=lambda table: table["name"])
def test_configs_of_older_results_mean_what_they_meant(old: dict[str, Any], new: dict[str, Any]) -> None:
    found = modernised({"rounds": 3, "method": old})
    assert found == {"rounds": 3, "method": new}
    Config.parse(found)
    assert modernised(found) == found, "today's words stay as they are"
