"""Privacy: what a client sends, what it costs, and what is named as not covered."""

from __future__ import annotations

import json
import logging
import math
import sys
from dataclasses import dataclass
from pathlib import Path
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
from clusterfl.engines.wrappers import Wrapper, wrapper_of
from clusterfl.engines.wrappers.accounting import epsilon, epsilon_of_samples
from clusterfl.engines.wrappers.flaky import Flaky
from clusterfl.engines.wrappers.guard import Guard
from clusterfl.engines.wrappers.privacy import PrivacyConfig, Private
from clusterfl.engines.wrappers.updates import norms, updates
from clusterfl.errors import ClientError, ConfigError, NoReplies
from clusterfl.message import Cluster, Labels, Loss, Model, Payload, Statistic, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.methods import FCCA, IFCA, METHODS, FedAvg, FedDANE, FedProx, FedSGD, Kin, Local
from clusterfl.parts.local import SGD, sgd
from clusterfl.runs.setup import prepare
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close, assert_equal
from clusterfl.testing.small import CLASSES, CLIENTS, play, small_population, small_task
from clusterfl.tree import Tree
from tests.commands.calls import call, words
from tests.engines.wrappers.exchanges import ALONE, BOTH, BOTH_CHOOSING, IDS, PRIVACY, RULE, private
from tests.methods.small import small_method

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
    short = moves(private(config=PrivacyConfig(clip=10.0, noise_multiplier=1e-6)))
    assert torch.allclose(short, plain, atol=1e-4), "a short update is not stretched"
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
    assert account["releases"].tolist() == [1, 1] + [0] * 12
    assert engine.account()["releases"].tolist() == [2, 2] + [0] * 12
    engine.set_account(account)
    assert engine.epsilon() == epsilon(1, 2.0, 1e-5)
    assert engine.spent().uploads == 2, "what was ever charged stays charged"
    engine.set_account(account["releases"])
    assert engine.epsilon() == epsilon(1, 2.0, 1e-5), "as older checkpoints have it"
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


