"""Experiments and their cells: configs, names, and what is wrong in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS
from clusterfl.reproduce.spec import SCALES, Experiment, load, load_all, select, slug
from tests.reproduce.tiny import TINY

HERE = Path(__file__).parent.parent.parent / "experiments"
FILES = sorted(HERE.glob("*/*.toml"))


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


def names(method: dict[str, Any]) -> set[str]:
    nested = [names(v) for v in method.values() if isinstance(v, dict)]
    return {method["name"]}.union(*nested) if "name" in method else set().union(*nested)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_every_experiment_has_valid_configs_at_all_scales(path: Path) -> None:
    experiment, missing = load(path), set()
    for scale in SCALES:
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
