"""The folder of a run: whose it is, who may use it, and what of it survives another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from clusterfl.config import Config
from clusterfl.engines.config import EngineConfig
from clusterfl.errors import ClusterflError, ConfigError
from clusterfl.runs.folder import (
    can_resume,
    check_free,
    clear,
    config_of,
    exclusive,
    same_run,
    summary_of,
    taken_up,
    write_config,
)


def config(*overrides: str) -> Config:
    return Config.load(None, ["engine.name=serial", *overrides])


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with exclusive(folder):
        assert folder.is_dir()
        with pytest.raises(ClusterflError, match="is in use by another run"), exclusive(folder):
            pytest.fail("two owners")
    assert not folder.exists(), "nothing came of it"
    with exclusive(folder):
        (folder / "kept").touch()
    assert [p.name for p in folder.iterdir() if p.name[0] != "."] == ["kept"]
    with exclusive(folder):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="should be a folder, but is a file"), exclusive(tmp_path / "file"):
        pytest.fail("a file")


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for use in (lambda folder: check_free(folder, config()), lambda folder: exclusive(folder).__enter__()):
        with pytest.raises(ConfigError, match=r"file/x should be a folder, but .*file is a file"):
            use(tmp_path / "file" / "x")
        with pytest.raises(ConfigError, match=r"out=.{50,110} should be a folder that can be written, but: File name"):
            use(tmp_path / ("n" * 300))

    def denied(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(ConfigError, match="should be a folder that can be written, but: Permission denied"):
        exclusive(tmp_path / "new").__enter__()


def test_a_config_that_is_no_text_is_another_runs(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="holds another run"):
        check_free(tmp_path, config())
    (tmp_path / "config.toml").unlink()
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml should be a file that can be read, but: Is a directory"):
        check_free(tmp_path, config())


def test_a_folder_that_is_removed_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    said = r"could not be written .*make its folder one that is there"
    with pytest.raises(ClusterflError, match=said), exclusive(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
        write_config(tmp_path / "run", config())


@pytest.mark.parametrize(
    ("change", "same", "resumed"),
    [
        ("engine.name=stacked", True, True),
        ("engine.workers=3", True, True),
        ("engine.clip_updates=1.0", False, False),
        ("data.root=/elsewhere", True, True),
        ("rounds=9", False, True),
        ("checkpoint.every=5", False, True),
        ("methods.fedavg.weights=uniform", False, True),
        ("seed=1", False, False),
        ("local.lr=0.3", False, False),
        ("method.groups=3", False, False),
        ("data.samples=9", False, False),
        ("privacy.clip=1.0", False, False),
    ],
)
def test_what_makes_a_run_another_one(change: str, same: bool, resumed: bool, tmp_path: Path) -> None:
    """The engine may be chosen anew; what a resume may change is how long a run is and how it is saved."""
    one, other = config(), config(change)
    assert same_run(one.toml(), other.toml()) is same
    assert same_run(one.toml(), other.toml(), resume=True) is resumed
    write_config(tmp_path, one.model_copy(update={"data": one.data.resolved()}))
    assert can_resume(tmp_path, other) is resumed


def test_a_folder_without_a_config_is_free_and_a_damaged_config_is_another_runs(tmp_path: Path) -> None:
    assert config_of(tmp_path) is None and not can_resume(tmp_path, config())
    check_free(tmp_path, config())
    check_free(tmp_path / "new", config())
    (tmp_path / "config.toml").write_text("rounds = ")
    with pytest.raises(ConfigError, match="holds another run"):
        check_free(tmp_path, config())
    check_free(tmp_path, config(), force=True)


def test_the_engine_of_a_run_is_taken_up_where_the_caller_leaves_it_open(tmp_path: Path) -> None:
    there = config().model_copy(update={"engine": EngineConfig("stacked", chunk=7)})
    write_config(tmp_path, there)
    open_, said = Config.load(None, []), config()
    assert open_.engine.name == "auto" and taken_up(tmp_path, open_).engine == EngineConfig("stacked", chunk=7)
    assert taken_up(tmp_path, said) is said
    assert taken_up(tmp_path / "nowhere", open_) is open_


def test_an_earlier_run_is_forgotten_and_what_others_put_there_is_not(tmp_path: Path) -> None:
    names = ["summary.json", "rounds.jsonl", "checkpoints/round-000001.ckpt", "checkpoints/records.log"]
    names += ["checkpoints/.round-000002.ckpt.tmp"]
    (tmp_path / "checkpoints").mkdir()
    for name in [*names, "notes.txt", "privacy.log"]:
        (tmp_path / name).touch()
    clear(tmp_path)
    assert not any((tmp_path / name).exists() for name in names)
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "privacy.log").exists(), "what was spent stays spent"
    clear(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rounds": "three"}'])
def test_a_damaged_summary_is_none(text: str, tmp_path: Path) -> None:
    assert summary_of(tmp_path) is None
    (tmp_path / "summary.json").write_text(text)
    assert summary_of(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"rounds": 3}))
    assert summary_of(tmp_path) == {"rounds": 3}
