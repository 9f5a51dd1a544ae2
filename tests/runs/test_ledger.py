"""The ledger of a private run: on the disk before what it pays for, and a crash never makes it cost less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from clusterfl import keys
from clusterfl.commands.app import app
from clusterfl.engines.wrappers.accounting import epsilon
from clusterfl.engines.wrappers.privacy import METRICS
from clusterfl.errors import DataError
from clusterfl.runs.ledger import LedgerFile
from clusterfl.testing.small import CLIENTS, play
from tests.engines.wrappers.exchanges import ALONE, IDS, private

pytest.importorskip("dp_accounting")


def test_a_charge_is_on_the_disk_before_its_reply_is_released(tmp_path: Path) -> None:
    path = tmp_path / "privacy.log"
    engine = private()
    engine.ledger = LedgerFile.open(path, "run")
    call = engine.cohort(IDS, keys.key(1))._call(
        ALONE.train, "on_client", IDS, {"theta": engine.task.init(keys.key(0))}, {}
    )
    replies = engine.execute(call)
    assert len(path.read_text().splitlines()) == 1, "only the run's name so far"
    next(replies)
    assert LedgerFile.open(path, "run").releases == dict.fromkeys(range(CLIENTS), 1)


def test_the_same_call_is_charged_once_and_another_again(tmp_path: Path) -> None:
    path = tmp_path / "privacy.log"
    for _ in range(2):  # a run that is begun again from the start, or from a checkpoint
        engine = private()
        engine.ledger = LedgerFile.open(path, "run")
        play(ALONE, engine, rounds=2)
    assert LedgerFile.open(path, "run").most == 2 == engine.spent().uploads
    other = private()
    other.ledger = LedgerFile.open(path, "run")
    other.cohort(IDS, keys.key(99)).run(ALONE.train, {"theta": other.task.init(keys.key(0))})
    assert LedgerFile.open(path, "run").most == 3 == other.spent().uploads
    assert int(other.releases.max()) == 1, "what this run's own rounds cost is another matter"
    assert LedgerFile.open(path, "another run").most == 0


def test_another_version_is_charged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.0", "2.1"):
        monkeypatch.setattr(torch, "__version__", version)
        engine = private()
        engine.ledger = LedgerFile.open(tmp_path / "privacy.log", "run")
        play(ALONE, engine, rounds=2)
    assert engine.spent().uploads == 4 and int(engine.releases.max()) == 2


def test_a_torn_last_line_is_cut_and_any_other_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "privacy.log"
    engine = private()
    engine.ledger = LedgerFile.open(path, "run")
    play(ALONE, engine, rounds=3)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 4
    for cut in range(1, len(lines[-1])):
        path.write_bytes(whole[:-cut])
        assert LedgerFile.open(path, "run").most == 2, "nothing was released for a charge that was not whole"
        assert path.read_bytes() == b"".join(lines[:-1])
    for at in range(0, len(whole) - 1, 7):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError, match="nobody knows what was spent"):
            LedgerFile.open(path, "run")


def test_a_run_writes_what_it_spent(tmp_path: Path) -> None:
    settings = ["rounds=3", "data.clients=6", "data.clusters=2", "data.samples=20", "data.unseen=0"]
    settings += ["engine.name=serial", "method.name=fedavg", "method.weights=uniform"]
    settings += ["privacy.clip=1.0", "privacy.noise_multiplier=4.0", "data.test_samples=40"]
    words = [w for s in settings for w in ("--set", s)]
    out = str(tmp_path / "x")
    done = CliRunner().invoke(app, ["run", *words, "--out", out, "--json", "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    privacy = json.loads(done.stdout)["privacy"]
    assert privacy == {
        "epsilon": epsilon(3, 4.0, 1e-5),
        "delta": 1e-5,
        "uploads": 3,
        "uncovered": [METRICS],
        "given": [],
        "unit": "client",
        "sampling": "known",
    }
    rows = [json.loads(line) for line in (tmp_path / "x" / "rounds.jsonl").read_text().splitlines()]
    assert [r["epsilon"] for r in rows] == [epsilon(t, 4.0, 1e-5) for t in range(4)]
    again = CliRunner().invoke(app, ["run", *words, "--out", out, "--json", "--quiet"], catch_exceptions=False)
    assert json.loads(again.stdout)["privacy"] == privacy, "the same bits again are no second release"


def test_a_secret_sample_is_part_of_what_is_said(tmp_path: Path) -> None:
    settings = ["rounds=1", "data.clients=6", "data.clusters=2", "data.samples=20", "engine.name=serial"]
    settings += ["method.name=fedavg", "privacy.clip=1.0", "participation=0.5", "privacy.sampling=secret"]
    words = [w for s in settings for w in ("--set", s)]
    done = CliRunner().invoke(app, ["run", *words, "--out", str(tmp_path / "x"), "--quiet"], catch_exceptions=False)
    assert "for a client's data while who is asked stays secret" in done.stdout
