"""Privacy: what a client sends, what it costs, and what is named as not covered."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn

import clusterfl
from clusterfl import keys
from clusterfl.client import Client
from clusterfl.config import Config
from clusterfl.engines import Plan, Pool, Serial, Stacked
from clusterfl.engines.wrappers import wrapper_of
from clusterfl.engines.wrappers.flaky import Flaky
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private, epsilon
from clusterfl.errors import ConfigError
from clusterfl.message import Cluster, Labels, Loss, Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.methods import IFCA, FedDANE, Local
from clusterfl.parts.local import sgd
from clusterfl.task import Task
from clusterfl.testing import CLASSES, CLIENTS, assert_close, assert_equal, play, small_population, small_task
from clusterfl.tree import Tree
from tests.engines.wrappers.exchanges import ALONE, BOTH, BOTH_CHOOSING, IDS, PRIVACY, RULE, private

pytest.importorskip("dp_accounting")


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


@pytest.mark.parametrize("exchange", [BOTH, BOTH_CHOOSING], ids=["one model", "a choice of two"])
def test_the_update_is_cut_and_blurred_whatever_the_fields_are_called(exchange: Any) -> None:
    """With `w` sent and `model` returned, the whole model would be cut and blurred by who guesses by names."""
    plain = exchange["unusual"](Serial(small_task(), small_population()))
    cut = plain * (0.25 / plain.norm(dim=1, keepdim=True)).clamp(max=1.0)
    faint = PrivacyConfig(clip=0.25, noise_multiplier=1e-6)
    for names in exchange:
        assert torch.allclose(exchange[names](private(config=faint)), cut, atol=1e-4)
        engine = private(config=PrivacyConfig(clip=0.25, noise_multiplier=4.0))
        noise = exchange[names](engine) - cut
        assert float(noise.std()) == pytest.approx(1.0, rel=0.05) and abs(float(noise.mean())) < 0.05
        assert engine.releases.tolist() == [1] * CLIENTS + [0, 0]


@dataclass(frozen=True)
class Telling(Procedures):
    """Replies of every kind."""

    length: float = 0.5

    @on_client(
        model=Model(of="w"),
        mean=Statistic("the mean of something", bound=2.0),
        parts=Statistic("a tree of something", bound=0.5),
        shares=Labels(),
        free=Statistic("something without a bound"),
        hist=Labels("its label counts", bound=None),
        mass=Weight(),
        home=Cluster(of="w"),
        losses=Loss(),
    )
    def tell(self, me: Client, w: Tree) -> dict[str, Payload]:
        flat = torch.ones(500) / 500**0.5  # of length 1
        counts = (me.train.y.unsqueeze(1) == torch.arange(CLASSES)).sum(dim=0)
        return {
            "model": sgd(me, w, RULE),
            "mean": self.length * flat,
            "parts": {"a": 3.0 * flat, "b": 4.0 * flat},  # of length 5 together
            "shares": flat,
            "free": flat,
            "hist": {"train": counts},
            "mass": me.size,
            "home": counts.argmax(),
            "losses": flat,
        }

    @on_client(mean=Statistic("the mean of something", bound=2.0))
    def one(self, me: Client) -> dict[str, Payload]:
        return {"mean": self.length * torch.ones(500) / 500**0.5}

    @on_client(model=Model(of="w"), shares=Labels())
    def two(self, me: Client, w: Tree) -> dict[str, Payload]:
        return {"model": sgd(me, w, RULE), "shares": torch.full((CLASSES,), 1 / CLASSES)}

    @on_client(hist=Labels("its label counts", bound=None))
    def counts(self, me: Client) -> dict[str, Payload]:
        return {"hist": {"train": (me.train.y.unsqueeze(1) == torch.arange(CLASSES)).sum(dim=0)}}


def assert_noise(noise: Tensor, std: float) -> None:
    """Normal with this spread around zero, and another one for every client."""
    n = noise.numel()
    assert float(noise.std()) == pytest.approx(std, rel=4 / (2 * n) ** 0.5)
    assert abs(float(noise.mean())) < 4 * std / n**0.5
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.25


@pytest.mark.parametrize(("length", "kept"), [(0.5, 0.5), (2.0, 2.0), (10.0, 2.0)])
def test_a_statistic_with_a_bound_is_cut_to_it_and_blurred_in_proportion(length: float, kept: float) -> None:
    engine = private(config=PrivacyConfig(clip=77.0, noise_multiplier=3.0))
    got = engine.cohort(IDS, keys.key(1)).run(Telling(length).one)["mean"].double()
    assert_noise(got - kept / 500**0.5, std=2.0 * 3.0)
    faint = private(config=PrivacyConfig(clip=77.0, noise_multiplier=1e-6))
    got = faint.cohort(IDS, keys.key(1)).run(Telling(length).one)["mean"]
    assert torch.allclose(got.norm(dim=1), torch.full((CLIENTS,), kept), atol=1e-3)
    assert engine.releases.tolist() == [1] * CLIENTS + [0, 0]


def test_every_mechanism_of_a_reply_is_a_release_and_the_rest_is_named() -> None:
    engine, theta = private(), small_task().init(keys.key(0))
    plain = Serial(small_task(), small_population()).cohort(IDS, keys.key(1)).run(Telling().tell, {"w": theta})
    got = engine.cohort(IDS, keys.key(1)).run(Telling().tell, {"w": theta})
    assert engine.releases.tolist() == [4] * CLIENTS + [0, 0], "the model, mean, parts and shares"
    names = ("free", "hist", "home", "losses", "mass")
    assert engine.spent().uncovered == tuple(f"Telling.tell: {name}" for name in names)
    for name in names:
        assert_equal(got[name], plain[name], f"{name} is as it was")
    noise = PRIVACY.noise_multiplier
    assert_noise((got["mean"] - plain["mean"]).double(), 2.0 * noise)
    assert_noise((got["shares"] - plain["shares"]).double(), 1.0 * noise)
    for name, length in (("a", 0.3), ("b", 0.4)):  # cut together: 3 and 4 of 5
        assert_noise((got["parts"][name] - length / 500**0.5).double(), 0.5 * noise)
    assert not torch.equal(got["parts"]["a"] - 0.3 / 500**0.5, got["parts"]["b"] - 0.4 / 500**0.5)


def test_two_mechanisms_in_one_reply_cost_two_releases() -> None:
    engine = private()
    theta = engine.task.init(keys.key(0))
    engine.cohort(IDS[:4], keys.key(1)).run(Telling().two, {"w": theta})
    assert engine.releases.tolist() == [2] * 4 + [0] * 10
    engine.cohort(IDS[3:5], keys.key(2)).run(Telling().one)
    assert engine.releases.tolist() == [2, 2, 2, 3, 1] + [0] * 9
    assert engine.epsilon() == epsilon(3, 2.0, 1e-5) == engine.spent().epsilon
    assert engine.spent().uploads == 3 and engine.spent().uncovered == ()
    assert engine.ledger.releases == {0: 2, 1: 2, 2: 2, 3: 3, 4: 1}


def test_whole_numbers_inside_a_tree_do_not_slip_through() -> None:
    """Exact label counts once left with an epsilon that did not know of them."""
    engine = private()
    got = engine.cohort(IDS, keys.key(1)).run(Telling().counts)
    assert got["hist"]["train"].dtype == torch.int64
    assert engine.spent().uncovered == ("Telling.counts: hist",) and engine.epsilon() == 0.0
    assert not engine.releases.any()


def test_the_account_is_a_value_that_can_be_put_back() -> None:
    engine = private()
    engine.cohort(IDS[:2], keys.key(1)).run(Telling().one)
    account = engine.account()
    engine.cohort(IDS[:2], keys.key(2)).run(Telling().one)
    assert account.tolist() == [1, 1] + [0] * 12 and engine.account().tolist() == [2, 2] + [0] * 12
    engine.set_account(account)
    assert engine.epsilon() == epsilon(1, 2.0, 1e-5)
    assert engine.spent().uploads == 2, "what was ever charged stays charged"
    engine.set_account(None)
    assert engine.epsilon() == 0.0
    assert engine.states() == {}, "it is nobody's kept state"
    assert Serial(small_task(), small_population()).account() is None


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
        clusterfl.run(Config.load(None, ["privacy.clip=1.0", "engine.name=serial"]))


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
    assert engine.releases.tolist() == [1, 1, 2, 1, 1, *[0] * 9]
    assert engine.epsilon() == epsilon(2, 2.0, 1e-5) == engine.spent().epsilon
    assert engine.spent().uncovered == ()
    two = private()
    play(FedDANE(local=RULE, weights="uniform"), two, rounds=1)
    assert two.releases.tolist() == [2] * CLIENTS + [0, 0], "a gradient and a model in every round"
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
    assert int(engine.releases[3]) == 0, "it was never asked"
    guard = Guard(engine, sample=small_population().train.x[0])
    play(ALONE, guard, rounds=1)
    assert int(engine.releases[3]) == 1 and wrapper_of(guard, Private) is engine and wrapper_of(guard, Flaky) is None
