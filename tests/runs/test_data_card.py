"""A run's folder knows who its clients are, and whether its config is all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import clusterfl
from clusterfl.config import Config
from clusterfl.errors import ConfigError, DataError
from clusterfl.methods import IFCA, FedAvg
from clusterfl.runs.data_card import check_rebuildable, read_data_card
from clusterfl.testing.small import small_population
from tests.folders import contents
from tests.hospitals import NAMES, hospital_run
from tests.runs.python_runs import LOCAL, module, run


def test_a_run_from_a_config_can_be_rebuilt_and_one_from_python_cannot(tmp_path: Path) -> None:
    folder = hospital_run(tmp_path, "rounds=1", "data.unseen=2")
    card = read_data_card(folder)
    assert card is not None and card["from_python"] == []
    assert card["clients"] == NAMES[:6] and card["unseen"] == NAMES[6:]
    check_rebuildable(folder, "")
    run(tmp_path / "python", FedAvg(local=LOCAL), rounds=1)
    with pytest.raises(ConfigError, match="was started from Python with its own data and model; go on there"):
        check_rebuildable(tmp_path / "python", "go on there")


def test_a_method_that_only_borrows_a_name_is_not_the_configs(tmp_path: Path) -> None:
    class Mine(IFCA):
        pass

    config = Config.load(None, ["rounds=1", "data.clients=4", "data.samples=10", "engine.name=serial"])
    clusterfl.run(config.model_copy(update={"method": Mine(k=2, local=config.local)}), out=tmp_path)
    card = read_data_card(tmp_path)
    assert card is not None and card["from_python"] == ["method"]


def test_a_config_alone_never_touches_results_that_came_from_python(tmp_path: Path) -> None:
    run(tmp_path, FedAvg(local=LOCAL), rounds=2)
    before = contents(tmp_path)
    config = Config.load(tmp_path / "config.toml")
    for resume in (True, False):
        with pytest.raises(ConfigError, match="started from Python with its own population and model; go on there"):
            clusterfl.run(config, out=tmp_path, resume=resume)
    assert contents(tmp_path) == before
    again = clusterfl.run(
        small_population(), module(), FedAvg(local=LOCAL), rounds=2, engine="serial", out=tmp_path, resume=True
    )
    assert len(again.records) == 3 and contents(tmp_path) == before


def test_a_damaged_card_is_named(tmp_path: Path) -> None:
    assert read_data_card(tmp_path) is None  # an older version's run
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(DataError, match=r"data\.json should be what `clusterfl run` wrote"):
        read_data_card(tmp_path)
