"""A method chosen by its name alone runs on the demo, and what was changed for it is said."""

from __future__ import annotations

import logging

import pytest

import clusterfl
from clusterfl.config import Config
from clusterfl.methods import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_on_the_demo(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = Config.load(
        None, [f"method.name={name}", "rounds=1", "engine.name=serial", "data.clients=8", "data.samples=20"]
    )
    outcome = clusterfl.run(config)
    assert outcome.accuracy.mean > 0.05
    for need in METHODS[name].needs:
        assert f"{name} needs" in caplog.text and need.split()[-1] in caplog.text


def test_what_a_user_chose_is_left_alone() -> None:
    config = Config.load(None, ["method.name=fedds", "data.indicators=3"])
    assert config.data.indicators == 3
    assert Config.load(None, ["method.name=fedper", "model.name=mlp"]).model.params["widths"] == (200,)
    assert Config.load(None, ["method.name=ifca"]).data.indicators == 0


def test_a_clustering_after_the_last_round_is_said(caplog: pytest.LogCaptureFixture) -> None:
    small = ["rounds=2", "engine.name=serial", "data.clients=4", "data.samples=10"]
    clusterfl.run(Config.load(None, ["method.name=cfl", *small]))
    assert "method.start_round=5 should be below rounds=2" in caplog.text
    caplog.clear()
    clusterfl.run(Config.load(None, ["method.name=cfl", "method.start_round=1", *small]))
    assert "should be below rounds" not in caplog.text
