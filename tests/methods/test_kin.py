"""Kin: groups before training, revised as clients come and change, that have to pay; and newcomers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.scenario import DataConfig, build
from clusterfl.engines import Flaky, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import FedAvg
from clusterfl.methods import kin as module
from clusterfl.methods.kin import Kin
from clusterfl.metrics import clustering
from clusterfl.parts.local import SGD
from clusterfl.parts.trial import Verdict
from clusterfl.record import Schedule
from clusterfl.task import Task
from clusterfl.testing import check_method, check_same
from clusterfl.testing.small import CLIENTS, play, small_population, small_task

from .small import LOCAL

RULE = SGD(lr=0.1, batch=20, epochs=1)


def world(**options: Any) -> Population:
    settings: dict[str, Any] = {"source": "digits", "clients": 16, "clusters": 2, "shift": "rotate", "samples": 60}
    return build(DataConfig(**{**settings, **options}), keys.key(0))


def engine_of(population: Population) -> Stacked:
    return Stacked(Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 10), population)


def ari(assign: Tensor, population: Population) -> float:
    assert population.truth is not None
    return clustering(assign, population.truth[: len(assign)]).ari


@pytest.mark.parametrize("shift", ["rotate", "permute_labels"])
def test_groups_are_there_after_the_first_round_and_nobody_said_how_many(shift: str) -> None:
    population = world(shift=shift, clusters=4)
    state = play(Kin(RULE), engine_of(population), 1)
    assert state.k == 4 and ari(state.assign, population) == 1.0


def test_without_groups_it_is_fedavg_bit_for_bit() -> None:
    population = world(shift="none", clusters=1)
    ours, theirs = (play(m, engine_of(population), 2) for m in (Kin(RULE), FedAvg(RULE)))
    assert ours.k == 1
    for name, t in theirs.theta.items():
        assert torch.equal(ours.centers[name][0], t)
    check_same(Kin(LOCAL, groups=1, personal="none"), FedAvg(LOCAL))


def test_clients_that_come_later_are_grouped_when_they_come() -> None:
    population = world(clusters=3, clients=24)
    state = play(Kin(RULE), Flaky(engine_of(population), 0.2), 6, some=0.3)
    ids = state.known.nonzero().flatten()
    assert len(ids) >= 16 and population.truth is not None
    assert clustering(state.assign[ids], population.truth[ids]).ari == 1.0
    unknown = (~state.known).nonzero().flatten()
    served = Kin(RULE).serve(state, unknown)
    assert bool((served.index >= state.k).all()) or not len(unknown)  # the mean of all groups until they say more


def test_a_client_whose_data_changes_is_moved() -> None:
    population = world(drift_round=4, drift_share=0.25)
    run = Simulation(Kin(RULE), population, engine_of(population), Schedule(6))
    run.start()
    for _ in range(4):
        run.step()
    after = population.at(4)
    assert bool(run.state.stale.any()) and ari(run.state.assign, after) < 1.0
    run.step()
    assert ari(run.state.assign, after) == 1.0 and not bool(run.state.stale.any())
    still = Simulation(Kin(RULE, watch=False), population, engine_of(population), Schedule(6))
    still.start()
    for _ in range(6):
        still.step()
    assert ari(still.state.assign, after) < 1.0


def test_groups_that_do_not_pay_are_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    population = world(shift="none", clusters=1)

    def pieces(s: Any, k: int | None = None) -> Any:
        from clusterfl.parts.spreads import measured

        return measured(s, torch.arange(len(s)) % 8, own=False)

    monkeypatch.setattr(module, "find_groups", pieces)
    method = Kin(RULE, trial=4)
    state = play(method, engine_of(population), 1)
    assert state.k == 8 and state.trial.tolist() == [3] * 8 and state.joint
    state = play(method, engine_of(population), 4)
    assert state.k == 1 and bool(state.joined.all()) and not state.joint
    state = method.regroup(state)  # the evidence says eight again, but they have been judged
    assert state.k == 1
    assert play(replace(method, trial=0), engine_of(population), 5).k == 8
    rotated = world()
    monkeypatch.setattr(module, "find_groups", lambda s, k=None: replace(pieces(s), labels=rotated.truth[: len(s)]))
    assert play(method, engine_of(rotated), 5).k == 2  # groups that pay stay


def test_a_trial_goes_on_while_it_is_undecided_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_knows = Verdict(torch.zeros(2, dtype=torch.bool), pays=False)
    monkeypatch.setattr(module, "verdict", lambda gain, group, k: nobody_knows)
    method, population = Kin(RULE, trial=2), world()
    for rounds, left in ((1, 1), (2, 1), (5, 1), (6, -1)):
        assert play(method, engine_of(population), rounds).trial.tolist() == [left] * 2, rounds
    state = play(Kin(RULE, trial=2), engine_of(world(shift="permute_labels", clusters=4)), 6)
    assert state.k == 4 and not state.joint  # decided or not, it is over


def test_who_may_be_in_several_groups_gets_their_mean_and_counts_in_the_likeliest() -> None:
    population, method = world(), Kin(RULE)
    state = play(method, engine_of(population), 1)
    maybe = state.maybe.clone()
    maybe[3] = True
    served = method.serve(replace(state, maybe=maybe), torch.arange(16))
    assert served.index[3] == 2 and served.clusters.tolist() == state.assign.tolist()
    for t in served.models.values():
        assert torch.allclose(t[2], t[:2].mean(dim=0))
    best = replace(method, either="best").serve(replace(state, maybe=maybe), torch.arange(16))
    assert torch.equal(best.index, state.assign) and best.k == 2


@pytest.mark.parametrize("newcomers", ["labels", "inputs"])
def test_newcomers_are_placed_without_training(newcomers: Any) -> None:
    population = world(unseen=6, clusters=3, clients=18)
    method, engine = Kin(RULE, newcomers=newcomers), engine_of(population)
    state = play(method, engine, 1)
    ids = torch.arange(18, 24).flip(0)
    up = dict(engine.traffic.up)
    served = method.admit(state, engine.cohort(ids, keys.key(1), 1))
    assert (
        set(engine.traffic.up) - set(up) <= {"Place.fit"} and engine.traffic.up["Members.train"] == up["Members.train"]
        if ("Members.train" in up)
        else True
    )
    assert population.truth is not None
    everybody = torch.cat([state.assign, served.clusters.flip(0)])
    assert ari(everybody, population) == 1.0


def test_inputs_alone_cannot_tell_renamed_labels_apart() -> None:
    population = world(unseen=4, shift="permute_labels")
    engine = engine_of(population)
    for newcomers, several in (("labels", False), ("inputs", True)):
        method = Kin(RULE, newcomers=newcomers)  # type: ignore[arg-type]
        state = play(method, engine, 1)
        served = method.admit(state, engine.cohort(torch.arange(16, 20), keys.key(1), 1))
        assert bool((served.index >= state.k).any()) is several


def test_label_skew_is_a_nuisance_or_a_signal() -> None:
    population = world(shift="none", clusters=1, alpha=0.1, alpha_per_class=True)
    assert play(Kin(RULE), engine_of(population), 1).k == 1
    assert play(Kin(RULE, by="concept+labels"), engine_of(population), 1).k > 1


def test_a_shared_body_and_heads_of_groups() -> None:
    state = play(Kin(LOCAL, share="body", trial=0), Stacked(small_task(), small_population()), 2)
    head = small_task().head
    assert state.k == 2
    for name, t in state.centers.items():
        assert torch.equal(t[0], t[1]) is (name not in head)


def test_a_private_description_still_finds_clear_groups_and_epsilon_has_its_price() -> None:
    population = world(clusters=2, samples=80, clients=24)
    clear = play(Kin(RULE, epsilon=100.0), engine_of(population), 1)
    assert ari(clear.assign, population) == 1.0 and float(clear.blur.max()) > 0
    assert ari(play(Kin(RULE, epsilon=0.05), engine_of(population), 1).assign, population) < 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"features": "model", "warmup": 1, "trial": 0},
        {"share": "body", "personal": "head", "trial": 0},
        {"personal": "steps", "watch": False, "either": "best", "trial": 0, "newcomers": "inputs"},
        {"epsilon": 5.0, "unit": "client", "by": "concept+labels", "weights": "uniform", "trial": 2},
    ],
    ids=lambda o: " ".join(o),
)
def test_every_way_conforms(options: dict[str, Any]) -> None:
    check_method(Kin(LOCAL, **options))


def test_what_cannot_be_is_one_sentence() -> None:
    for options in ({"by": "x"}, {"held": 1.0}, {"epsilon": 0.0}, {"groups": 0}, {"trial": 1}, {"unit": "x"}):
        with pytest.raises(ValueError, match="should"):
            Kin(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="should be at most"):
        play(Kin(LOCAL, groups=CLIENTS + 1), Stacked(small_task(), small_population()), 0)