WRONG: list[dict[str, Any]] = [{"clip": 0.0}, {"noise_multiplier": 0.0}, {"delta": 0.0}, {"delta": 1.0}]
WRONG += [{"noise_multiplier": 1e-7}, {"clip": 1e300}, {"noise_multiplier": math.inf}, {"unit": "house"}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("make", [Serial, Stacked])
def test_that_a_client_diverged_is_no_secret_and_named(make: Any) -> None:
    """NaN plus noise is NaN: whoever sees it learns something of the client that epsilon says nothing of."""
    wild = FedAvg(local=SGD(lr=1e38, batch=10))
    engine = Private(make(small_task(), small_population()), PRIVACY)
    with pytest.raises(NoReplies):
        play(wild, Guard(engine, sample=small_population().train.x[0]), rounds=1)
    assert "FedAvg.train: that theta is not finite" in engine.spent().uncovered
    assert engine.spent().uploads == 1, "it is charged all the same"
    sound = private()
    play(FedAvg(local=RULE), sound, rounds=1)
    assert not any("finite" in what for what in sound.spent().uncovered)


@pytest.mark.parametrize("noise", [1e-6, 1e-5, 1e-3, 0.019])
def test_hardly_any_noise_is_a_large_number_and_not_a_full_memory(noise: float) -> None:
    """1e-5 once took the accountant past 7 GB."""
    far = 2.0 * math.sqrt(5) / noise
    assert far**2 / 2.0 <= epsilon(5, noise, 1e-5) < 1.2 * far**2 / 2.0 + 10 * far
    assert epsilon(5, 0.0447, 1e-5) < epsilon(5, 0.0446, 1e-5) < 1.01 * epsilon(5, 0.0447, 1e-5), "no step between"


# -- what a choice tells ------------------------------------------------------------------------------


def test_a_model_that_a_client_chose_to_begin_from_is_covered_given_its_choice() -> None:
    """Centres lie far apart: one upload tells the cluster, however it is blurred."""
    engine = private()
    play(IFCA(k=2, local=RULE), engine, rounds=1)
    spent = engine.spent()
    assert spent.given == ("IFCA.choose_and_train: s",) and set(spent.given) < set(spent.uncovered)
    alone = private()
    play(ALONE, alone, rounds=1)
    assert alone.spent().given == ()


def test_fccas_update_has_its_bound_for_itself() -> None:
    """Raw feature moments once shared the norm with the update, which was cut to a tenth of its length."""
    method = FCCA(k=2, local=RULE, warmup=0)
    seen = _Seen(private(config=PrivacyConfig(clip=0.25, noise_multiplier=1e-6)))
    play(method, seen, rounds=1)
    (call, chunk), *_ = seen.passed
    _, moves = updates(seen.task, call, chunk)
    assert {field for field, _ in moves} == {"body", "head"}
    assert norms(moves).tolist() == pytest.approx([0.25] * CLIENTS, abs=1e-3)


class _Seen(Wrapper):
    """What the server gets."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.passed: list[Any] = []

    def execute(self, call: Any) -> Any:
        for chunk in self.inner.execute(call):
            if not (call.server or call.measure):
                self.passed.append((call, chunk))
            yield chunk


# -- parameters that do not train ---------------------------------------------------------------------


def frozen_task() -> Task:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    module[0].weight.requires_grad_(False)
    return Task(module, CLASSES)


def test_parameters_that_do_not_train_are_neither_cut_nor_blurred_nor_sent_as_a_gradient() -> None:
    for method in (ALONE, IFCA(k=2, local=RULE, weights="uniform", start="independent")):
        engine = Private(Serial(frozen_task(), small_population()), PRIVACY)
        seen = _Seen(engine)
        state: Any = play(method, seen, rounds=1)
        served = method.serve(state, IDS).models["0.weight"]
        sent = method.init(engine.task, engine.cohort(IDS, keys.key(0)), keys.key(7))
        assert torch.allclose(served, method.serve(sent, IDS).models["0.weight"], atol=1e-6), "a mean of equals"
        assert "0.weight" not in " ".join(engine.spent().uncovered)
    seen = _Seen(Private(Serial(frozen_task(), small_population()), PRIVACY))
    play(FedSGD(local=RULE), seen, rounds=1)
    assert "0.weight" not in seen.passed[0][1].fields["grad"]


@dataclass(frozen=True)
class Smuggling(Procedures):
    """Tells its samples by a parameter that does not train."""

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": {**theta, "0.weight": theta["0.weight"] + me.train.x[:8]}}


def test_nothing_is_told_by_a_parameter_that_does_not_train() -> None:
    engine = Private(Serial(frozen_task(), small_population()), PRIVACY)
    theta = engine.task.init(keys.key(0))
    got = engine.cohort(IDS, keys.key(1)).run(Smuggling().train, {"theta": theta})
    assert torch.equal(got["theta"]["0.weight"], theta["0.weight"].expand(CLIENTS, -1, -1))


# -- who is asked -------------------------------------------------------------------------------------

SECRET = PrivacyConfig(clip=0.5, noise_multiplier=2.0, sampling="secret")


def test_a_secret_sample_amplifies_and_a_known_one_does_not() -> None:
    known, secret = private(), private(config=SECRET)
    for engine in (known, secret):
        play(ALONE, engine, rounds=3, some=1 / CLIENTS)  # one client a round
    cost = secret.own.cost
    assert dict(cost.rounds) == {(1, CLIENTS, 1): 3} and cost.always == 0
    assert known.epsilon() == epsilon(known.own.most, 2.0, 1e-5)
    assert secret.epsilon() == min(known.epsilon(), epsilon_of_samples(0, (((1, CLIENTS, 1), 3),), 2.0, 1e-5))
    assert secret.epsilon() < known.epsilon()
    assert secret.spent().sampling == "secret" and secret.spent().epsilon == secret.epsilon()
    again = private(config=SECRET)
    again.set_account(secret.account())
    assert again.epsilon() == secret.epsilon(), "it comes back from a checkpoint"


def test_amplification_is_never_below_what_one_asked_client_could_lose() -> None:
    """All asked: no less than the Gaussian mechanism's own epsilon; and less the fewer are asked."""
    for noise in (4.0, 20.0):
        spent = [epsilon_of_samples(0, (((m, 100, 1), 10),), noise, 1e-5) for m in (1, 10, 50, 100)]
        assert spent == sorted(spent) and spent[-1] >= exact(10, noise, 1e-5)
    # a client is asked with chance 1/2: delta' = delta / 2 of the one release, exactly (one round)
    half = epsilon_of_samples(0, (((50, 100, 1), 1),), 8.0, 1e-5)
    assert half >= math.log(1 + 0.5 * (math.exp(exact(1, 8.0, 2e-5)) - 1)) - 1e-9


def test_two_calls_of_a_round_share_their_sample_and_everybody_is_no_sample() -> None:
    engine = private(config=SECRET)
    play(FedDANE(local=RULE, weights="uniform"), engine, rounds=2, some=0.25)
    assert dict(engine.own.cost.rounds) == {(3, CLIENTS, 2): 2}
    everybody = private(config=SECRET)
    play(FedDANE(local=RULE, weights="uniform"), Flaky(everybody, 0.3), rounds=1)
    assert everybody.own.cost.always == 2 or everybody.own.cost.rounds, "lost clients are no secret sample"
    assert everybody.epsilon() >= exact(1, 2.0, 1e-5)


def test_a_method_that_looks_at_single_uploads_cannot_hide_who_was_asked() -> None:
    settings = ["privacy.clip=1.0", "privacy.sampling=secret", "engine.name=serial", "participation=0.5"]
    for method in ("cfl", "fesem", "ifca"):  # IFCA's default start looks at every client's model
        with pytest.raises(ConfigError, match=r"privacy\.sampling='secret' should be 'known' for method="):
            prepare(Config.load(None, [*settings, f"method.name={method}"]))
    prepare(Config.load(None, [*settings, "method.name=ifca", "method.start=independent"]))


# -- samples ------------------------------------------------------------------------------------------

SAMPLES = PrivacyConfig(clip=0.3, noise_multiplier=1e-6, unit="sample")


@pytest.mark.parametrize("make", [Serial, Stacked])
def test_each_samples_gradient_is_cut_by_itself(make: Any) -> None:
    """One step on all of a client's samples, against one backward pass per sample."""
    rule = SGD(lr=0.5, batch=64)
    engine = private(make, SAMPLES)
    theta = engine.task.init(keys.key(0))
    got = engine.cohort(IDS, keys.key(1)).run(FedAvg(local=rule, weights="uniform").train, {"theta": theta})
    for i in range(CLIENTS):
        x, y = small_population().train.of(i)
        total = {n: torch.zeros_like(theta[n]) for n in theta}
        for j in range(len(y)):
            leaves = {n: t.clone().requires_grad_() for n, t in theta.items()}
            grads = torch.autograd.grad(engine.task.loss(leaves, x[j : j + 1], y[j : j + 1]), list(leaves.values()))
            length = float(torch.cat([g.flatten() for g in grads]).norm())
            assert length > 0.3, "all are to be cut" if j == 0 else ""
            for n, g in zip(leaves, grads, strict=True):
                total[n] += g * min(1.0, 0.3 / length)
        for n, t in theta.items():
            assert torch.allclose(got["theta"][n][i], t - 0.5 * total[n] / len(y), atol=1e-5)


def test_noise_in_local_steps_is_as_wide_as_it_says_and_each_step_has_its_own() -> None:
    rule = SGD(lr=1.0, batch=64)
    faint, strong = (
        _moved(PrivacyConfig(clip=0.3, noise_multiplier=noise, unit="sample"), rule) for noise in (1e-6, 50.0)
    )
    sizes = small_population().train.sizes[:CLIENTS].double().unsqueeze(1)
    assert_noise((strong - faint) * sizes, 0.3 * 50.0)


def _moved(config: PrivacyConfig, rule: SGD) -> Tensor:
    engine = private(config=config)
    theta = engine.task.init(keys.key(0))
    got = engine.cohort(IDS, keys.key(1)).run(FedAvg(local=rule, weights="uniform").train, {"theta": theta})
    return torch.cat([(got["theta"][n] - theta[n]).flatten(1) for n in theta], dim=1).double()


def test_a_sample_is_charged_once_for_each_epoch() -> None:
    config = PrivacyConfig(clip=0.3, noise_multiplier=4.0, unit="sample")
    for rule, releases in ((SGD(epochs=3, batch=10), 3), (SGD(steps=7, batch=10), 3), (SGD(steps=2, batch=10), 1)):
        engine = private(config=config)  # the smallest client has 24 samples: 3 batches
        play(FedAvg(local=rule, weights="uniform"), engine, rounds=2)
        assert engine.epsilon() == epsilon(2 * releases, 4.0, 1e-5)
        assert engine.spent().uncovered == () and engine.spent().unit == "sample"
    one, two = (play(FedProx(local=RULE, mu=0.1), private(make, SAMPLES)) for make in (Serial, Stacked))
    assert_close(one, two, "stacked and serial", 1e-4)
    bare = private(config=config)
    play(FedSGD(local=RULE), bare, rounds=1)
    assert bare.spent().uncovered == ("FedSGD.gradient: grad", "FedSGD.gradient: n") and bare.epsilon() == 0.0


@dataclass(frozen=True)
class ByHand(Procedures):
    """Trains without its rule."""

    rule: SGD = RULE

    @on_client(theta=Model(of="theta"))
    def train(self, me: Client, theta: Tree) -> dict[str, Payload]:
        return {"theta": {n: t + me.train.x.mean() for n, t in theta.items()}}


@pytest.mark.parametrize("make", [Serial, Stacked])
def test_a_model_that_no_private_step_made_does_not_leave(make: Any) -> None:
    engine = private(make, SAMPLES)
    with pytest.raises(ClientError, match=r"'theta' is not made by steps of the local rule"):
        engine.cohort(IDS, keys.key(0)).run(ByHand().train, {"theta": engine.task.init(keys.key(0))})


# the list of docs/reliability.md
OFTEN = ["per-fedavg", "feddsmic", "feddane", "robust-tkm", "ditto", "fedem", "fedrc", "fedgwc", "kin"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_reads_samples_more_often_is_refused_and_says_so_before(name: str) -> None:
    method = small_method(name)
    assert method.reads_again() is (name in OFTEN)
    if name in OFTEN:
        with pytest.raises(ClientError, match=r"privacy\.unit='sample' should be 'client' for this method"):
            play(method, private(config=SAMPLES), rounds=2)
    elif name != "fedsgd":
        play(method, private(config=SAMPLES), rounds=2)


@pytest.mark.parametrize("settings", [["method.name=ditto"], ["method.name=awcfl", "method.base={name='kin'}"], []])
def test_before_a_run_it_is_one_sentence(settings: list[str], tmp_path: Path) -> None:
    small = ["rounds=1", "data.clients=4", "data.clusters=2", "privacy.clip=1.0", "privacy.unit=sample", *settings]
    with pytest.raises(ConfigError, match=r"privacy\.unit='sample' should be 'client' for method="):
        clusterfl.run(Config.load(None, small), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_look_trains_nothing_and_may_hide_samples() -> None:
    few = ["data.clients=6", "data.clusters=2", "data.samples=30", "privacy.clip=1.0", "privacy.unit=sample"]
    assert call("inspect", "--groups", *words(few)).exit_code == 0
    assert call("choose-k", "--by", "kin", *words(few)).exit_code == 0


def test_with_groups_that_need_not_pay_kin_hides_samples() -> None:
    assert not Kin(trial=0).reads_again() and not Kin(groups=2).reads_again() and Kin().reads_again()
    assert FCCA(meta=0.01).reads_again() and not FCCA().reads_again()


def test_without_published_metrics_no_test_data_is_looked_at(tmp_path: Path) -> None:
    settings = ["rounds=2", "data.clients=6", "data.clusters=2", "data.samples=20", "data.unseen=2"]
    settings += ["engine.name=serial", "privacy.clip=1.0", "privacy.publish_metrics=false"]
    settings += ["method.name=ifca", "method.k=2", "method.start=independent"]
    outcome = clusterfl.run(Config.load(None, settings), out=tmp_path)
    assert math.isnan(outcome.accuracy.mean) and outcome.unseen is None and outcome.unseen_assign is not None
    assert outcome.spent is not None and not any("evaluation" in what for what in outcome.spent.uncovered)
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["accuracy_mean"] is None and summary["f1_macro"] is None and summary["unseen_accuracy"] is None
    assert not any(r.measured for r in outcome.records)
    details = json.loads((tmp_path / "details.json").read_text(encoding="utf-8"))
    assert all(details[name] is None for name in ("labels", "cluster_labels", "cross", "confusion"))
