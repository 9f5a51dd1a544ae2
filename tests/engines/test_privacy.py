"""Privacy: what a client sends, what it costs, and that a crash never makes it cost less."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn
from typer.testing import CliRunner

from clusterfl import keys
from clusterfl.checkpoint import CheckpointConfig, Checkpoints
from clusterfl.cli import app
from clusterfl.config import Config
from clusterfl.engines import Plan, Pool, Serial, Stacked
from clusterfl.engines.flaky import Flaky, layer
from clusterfl.engines.guard import Guard
from clusterfl.engines.privacy import Ledger, PrivacyConfig, Private, epsilon
from clusterfl.errors import ConfigError, DataError
from clusterfl.loop import Schedule, Simulation
from clusterfl.methods import IFCA, FedAvg, FedDANE, Local
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.testing import CLIENTS, assert_close, assert_equal, play, small_population, small_task

pytest.importorskip("dp_accounting")

RULE = SGD(lr=0.1, batch=10)
IDS = torch.arange(CLIENTS)
PRIVACY = PrivacyConfig(clip=0.5, noise_multiplier=2.0)
ALONE = FedAvg(local=RULE, weights="uniform")  # its reply is a model and nothing else


def private(make: Any = Serial, config: PrivacyConfig = PRIVACY) -> Private:
    return Private(make(small_task(), small_population()), config)


def exact(uploads: int, noise: float, delta: float) -> float:
    """The Gaussian mechanism's own formula (Balle and Wang, 2018), for sensitivity 2 (one client replaced)."""
    s = noise / 2 / math.sqrt(uploads)
    return float(brentq(lambda e: norm.cdf(0.5 / s - e * s) - math.exp(e) * norm.cdf(-0.5 / s - e * s) - delta, 0, 500))


# -- what is sent -------------------------------------------------------------------------------------


def test_updates_are_cut_and_blurred() -> None:
    theta, names = small_task().init(keys.key(0)), small_task().params

    def moves(engine: Any) -> Any:
        got = engine.cohort(IDS, keys.key(1)).run(ALONE.train, {"theta": theta})
        return torch.cat([(got["theta"][n] - theta[n]).flatten(1) for n in names], dim=1).double()

    plain = moves(Serial(small_task(), small_population()))
    assert float(plain.norm(dim=1).min()) > 0.25, "all of them are to be cut"
    faint = moves(private(config=PrivacyConfig(clip=0.25, noise_multiplier=1e-6)))
    assert torch.allclose(faint.norm(dim=1), torch.full((CLIENTS,), 0.25, dtype=torch.float64), atol=1e-4)
    assert torch.allclose(faint, plain * (0.25 / plain.norm(dim=1, keepdim=True)), atol=1e-4)
    short = moves(private(config=PrivacyConfig(clip=1e3, noise_multiplier=1e-9)))
    assert torch.allclose(short, plain, atol=1e-5), "a short update is not stretched"
    noise = moves(private(config=PrivacyConfig(clip=0.25, noise_multiplier=4.0))) - faint
    assert float(noise.std()) == pytest.approx(1.0, rel=0.05) and abs(float(noise.mean())) < 0.05
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.4, "every client draws its own"
    assert torch.equal(moves(private()), moves(private())), "and the same one again"


def test_it_is_the_same_in_every_engine() -> None:
    reference = play(IFCA(k=2, local=RULE), private())
    with Pool(small_task(), small_population(), Plan(), workers=2) as pool:
        assert_equal(reference, play(IFCA(k=2, local=RULE), Private(pool, PRIVACY)), "pool and serial")
    faint = PrivacyConfig(clip=0.5, noise_multiplier=1e-3)
    one, two = (play(ALONE, private(make, faint)) for make in (Serial, Stacked))
    assert_close(one, two, "stacked and serial", 1e-4)


def test_a_model_that_noise_would_break_is_refused() -> None:
    task = Task(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), 3)
    with pytest.raises(ConfigError, match=r"privacy\.clip=0\.5 should be unset for a model with buffers"):
        Private(Serial(task, small_population()), PRIVACY)


def test_without_dp_accounting_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'clusterfl\[dp\]'"):
        Config.load(None, ["privacy.clip=1.0", "engine.name=serial"]).build()


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"noise_multiplier": 0.0}, {"delta": 0.0}, {"delta": 1.0}], ids=str)
def test_settings_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="should be"):
        PrivacyConfig(**wrong)


# -- what it costs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uploads", "noise"), [(1, 1.0), (20, 5.0), (100, 50.0), (1000, 20.0), (7, 0.5)])
def test_epsilon_is_never_below_the_exact_one_and_hardly_above(uploads: int, noise: float) -> None:
    found, true = epsilon(uploads, noise, 1e-5), exact(uploads, noise, 1e-5)
    assert true - 1e-9 <= found <= true + 1e-3


def test_epsilon_grows_and_nothing_costs_nothing() -> None:
    assert epsilon(0, 1.0, 1e-5) == 0.0
    spent = [epsilon(t, 4.0, 1e-5) for t in range(1, 6)]
    assert spent == sorted(spent) and spent[0] < spent[-1]
    assert epsilon(5, 4.0, 1e-7) > spent[-1] and epsilon(5, 8.0, 1e-5) < spent[-1]


def test_every_upload_is_charged_to_its_client() -> None:
    engine = private()
    engine.cohort(IDS[:3], keys.key(1)).run(ALONE.train, {"theta": engine.task.init(keys.key(0))})
    engine.cohort(IDS[2:5], keys.key(2)).run(ALONE.train, {"theta": engine.task.init(keys.key(0))})
    assert engine.uploads.tolist() == [1, 1, 2, 1, 1, *[0] * 9]
    assert engine.epsilon() == epsilon(2, 2.0, 1e-5) == engine.spent().epsilon
    assert engine.spent().uncovered == ()
    two = private()
    play(FedDANE(local=RULE, weights="uniform"), two, rounds=1)
    assert two.uploads.tolist() == [2] * CLIENTS + [0, 0], "a gradient and a model in every round"
    none = private()
    play(Local(local=RULE), none)
    assert none.epsilon() == 0.0, "nothing leaves a client"


