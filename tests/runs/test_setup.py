"""A run put together from its config, and what only the data can tell."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from clusterfl.config import Config
from clusterfl.engines import Serial
from clusterfl.engines.wrappers import Wrapper, wrapper_of
from clusterfl.engines.wrappers.attack import Attack
from clusterfl.engines.wrappers.clip import Clip
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.engines.wrappers.privacy import Private
from clusterfl.errors import ClusterflError, ConfigError, DataError
from clusterfl.runs.setup import prepare
from clusterfl.testing.small import small_population, small_task


def test_the_resolved_config_comes_back() -> None:
    found = prepare(Config.load(None, ["data.samples=10", "engine.name=pool", "engine.workers=1"])).config
    assert Config.parse(tomllib.loads(found.toml())) == found
    assert found.data.test == "balanced" and found.engine.stacked is True


def test_a_missing_dataset_and_an_unknown_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^data\.source='mnist' should have .*mnist\.npz"):
        prepare(Config.load(None, ["data.source=mnist"], data_root=tmp_path))
    with pytest.raises(ClusterflError, match="did you mean 'mnist'"):
        prepare(Config.load(None, ["data.source=mnits"]))


def test_a_model_that_does_not_fit_the_data() -> None:
    with pytest.raises(ConfigError, match=r"^model\."):
        prepare(Config.load(None, ["model.name=lenet", "model.padding=7"]))


def test_every_table_is_used() -> None:
    config = Config.load(None, ["engine.name=serial", "data.indicators=2", "data.samples=20", "seed=3", "rounds=2"])
    with prepare(config).simulation() as simulation:
        assert simulation.schedule.seed == 3 and simulation.schedule.rounds == 2
        assert simulation.population.clients == 24 and simulation.method is config.method
        public = simulation.engine.task.public
        assert public is not None and public.shape == (20, 1, 8, 8)
        assert config.population().digest == simulation.population.digest


def test_what_is_given_takes_the_place_of_what_the_config_says() -> None:
    """The caller's clients and model are used as they are; neither is changed."""
    config = Config.load(None, ["engine.name=serial", "data.source=nowhere", "method.name=ifca", "method.k=2"])
    population, task = small_population(), small_task().with_public(None)
    setup = prepare(config, population, task)
    assert setup.population is population and task.public is None
    assert setup.task.module is task.module and setup.task.public is not None, "the population's public samples"
    with setup.simulation() as simulation:
        assert simulation.population is population and simulation.engine.task is setup.task


def test_wrappers_are_in_the_order_in_which_a_reply_meets_them() -> None:
    """Honest clients blur, attackers falsify, the server checks, then cuts."""
    pytest.importorskip("dp_accounting")
    asked = ["engine.name=serial", "privacy.clip=1.0", "attack.kind=scale", "engine.clip_updates=2.0"]
    setup = prepare(Config.load(None, [*asked, "data.samples=10"]))
    with setup.engine() as engine:
        found: list[type] = []
        inner: Any = engine
        while isinstance(inner, Wrapper):
            found.append(type(inner))
            inner = inner.inner
        assert found == [Clip, Guard, Attack, Private] and isinstance(inner, Serial)
        attack = wrapper_of(engine, Attack)
        assert attack is not None and attack.ids.tolist() == setup.attackers.tolist() != []
    bare = prepare(Config.load(None, ["engine.name=serial", "engine.guard=false", "data.samples=10"]))
    with bare.engine() as engine:
        assert isinstance(engine, Serial)


def test_k_above_the_clients_that_there_are_is_refused_before_anything_starts() -> None:
    config = Config.load(None, ["data.clients=30", "method.name=ifca", "method.k=20"])
    with pytest.raises(ConfigError, match=r"method\.k=20 should be at most the number of clients"):
        prepare(config, small_population(), small_task())
