"""A run that was stopped goes on to the same bits, and only as what it was."""

from __future__ import annotations

import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import clusterfl
from clusterfl.config import CheckpointConfig, Config
from clusterfl.errors import ConfigError
from clusterfl.methods import FedAvg
from clusterfl.runs.checkpoint import CheckpointError
from clusterfl.testing.compare import assert_equal
from clusterfl.testing.small import CLASSES, WIDTH, small_population
from tests.folders import contents, rounds_of
from tests.processes import ended, python, wait_for
from tests.runs.python_runs import LOCAL, METHOD, Stopping, Watching, module, run


def test_resume_starts_a_run_where_there_is_none_and_leaves_a_finished_one_as_it_is(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b", resume=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    told: list[tuple[str, str, int]] = []
    outcome = run(tmp_path / "b", resume=True, callbacks=[Watching("a", told)])
    assert [hook for _, *hook in told] == [["start", 4], ["end", 4]] and len(outcome.records) == 5
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_longer_run_goes_on_and_a_shorter_one_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "whole", rounds=6)
    run(tmp_path / "short", rounds=4)
    run(tmp_path / "short", rounds=6, resume=True, checkpoint=CheckpointConfig(every=2))
    # the fourth round was the last when it was measured, and so has figures that others do not need
    assert_equal(
        *(clusterfl.load_models(tmp_path / name) for name in ("whole", "short")), "models of a run that was made longer"
    )
    assert contents(tmp_path / "short")["metrics.parquet"] == contents(tmp_path / "whole")["metrics.parquet"]
    with pytest.raises(ConfigError, match="rounds=5 should be at least the 6 rounds that the run has done already"):
        run(tmp_path / "short", rounds=5, resume=True)


def test_a_resume_of_another_run_or_other_data_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    before = contents(tmp_path)
    for other in ({"seed": 1}, {"method": FedAvg(local=LOCAL)}, {"participation": 0.5}, {"eval_every": 2}):
        with pytest.raises(ConfigError, match="holds another run"):
            run(tmp_path, resume=True, **other)
    with pytest.raises(CheckpointError, match="was written with another data; resume it with the same one"):
        clusterfl.run(small_population(seed=1), module(), METHOD, rounds=9, engine="serial", out=tmp_path, resume=True)
    wider = nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, CLASSES))
    with pytest.raises(ConfigError, match="holds another run"):
        clusterfl.run(small_population(), wider, METHOD, rounds=4, engine="serial", out=tmp_path, resume=True)
    assert {n: v for n, v in contents(tmp_path).items() if n != "rounds.jsonl"} == {
        n: v for n, v in before.items() if n != "rounds.jsonl"
    }


def test_a_resume_takes_the_engine_that_the_run_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "whole", engine="stacked")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "auto", engine="stacked", callbacks=[Stopping(1, KeyboardInterrupt)])

    def measured(*_: Any, **__: Any) -> None:
        pytest.fail("an engine was chosen anew")

    monkeypatch.setattr("clusterfl.engines.make.choose", measured)
    run(tmp_path / "auto", engine="auto", resume=True)
    assert contents(tmp_path / "auto") == contents(tmp_path / "whole")
    assert tomllib.loads((tmp_path / "auto" / "config.toml").read_text())["engine"]["name"] == "stacked"


SCRIPT = Path(__file__).parent / "scripts" / "own_arrays.py"


DIE_AT_START = (
    "import os, runpy, signal, sys; from clusterfl.loop import Simulation; "
    "Simulation.start = lambda self: os.kill(os.getpid(), signal.SIGKILL); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def killed_after(process: subprocess.Popen[str], mark: Path) -> int:
    """SIGKILL as soon as a file is there; how the process ended."""
    wait_for(mark, process)
    process.send_signal(signal.SIGKILL)
    return ended(process)


def clients_files(folder: Path) -> None:
    """Eight clients in two groups, one npz file each."""
    base = small_population()
    folder.mkdir()
    for i in range(8):
        (x, y), (x_test, y_test) = base.train.of(i), base.test.of(i)
        arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
        np.savez(folder / f"hospital-{i}.npz", **{n: a.numpy() for n, a in arrays.items()})


@pytest.fixture(scope="module")
def own(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, Config, Path]]:
    """Own arrays, a method, the config of the same run on the command line, and that run, unbroken."""
    folder = tmp_path_factory.mktemp("own")
    clients_files(folder / "clients")
    config = Config.parse(
        {
            "rounds": 40,
            "data": {"source": f"folder:{folder / 'clients'}", "clients": 6, "unseen": 2},
            "model": {"name": "mlp"},
            "local": {"lr": 0.1, "batch": 10},
            "method": {"name": request.param},
            "engine": {"name": "serial"},
        }
    )
    (folder / "config.toml").write_text(config.toml())
    arrays: dict[str, Any] = {"name": config.population().name}
    for i in range(8):
        with np.load(folder / "clients" / f"hospital-{i}.npz") as held:
            arrays |= {f"{name}_{i}": held[name] for name in held.files}
    np.savez(folder / "own.npz", **arrays)
    command = ["-m", "clusterfl", "run", folder / "config.toml", "--out", folder / "command", "--quiet"]
    assert ended(python(*command)) == 0
    yield folder / "own.npz", request.param, config, folder / "command"


def test_the_script_is_short() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 15


@pytest.mark.parametrize("own", ["ifca", "fedper"], indirect=True)
def test_a_killed_script_goes_on_to_the_files_of_an_unbroken_one_and_of_the_command_line(
    own: tuple[Path, str, Config, Path], tmp_path: Path
) -> None:
    data, name, config, command = own
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert ended(python(SCRIPT, data, whole, name)) == 0
    assert killed_after(python(SCRIPT, data, broken, name), broken / "checkpoints" / "round-000002.ckpt") < 0
    assert not (broken / "summary.json").exists() and 2 <= len(rounds_of(broken)) < 41
    assert killed_after(python(SCRIPT, data, broken, name), broken / "checkpoints" / "round-000020.ckpt") < 0
    assert ended(python(SCRIPT, data, broken, name)) == 0
    assert contents(broken) == contents(whole)
    assert (broken / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()

    assert contents(broken) == contents(command)
    mine, theirs = (tomllib.loads((folder / "config.toml").read_text()) for folder in (broken, command))
    assert mine.pop("data")["source"] == "given" and theirs.pop("data")["source"] == config.data.source
    assert mine == theirs


@pytest.mark.parametrize("own", ["ifca"], indirect=True)
def test_a_run_that_is_killed_before_its_first_round_can_go_on(
    own: tuple[Path, str, Config, Path], tmp_path: Path
) -> None:
    """The config is there from the first second, so that a run is known for what it is."""
    data, name, _, command = own
    out = tmp_path / "early"
    assert ended(python("-c", DIE_AT_START, SCRIPT, data, out, name)) == -signal.SIGKILL
    assert (out / "config.toml").exists() and not (out / "checkpoints").exists()
    with pytest.raises(ConfigError, match="holds another run"):
        run(out)
    assert ended(python(SCRIPT, data, out, name)) == 0
    assert contents(out) == contents(command)
