"""The durable run from Python: hooks, Stop, folders, and what the caller gave."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clusterfl
from clusterfl.config import Config
from clusterfl.data.population import Population
from clusterfl.engines.config import EngineConfig
from clusterfl.errors import ConfigError
from clusterfl.loop import Simulation
from clusterfl.methods import FedAvg, FedPer
from clusterfl.parts.local import SGD
from clusterfl.runs import run as runner
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLASSES, CLIENTS, WIDTH, small_population
from tests.folders import contents, rounds_of, summary_of
from tests.processes import ended, python
from tests.runs.python_runs import LOCAL, METHOD, Stopping, Watching, module, run

# -- hooks -------------------------------------------------------------------------------------------------


def test_hooks_are_called_in_order_and_may_read_everything(tmp_path: Path) -> None:
    told: list[tuple[str, str, int]] = []
    first, second = Watching("a", told, tmp_path), Watching("b", told)
    outcome = run(tmp_path, callbacks=[first, second])
    hooks = [("start", 0), *(("round", t) for t in range(1, 5)), ("end", 4)]
    assert told == [(name, *hook) for hook in hooks for name in "ab"]
    assert all(first.saved), "a round is on the disk before anybody hears of it"
    assert second.outcome is outcome
    for t, moment in enumerate(second.moments[:-1]):
        assert moment.record is moment.records[-1] and [r.round for r in moment.records] == list(range(t + 1))
        assert moment.method == METHOD and moment.population.clients == CLIENTS and moment.schedule.rounds == 4
        assert moment.served.k == 2 and torch.equal(moment.served.index, moment.record.assign)
        assert torch.equal(moment.state.assign, moment.record.assign)  # type: ignore[attr-defined]
        assert_equal(moment.served.models, moment.state.centers, "the models of that moment")  # type: ignore[attr-defined]
    assert_equal(second.moments[-2].state, outcome.state, "the last state")
    moved = [m.served.models["0.weight"] for m in second.moments]
    assert not torch.equal(moved[0], moved[1]), "an old moment stays what it was"
    assert [m.record.accuracy.tolist() for m in second.moments[:-1]] == [r.accuracy.tolist() for r in outcome.records]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("eval_every", [1, 3])
@pytest.mark.parametrize("method", [METHOD, FedPer(local=LOCAL)], ids=lambda m: m.name)
def test_stop_ends_with_an_outcome_and_the_run_can_go_on(at: int, eval_every: int, method: Any, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, method, eval_every=eval_every)
    told: list[tuple[str, str, int]] = []
    watching = Watching("a", told)
    outcome = run(broken, method, eval_every=eval_every, callbacks=[watching, Stopping(at)])
    assert told[-1] == ("a", "end", at) and watching.outcome is outcome
    assert len(outcome.records) == at + 1 and "f1" in outcome.records[-1].scores
    assert not bool(outcome.records[-1].accuracy.isnan().any()), "the last round is always measured"
    assert np.isfinite(outcome.accuracy.mean) and np.isfinite(outcome.f1.mean) and outcome.unseen is not None
    summary = summary_of(broken)
    assert summary["rounds"] == at and summary["accuracy_mean"] == outcome.accuracy.mean
    assert len(rounds_of(broken)) == at + 1 and (broken / "models" / "manifest.json").exists()

    again = run(broken, method, eval_every=eval_every, resume=True)
    assert len(again.records) == 5
    assert contents(broken) == contents(whole)


def test_a_stop_changes_nothing_of_the_rounds_before_it() -> None:
    """Without a folder too: the records are those of a run that was asked for no more rounds."""
    stopped, short = run(rounds=9, callbacks=[Stopping(3)]), run(rounds=3)
    assert_equal(stopped.state, short.state, "state")
    assert stopped.accuracy == short.accuracy and stopped.f1 == short.f1 and stopped.intra == short.intra


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_any_other_error_goes_through_and_the_run_can_go_on(error: Any, tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(error):
        run(tmp_path / "broken", callbacks=[Stopping(2, error)])
    assert not (tmp_path / "broken" / "summary.json").exists(), "a folder with a summary is complete"
    told: list[tuple[str, str, int]] = []
    run(tmp_path / "broken", resume=True, callbacks=[Watching("a", told)])
    assert [hook for _, *hook in told] == [["start", 2], ["round", 3], ["round", 4], ["end", 4]]
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_the_config_is_there_before_data_is_loaded_or_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.load(None, ["rounds=1", "data.clients=4", "data.samples=10", "engine.name=serial"])
    seen: list[str] = []
    real, start = Config.population, Simulation.start

    def loading(self: Config) -> Population:
        seen.append(f"data after {sorted(p.name for p in tmp_path.iterdir() if p.name[0] != '.')}")
        return real(self)

    def starting(self: Simulation) -> Any:
        seen.append(f"start after {sorted(p.name for p in tmp_path.iterdir() if p.name[0] != '.')}")
        return start(self)

    monkeypatch.setattr(Config, "population", loading)
    monkeypatch.setattr(Simulation, "start", starting)
    clusterfl.run(config, out=tmp_path)
    assert seen == ["data after ['config.toml']", "start after ['config.toml', 'data.json']"]


# -- folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_another_run_is_refused_before_anything_is_loaded(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.load(None, ["rounds=1", "data.clients=4", "data.samples=10", "engine.name=serial"])
    clusterfl.run(config, out=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for what in ("population", "attackers"):
        monkeypatch.setattr(Config, what, lambda *_: pytest.fail("data was loaded"))
    monkeypatch.setattr(runner, "prepare", lambda *_: pytest.fail("a run was put together"))
    with pytest.raises(ConfigError, match=r"holds another run and should be a new folder, or add --force"):
        clusterfl.run(config.with_seed(1), out=tmp_path, resume=resume)
    with pytest.raises(ConfigError, match="holds another run"):
        run(tmp_path, resume=resume)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="should be a folder, but is a file"):
        run(tmp_path / "file")


def test_force_takes_the_folder_of_another_run(tmp_path: Path) -> None:
    run(tmp_path / "a", seed=1)
    run(tmp_path / "a", force=True)
    run(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sorted(p.name for p in (tmp_path / "a" / "checkpoints").iterdir()) == sorted(
        p.name for p in (tmp_path / "b" / "checkpoints").iterdir()
    )


TINY = ["rounds=2", "data.clients=8", "data.samples=20", "engine.name=serial"]
IMPOSSIBLE = {
    "settings that exclude each other": ["privacy.clip=1", "privacy.unit=sample", "method.name=kin"],
    "privacy of a model with buffers": ["privacy.clip=1", "method.name=fedavg"],
    "a start that fails": ["method.name=fedavg"],
    "a start that fails, with privacy": ["method.name=fedavg", "privacy.clip=1", "data.unseen=0"],
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_refused_force_leaves_the_old_run_as_it_was(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once lost its results and its checkpoints, and kept its models under the refused config."""
    private = ["privacy.clip=1", "data.unseen=0"] if what.endswith("privacy") else []
    old = [*TINY, "method.name=fedavg", "seed=7", *private]
    clusterfl.run(Config.load(None, old), out=tmp_path)
    (tmp_path / "report.html").write_text("drawn")
    before = visible(tmp_path)
    if "buffers" in what:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
        monkeypatch.setattr("clusterfl.runs.setup.build_model", lambda *_, **__: net)
    if "start" in what:
        monkeypatch.setattr(FedAvg, "init", refused)
    with pytest.raises(ConfigError):
        clusterfl.run(Config.load(None, [*TINY, *IMPOSSIBLE[what]]), out=tmp_path, force=True)
    assert visible(tmp_path) == before
    monkeypatch.undo()
    clusterfl.run(Config.load(None, old), out=tmp_path, resume=True)  # it can still be taken up
    clusterfl.run(Config.load(None, [*TINY, "method.name=fedprox", *private]), out=tmp_path, force=True)
    assert "fedprox" in (tmp_path / "config.toml").read_text() and not (tmp_path / "report.html").exists()
    assert not (tmp_path / ".privacy.log.new").exists()


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    config = Config.load(None, [*TINY, "method.name=fedavg"])
    clusterfl.run(config, out=tmp_path)
    before = visible(tmp_path)
    with pytest.raises(ConfigError, match="rounds=1 should be at least the 2 rounds"):
        clusterfl.run(config.model_copy(update={"rounds": 1}), out=tmp_path, resume=True)
    assert visible(tmp_path) == before


