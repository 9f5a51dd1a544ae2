"""The papers' own settings: what each paper lists, in Python, in a config, on the command line and in a comparison."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

import clusterfl
from clusterfl.config import Config
from clusterfl.errors import ConfigError
from clusterfl.methods import METHODS, KMeans
from clusterfl.methods.presets import PAPER, preset
from clusterfl.parts.local import SGD

# as the papers list them, section by section
LISTED: dict[str, dict[str, Any]] = {
    "md-icfl": {
        "start": "independent",  # 3.4: "initialize K cluster model parameters and cluster identities randomly"
        "warmup": 0,
        "privacy": "weak",
        "samples": 30,  # section 4
        "iterations": None,  # 100 and 1000, by the sampler
        "penalty": 0.1,
        "prior_mean": 0.5,  # section 5
        "squared": False,
        "generator_batch": 100,
        "generator_noise": 16,
        "warm": False,
    },
    "fedds": {"start": "independent", "warmup": 0, "weights": "size"},
    "feddsmic": {
        "start": "independent",
        "warmup": 0,
        "weights": "size",  # eq. 17
        "inner_lr": 0.01,
        "independent": True,  # eq. 14
        "personal_steps": 1,  # section 4.3
    },
    "fcca": {"recipe": "literal", "order": "encoder-first", "warmup": 0, "centred": False, "alpha": 1.0, "prox": 0.0},
    "fesem": {"start": "kmeans-local", "by_size": True, "weights": "uniform", "distance_layers": "all"},
    "awcfl": {"beta": 0.5, "mix_for": "both", "base": KMeans()},
    "mcfl": {"base": KMeans(), "feature": "pixels", "norm": "l1", "download": "each-round"},
    "ifca": {"start": "independent", "weights": "uniform"},
    "hypcluster": {"start": "independent"},
    "cfl": {"relative": False, "eps1": 0.4, "eps2": 1.6, "gap": None, "start_round": 20, "linkage": "single"},
    "feddist": {"eps": 0.6},
    "fedprox": {"mu": 0.1},
    "fedfomo": {"models": 5, "epsilon": 0.3, "epsilon_decay": 0.05, "validation": 0.2},
}
LOCAL = {
    "md-icfl": SGD(lr=0.1, batch=50),
    "fedds": SGD(lr=0.01, momentum=0.9, batch=32, steps=20),
    "feddsmic": SGD(lr=0.01, momentum=0.9, batch=32, steps=20),
    "fcca": SGD(lr=0.01, batch=64, steps=20),
}


def test_every_method_has_one() -> None:
    assert PAPER.keys() <= METHODS.keys()
    of_the_papers = {"md-icfl", "fedds", "feddsmic", "fcca", "fesem", "awcfl", "mcfl"}
    baselines = {"local", "fedavg", "fedprox", "ifca", "per-fedavg", "fedper", "fedfomo", "cfl", "fl-hc", "hypcluster"}
    assert of_the_papers | baselines | {"feddist", "feddws", "feddane", "fedsgd", "robust-tkm"} <= PAPER.keys()


@pytest.mark.parametrize("name", PAPER)
def test_it_is_what_the_paper_lists(name: str) -> None:
    method = preset(name)
    for field, value in LISTED.get(name, {}).items():
        assert getattr(method, field) == value, field
    assert getattr(method, "local", SGD()) == LOCAL.get(name, SGD())
    if name not in LISTED:
        assert method == METHODS[name]()


@pytest.mark.parametrize("name", PAPER)
def test_a_config_says_the_same_and_writes_it_out(name: str) -> None:
    config = Config.parse({"method": {"name": name, "preset": "paper"}})
    assert config.method == preset(name)
    assert Config.parse(tomllib.loads(config.toml())) == config
    assert "preset" not in config.table()["method"]


def test_fields_go_on_top() -> None:
    assert preset("md-icfl", k=6, warmup=2).hyper() == {**preset("md-icfl").hyper(), "k": 6, "warmup": 2}
    table = {"name": "feddsmic", "preset": "paper", "k": 3, "warmup": 2}
    config = Config.parse({"method": table, "local": {"lr": 0.5, "epochs": 2}})
    assert config.local == SGD(lr=0.5, momentum=0.9, batch=32, epochs=2)  # of epochs and steps, the one that is given
    assert config.method == preset("feddsmic", k=3, warmup=2, local=config.local)
    mixed = Config.parse({"method": {"name": "awcfl", "preset": "paper", "base": {"k": 2}}}).method
    assert mixed == preset("awcfl", base=KMeans(k=2))
    other = Config.parse({"method": {"name": "awcfl", "preset": "paper", "base": {"name": "ifca"}}}).method
    assert other.base.name == "ifca" and other.mix_for == "both"


def test_on_the_command_line_it_beats_the_file_and_is_beaten_by_what_stands_beside_it(tmp_path: Any) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[method]\nname = "feddsmic"\nk = 2\nwarmup = 7\n[local]\nlr = 0.3\nepochs = 4\nlr_decay = 0.9\n')
    config = Config.load(file, ["method.preset=paper", "local.batch=8"])
    assert (config.method.warmup, config.method.k) == (0, 2)  # type: ignore[attr-defined]
    assert config.local == SGD(lr=0.01, momentum=0.9, batch=8, steps=20, lr_decay=0.9)
    assert Config.load(file, ["method.preset=paper", "method.warmup=1"]).method.warmup == 1  # type: ignore[attr-defined]


def test_a_comparison_has_both_beside_each_other() -> None:
    base = Config.load(None, ["method.name=ifca", "method.k=3"])
    assert base.with_method("ifca@paper").method == preset("ifca", k=3, local=base.local)
    assert base.with_method("awcfl@paper").method.base == KMeans(k=3, local=base.local)  # type: ignore[attr-defined]
    own = Config.parse({**base.table(), "methods": {"md-icfl": {"samples": 4}}})
    assert own.with_method("md-icfl@paper").method == preset("md-icfl", k=3, samples=4, local=base.local)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "ifca", "preset": "papr"}, "method.preset='papr' should be a known preset; did you mean 'paper'?"),
        ({"name": "ifca", "preset": 3}, "method.preset=3 should be a known preset"),
        ({"name": "ifca", "preset": "paper", "kk": 2}, "did you mean 'method.k'?"),
    ],
)
def test_what_cannot_be_is_one_sentence(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="should") as caught:
        Config.parse({"method": table})
    assert said in str(caught.value)


def test_the_package_offers_it() -> None:
    assert clusterfl.preset("ifca", "paper").start == "independent"  # type: ignore[attr-defined]
