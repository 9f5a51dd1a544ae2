"""Overrides on the command line, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfl.config import Config, ModelConfig
from clusterfl.errors import ConfigError

from .said import error


def test_overrides() -> None:
    def load(*overrides: str) -> Config:
        return Config.load(None, overrides)

    assert load("local.lr=0.05").local.lr == 0.05
    assert load("local.lr=1").local.lr == 1.0
    assert load("data.source=mnist").data.source == "mnist"
    assert load('data.source="mnist"').data.source == "mnist"
    assert load("data.shift=none").data.shift == "none"
    assert load("data.samples=none").data.samples is None
    assert load("data.alpha = 0.5").data.alpha == 0.5
    assert load("method.groups=3").method.groups == 3
    assert load("method.name=ifca", "method.start=independent").method.start == "independent"
    assert load("model.name=mlp", "model.widths=[8, 4]").model == ModelConfig("mlp", {"widths": (8, 4)})
    assert load("rounds=3", "rounds=4").rounds == 4
    assert load("data.clients=30", "data.source=folder:a=b").data.source == "folder:a=b"
    assert Config.load(None, seed=5).seed == 5
    assert Config.load(None, ["seed=3"], data_root="/x").data.root == "/x"


def test_another_method_or_model_leaves_the_files_parameters_behind(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[method]\nname = "ifca"\nk = 3\nstart = "independent"\n[model]\nname = "mlp"\nwidths = [5]\n')
    assert Config.load(path, ["method.name=fedavg"]).method.name == "fedavg"
    hyp = Config.load(path, ["method.name=hypcluster"]).method
    assert hyp.k == 3 and hyp.start == "loss-pp"
    assert Config.load(path, ["method.name=hypcluster", "method.k=2"]).method.k == 2
    assert Config.load(path, ["method.name=ifca"]).method.start == "independent"
    assert Config.load(path, ["model.name=mclr"]).model == ModelConfig("mclr", {})
    assert Config.load(path, ["model.name=mlp"]).model.params == {"widths": (5,)}


def test_overrides_that_contradict_each_other() -> None:
    assert "should not lie below" in error("local.lr=1", "local.lr.x=2")


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_no_override_does_anything_but_load_or_one_sentence(text: str) -> None:
    for override in (text, f"{text}=1", f"data.{text}=1", f"method.name={text}", f"local.lr={text}"):
        try:
            Config.load(None, [override])
        except ConfigError as e:
            assert "should" in str(e)


@pytest.mark.parametrize("text", ["rounds = ", "[data\n", "\x00", 'a = "\\q"'])
def test_broken_files_are_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.toml should be a TOML file"):
        Config.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"broken\.toml should be a TOML file"):
        Config.load(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="should be a TOML file that can be read"):
            Config.load(path)


def test_own_data_drops_the_demos_clients_and_rotations(tmp_path: Path) -> None:
    config = Config.load(None, ["data.source=table:t.csv", "data.unseen=1"])
    assert config.data.resolved_shift == "none" and config.data.clients == 0 and config.data.samples is None
    assert config.data.unseen == 1 and config.method.name == "kin"
    assert Config.load(None, ["data.source=mnist"]).data.samples == 60  # the demo on other digits
    own = "[data]\nsource = 'digits'\nclients = 5\nclusters = 1\n[method]\nname = 'fedavg'\n"
    (tmp_path / "c.toml").write_text(own)
    assert Config.load(tmp_path / "c.toml", ["data.source=table:t.csv"]).data.clients == 5  # what a user wrote stays
