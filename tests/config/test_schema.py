"""The config: what is right loads and comes back."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.methods import Kin
from clusterfl.models import MODELS


def test_the_demo_loads_and_comes_back() -> None:
    demo = Config.load()
    assert demo.method == Kin(local=demo.local) and demo.data.clients == 24
    assert Config.parse(tomllib.loads(demo.toml())) == demo


def test_the_demo_tells_the_number_of_groups_to_those_who_need_it() -> None:
    """`make demo` compares them; README says who was told."""
    demo = Config.load()
    told = {name: getattr(demo.variant(name).method, "k", None) for name in ("ifca", "kin", "md-icfl")}
    assert told == {"ifca": demo.data.clusters, "kin": None, "md-icfl": demo.data.clusters}
    assert demo.variant("kin").method.groups is None  # type: ignore[attr-defined]


def test_an_empty_table_is_a_config() -> None:
    assert Config.parse({}) == Config() and Config().method.name == "kin"


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back(name: str) -> None:
    config = Config.parse({"model": {"name": name}})
    assert Config.parse(tomllib.loads(config.toml())) == config
    assert config.model.params == MODELS[name].params


configs = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**62),
        "rounds": st.integers(1, 1000),
        "participation": st.floats(0.001, 1) | st.just(1),
        "eval_every": st.integers(1, 9),
        "data": st.fixed_dictionaries(
            {"clients": st.integers(4, 50)},
            optional={
                "alpha": st.floats(0.01, 100),
                "samples": st.integers(2, 500) | st.just("none"),
                "test_samples": st.integers(10, 500) | st.just("none"),
                "unseen": st.integers(0, 5),
                "angles": st.lists(st.integers(0, 359), min_size=4, max_size=4),
                "sizes": st.sampled_from(["equal", "lognormal"]),
                "reuse": st.booleans(),
            },
        ),
        "local": st.fixed_dictionaries(
            {},
            optional={
                "lr": st.floats(1e-6, 10) | st.integers(1, 3),
                "momentum": st.floats(0, 0.99),
                "steps": st.integers(1, 99),
                "batch": st.integers(1, 99),
                "clip": st.floats(0.1, 10),
            },
        ),
        "model": st.fixed_dictionaries({"name": st.just("mlp")}, optional={"widths": st.lists(st.integers(1, 99))}),
        "method": st.fixed_dictionaries(
            {"name": st.sampled_from(["ifca", "hypcluster"])},
            optional={"k": st.integers(1, 4), "start": st.sampled_from(["loss-pp", "independent", "kmeans-local"])},
        ),
        "methods": st.just({"ifca": {"k": 3}}),
        "engine": st.fixed_dictionaries(
            {}, optional={"name": st.sampled_from(["serial", "stacked", "pool", "wire"]), "workers": st.integers(1, 9)}
        ),
    },
)


@given(configs)
@settings(max_examples=100, deadline=None)
def test_configs_come_back(table: dict[str, Any]) -> None:
    config = Config.parse(table)
    again = Config.parse(tomllib.loads(config.toml()))
    assert again == config and again.toml() == config.toml()


def test_a_default_task_is_not_written_so_that_digests_stay() -> None:
    """Runs of before there was a choice of loss, optimiser or schedule are still the same runs."""
    assert "task" not in Config().table() and not {"optimizer", "schedule"} & Config().table()["local"].keys()
    named = Config.parse({"task": {"loss": "cross-entropy"}, "local": {"optimizer": "sgd"}})
    assert named == Config() and named.digest() == Config().digest()


@pytest.mark.parametrize(
    "table",
    [
        {"task": {"loss": "mse"}},
        {"task": {"loss": "huber", "metric": "mae"}},
        {"task": {"class_weights": [1.0, 2.5], "metric": "f1"}},
        {"local": {"optimizer": "adam"}},
        {"local": {"optimizer": {"name": "adamw", "beta2": 0.99}, "weight_decay": 0.01}},
        {"local": {"schedule": {"name": "cosine", "rounds": 20, "warmup": 2}}},
        {"local": {"schedule": "warm-up"}},
        {"local": {"schedule": {"name": "step", "every": 3, "times": 0.5}}},
    ],
    ids=str,
)
def test_tasks_optimisers_and_schedules_come_back(table: dict[str, Any]) -> None:
    config = Config.parse(table)
    assert Config.parse(tomllib.loads(config.toml())) == config and config.digest() != Config().digest()
    assert config.method.local == config.local  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"task": {"loss": "l2"}}, "task.loss='l2' should be one of 'cross-entropy', 'mse', 'mae', 'huber'"),
        ({"task": {"loss": "mse", "metric": "accuracy"}}, "task.metric='accuracy' should be one of 'rmse'"),
        ({"task": {"loss": "mse", "class_weights": [1.0]}}, "class_weights should come with loss='cross-entropy'"),
        ({"local": {"optimizer": "adm"}}, "local.optimizer='adm' should be one of 'sgd', 'adam', 'adamw'"),
        ({"local": {"optimizer": {"name": "adam", "beta1": 1}}}, "local.optimizer.beta1=1.* should be at least 0"),
        ({"local": {"schedule": "linear"}}, "local.schedule='linear' should be one of 'warm-up', 'cosine', 'step'"),
        (
            {"task": {"loss": "mse"}, "method": {"name": "fcca"}},
            "method.name='fcca' should be a method that needs no classes where targets are numbers: fcca learns a flow",
        ),
    ],
)
def test_what_cannot_be_learnt(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Config.parse(table)