def refused(*_: Any) -> None:
    raise ValueError("share=0.9 of clients per cluster was not reached")


def visible(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name[0] != "."}


def test_the_same_run_again_is_run_again(tmp_path: Path) -> None:
    run(tmp_path)
    before = contents(tmp_path)
    told: list[tuple[str, str, int]] = []
    run(tmp_path, callbacks=[Watching("a", told)])
    assert told[0] == ("a", "start", 0) and contents(tmp_path) == before


@pytest.mark.parametrize("damage", [False, True], ids=["killed", "power lost"])
def test_a_run_that_ends_between_its_models_is_resumed_to_the_same_bytes(
    damage: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(whole)

    def gone(folder: Path, names: list[str]) -> None:
        if damage:  # what was not synced may be empty
            (folder / names[1]).write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterfl.runs.model_files.sync_files", gone)
    with pytest.raises(KeyboardInterrupt):
        run(cut)
    monkeypatch.undo()
    assert not (cut / "summary.json").exists() and not (cut / "models" / "manifest.json").exists()
    run(cut, resume=True)
    assert contents(cut) == contents(whole) and len(list((cut / "models").iterdir())) > 2


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run()
    assert list(tmp_path.iterdir()) == [] and outcome.accuracy.mean > 0.5


def test_python_and_the_command_line_write_the_same_files(tmp_path: Path) -> None:
    config = Config.load(None, ["rounds=2", "data.clients=6", "data.clusters=2", "data.samples=20"])
    config = config.model_copy(update={"engine": EngineConfig("serial")})
    (tmp_path / "c.toml").write_text(config.toml())
    clusterfl.run(config, out=tmp_path / "python")
    assert ended(python("-m", "clusterfl", "run", tmp_path / "c.toml", "--out", tmp_path / "command", "-q")) == 0
    assert contents(tmp_path / "python") == contents(tmp_path / "command")
    names = [sorted(str(p.relative_to(tmp_path / n)) for p in (tmp_path / n).rglob("*")) for n in ("python", "command")]
    assert names[0] == names[1]
    assert (tmp_path / "python" / "config.toml").read_bytes() == (tmp_path / "command" / "config.toml").read_bytes()


# -- what the caller gave ------------------------------------------------------------------------------------


class Mine(nn.Module):
    """A module with dropout and buffers, and a layer whose weights the library does not draw anew."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.drop(self.body(x)))
        return logits


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_module_is_not_changed(training: bool, tmp_path: Path) -> None:
    mine = Mine().train(training)
    before = {n: t.clone() for n, t in mine.state_dict().items()}
    kinds = [type(m) for m in mine.modules()]
    clusterfl.run(small_population(), mine, FedAvg(local=LOCAL), rounds=2, engine="serial", out=tmp_path)
    assert [type(m) for m in mine.modules()] == kinds and isinstance(mine.drop, nn.Dropout) and mine.drop.p == 0.2
    assert all(m.training is training for m in mine.modules())
    assert_equal(before, mine.state_dict(), "its weights and buffers")
    assert all(p.grad is None and p.requires_grad for p in mine.parameters())
    mine.load_state_dict(clusterfl.load_models(tmp_path)[0])  # what was trained fits into it


def test_all_three_are_needed() -> None:
    with pytest.raises(TypeError, match="should be given all three"):
        clusterfl.run(small_population(), module())  # type: ignore[call-overload]
    for extra in ((module(), None), (None, FedAvg())):
        with pytest.raises(TypeError, match=r"run\(config\) should be given no (model|method) beside"):
            clusterfl.run(Config(), *extra)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"run\(config\) should be given no rounds beside"):
        clusterfl.run(Config(), rounds=3)  # type: ignore[call-overload]


def test_a_config_says_what_python_gave(tmp_path: Path) -> None:
    run(tmp_path)
    table = tomllib.loads((tmp_path / "config.toml").read_text())
    assert table["data"]["source"] == "given" and table["data"]["clients"] == CLIENTS and table["data"]["unseen"] == 2
    assert table["model"]["name"] == "given" and len(table["model"]["sha256"]) == 64
    assert table["local"]["lr"] == 0.1 and table["method"] == {
        "name": "ifca",
        "k": 2,
        "start": "kmeans-local",
        "weights": "uniform",
        "aggregate": "mean",
    }
    assert json.loads((tmp_path / "models" / "manifest.json").read_text())["model"] == table["model"]


# -- modules and clients of one's own ------------------------------------------------------------------------


def test_a_pretrained_module_is_where_training_starts(tmp_path: Path) -> None:
    first = run(tmp_path / "first", FedAvg(local=LOCAL), rounds=6)
    good = clusterfl.load(tmp_path / "first", model=module()).module("client-00")
    again = clusterfl.run(
        small_population(), good, FedAvg(local=LOCAL), rounds=1, engine="serial", start="given", out=tmp_path / "again"
    )
    assert float(again.records[0].accuracy.mean()) == pytest.approx(first.accuracy.mean)
    fresh = clusterfl.run(small_population(), good, FedAvg(local=LOCAL), rounds=1, engine="serial")
    assert float(fresh.records[0].accuracy.mean()) < first.accuracy.mean
    assert clusterfl.load(tmp_path / "again", model=good).predict("client-00", np.zeros((1, WIDTH))).shape == (1,)
    with pytest.raises(ConfigError, match="should be the module that"):  # other weights were another start
        clusterfl.load(tmp_path / "again", model=module())


def test_a_module_that_does_not_fit_is_refused_at_the_door() -> None:
    population = small_population()
    for wrong, says in (
        (nn.Linear(WIDTH, CLASSES - 1), r"model=Linear should give 3 outputs, one per class, but gives \(2,\)"),
        (nn.Linear(WIDTH + 1, CLASSES), r"model=Linear should take samples of shape .* and type float32: "),
    ):
        with pytest.raises(ConfigError, match=says):
            clusterfl.run(population, wrong, FedAvg(local=LOCAL), rounds=1)


def test_whole_numbers_reach_an_embedding() -> None:
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 20, (30, 5)) for _ in range(4)]
    clients = [(x, (x[:, 0] < 10).astype(int)) for x in words]
    population = clusterfl.Population.from_arrays(clients, clients)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 2))
    for engine in ("serial", "stacked"):
        outcome = clusterfl.run(population, model, FedAvg(local=SGD(lr=0.5, batch=10)), rounds=8, engine=engine)
        assert outcome.accuracy.mean > 0.7