def test_what_is_not_covered_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = private()
    with caplog.at_level(logging.WARNING):
        play(IFCA(k=2, local=RULE), engine, rounds=3)
    assert "IFCA.choose_and_train: s" in engine.spent().uncovered
    assert caplog.text.count("IFCA.choose_and_train: s") == 1


def test_a_client_that_is_lost_or_rejected_has_been_charged() -> None:
    engine = private()
    flaky = Flaky(engine, 0.0, frozenset([3]))
    play(ALONE, flaky, rounds=1)
    assert int(engine.uploads[3]) == 0, "it was never asked"
    guard = Guard(engine, sample=small_population().train.x[0])
    play(ALONE, guard, rounds=1)
    assert int(engine.uploads[3]) == 1 and layer(guard, Private) is engine and layer(guard, Flaky) is None


# -- the ledger ---------------------------------------------------------------------------------------


def test_a_charge_is_on_the_disk_before_its_reply_is_released(tmp_path: Path) -> None:
    path = tmp_path / "privacy.log"
    engine = private()
    engine.ledger = Ledger.open(path, "run")
    call = engine.cohort(IDS, keys.key(1))._call(
        ALONE.train, "on_client", IDS, {"theta": engine.task.init(keys.key(0))}, {}
    )
    replies = engine.execute(call)
    assert len(path.read_text().splitlines()) == 1, "only the run's name so far"
    next(replies)
    assert Ledger.open(path, "run").counts == dict.fromkeys(range(CLIENTS), 1)


def test_the_same_call_is_charged_once_and_another_again(tmp_path: Path) -> None:
    path = tmp_path / "privacy.log"
    for _ in range(2):  # a run that is begun again from the start, or from a checkpoint
        engine = private()
        engine.ledger = Ledger.open(path, "run")
        play(ALONE, engine, rounds=2)
    assert Ledger.open(path, "run").most == 2 == engine.spent().uploads
    other = private()
    other.ledger = Ledger.open(path, "run")
    other.cohort(IDS, keys.key(99)).run(ALONE.train, {"theta": other.task.init(keys.key(0))})
    assert Ledger.open(path, "run").most == 3 == other.spent().uploads
    assert int(other.uploads.max()) == 1, "what this run's own rounds cost is another matter"
    assert Ledger.open(path, "another run").most == 0


def test_another_version_is_charged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.0", "2.1"):
        monkeypatch.setattr(torch, "__version__", version)
        engine = private()
        engine.ledger = Ledger.open(tmp_path / "privacy.log", "run")
        play(ALONE, engine, rounds=2)
    assert engine.spent().uploads == 4 and int(engine.uploads.max()) == 2


def test_a_torn_last_line_is_cut_and_any_other_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "privacy.log"
    engine = private()
    engine.ledger = Ledger.open(path, "run")
    play(ALONE, engine, rounds=3)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 4
    for cut in range(1, len(lines[-1])):
        path.write_bytes(whole[:-cut])
        assert Ledger.open(path, "run").most == 2, "nothing was released for a charge that was not whole"
        assert path.read_bytes() == b"".join(lines[:-1])
    for at in range(0, len(whole) - 1, 7):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError, match="nobody knows what was spent"):
            Ledger.open(path, "run")


def test_a_resume_goes_on_counting(tmp_path: Path) -> None:
    def simulation() -> Simulation:
        return Simulation(ALONE, small_population(), private(), Schedule(4, participation=0.5))

    whole = simulation()
    whole.run()
    first, saved = simulation(), Checkpoints(tmp_path, CheckpointConfig(), config="c", data="d", version="v")
    first.start(), saved.save(first)
    for _ in range(2):
        first.step(), saved.save(first)
    second = simulation()
    assert Checkpoints(tmp_path, CheckpointConfig(), config="c", data="d", version="v").restore(second)
    second.run()
    assert [r.epsilon for r in second.records] == [r.epsilon for r in whole.records]
    assert_equal(whole.state, second.state, "the model")
    assert torch.equal(layer(whole.engine, Private).uploads, layer(second.engine, Private).uploads)  # type: ignore[union-attr]


def test_a_run_writes_what_it_spent(tmp_path: Path) -> None:
    settings = ["rounds=3", "data.clients=6", "data.clusters=2", "data.samples=20", "data.unseen=0"]
    settings += ["engine.name=serial", "method.name=fedavg", "method.weights=uniform"]
    settings += ["privacy.clip=1.0", "privacy.noise_multiplier=4.0", "data.test_samples=40"]
    words = [w for s in settings for w in ("--set", s)]
    out = str(tmp_path / "x")
    done = CliRunner().invoke(app, ["run", *words, "--out", out, "--json", "--quiet"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    privacy = json.loads(done.stdout)["privacy"]
    assert privacy == {"epsilon": epsilon(3, 4.0, 1e-5), "delta": 1e-5, "uploads": 3, "uncovered": []}
    rows = [json.loads(line) for line in (tmp_path / "x" / "rounds.jsonl").read_text().splitlines()]
    assert [r["epsilon"] for r in rows] == [epsilon(t, 4.0, 1e-5) for t in range(4)]
    again = CliRunner().invoke(app, ["run", *words, "--out", out, "--json", "--quiet"], catch_exceptions=False)
    assert json.loads(again.stdout)["privacy"] == privacy, "the same bits again are no second release"
