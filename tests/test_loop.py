"""The loop: who is asked, what is recorded, and what a run's outcome says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Flaky, Serial, Stacked
from clusterfl.loop import Simulation
from clusterfl.methods import METHODS, FedAvg
from clusterfl.methods.ifca import IFCA
from clusterfl.parts.local import SGD
from clusterfl.record import Schedule
from clusterfl.testing.compare import assert_close, assert_equal
from clusterfl.testing.small import CLIENTS, UNSEEN, small_population, small_task

LOCAL = SGD(lr=0.1, batch=10)
POPULATION = small_population()


def simulation(name: str = "fedavg", engine: Any = Serial, population: Population = POPULATION, **schedule: Any) -> Any:
    fields: dict[str, Any] = {"k": 2} if name == "ifca" else {}
    method = METHODS[name](local=LOCAL, **fields)
    return Simulation(method, population, engine(small_task(), population), Schedule(**{"rounds": 3, **schedule}))


class Spy(FedAvg):
    """FedAvg that notes which clients it was given."""

    name = "spy"

    def round(self, state: Any, cohort: Any) -> Any:
        asked.append(cohort.ids.tolist())
        return super().round(state, cohort)


asked: list[list[int]] = []


@pytest.mark.parametrize("participation", [1.0, 0.5, 0.01])
def test_sampling(participation: float) -> None:
    def ids(seed: int) -> list[list[int]]:
        asked.clear()
        schedule = Schedule(rounds=6, participation=participation, seed=seed)
        Simulation(Spy(local=LOCAL), POPULATION, Serial(small_task(), POPULATION), schedule).run()
        return list(asked)

    rounds = ids(0)
    assert all(len(r) == max(1, round(participation * CLIENTS)) for r in rounds)
    assert all(r == sorted(set(r)) and max(r) < CLIENTS for r in rounds)
    assert rounds == ids(0)
    if participation < 1:
        assert len({tuple(r) for r in rounds}) > 1 and rounds != ids(1)


def test_records_and_outcome_of_ifca() -> None:
    sim = simulation("ifca", rounds=4)
    outcome = sim.run()
    assert [r.round for r in outcome.records] == [0, 1, 2, 3, 4]
    last = outcome.records[-1]
    assert outcome.accuracy.mean == pytest.approx(float(last.accuracy.mean()))
    assert outcome.clusters.ari == 1.0 and outcome.clusters_found == 2
    assert outcome.intra > 0.8 > 0.3 > outcome.inter
    assert outcome.unseen.shape == (UNSEEN,) and float(outcome.unseen.mean()) > 0.8
    assert POPULATION.truth is not None
    names = {int(POPULATION.truth[i]): int(outcome.served.index[i]) for i in range(CLIENTS)}
    assert outcome.unseen_assign.tolist() == [names[int(k)] for k in POPULATION.truth[CLIENTS:]]
    up = [r.bytes_up for r in outcome.records]
    assert all(b > a for a, b in itertools.pairwise(up)) and outcome.bytes_up >= up[-1]
    assert outcome.seconds == pytest.approx(sum(r.seconds for r in outcome.records))


def test_evaluation_is_neither_traffic_nor_training() -> None:
    often, seldom = simulation(rounds=4), simulation(rounds=4, eval_every=3)
    one, two = often.run(), seldom.run()
    assert [r.measured for r in two.records] == [True, False, False, True, True]
    assert_equal(one.state, two.state, "state")
    assert one.records[-1].bytes_down == two.records[-1].bytes_down
    assert torch.equal(one.records[-1].accuracy, two.records[-1].accuracy)


def test_the_same_seed_gives_the_same_run_and_steps_equal_run() -> None:
    whole = simulation("ifca", participation=0.5)
    by_hand = simulation("ifca", participation=0.5)
    outcome = whole.run()
    by_hand.start()
    for _ in range(3):
        by_hand.step()
    assert_equal(outcome.state, by_hand.finish().state, "state")
    other = simulation("ifca", participation=0.5, seed=1).run()
    assert not torch.equal(outcome.records[-1].accuracy, other.records[-1].accuracy)


def test_a_run_can_be_taken_up_between_rounds() -> None:
    whole = simulation("local", participation=0.5, rounds=4)
    outcome = whole.run()
    first = simulation("local", participation=0.5, rounds=4)
    first.start()
    first.step()
    first.step()
    second = simulation("local", participation=0.5, rounds=4)
    second.state, second.round, second.records = first.state, first.round, list(first.records)
    second.engine.set_states(first.engine.states())
    again = second.run()
    assert torch.equal(outcome.records[-1].accuracy, again.records[-1].accuracy)
    assert_equal(dict(whole.engine.states()), dict(second.engine.states()), "kept")


def test_stacked_and_serial_agree() -> None:
    one, two = simulation("ifca").run(), simulation("ifca", Stacked).run()
    assert torch.equal(one.records[-1].assign, two.records[-1].assign)
    assert torch.allclose(one.records[-1].loss, two.records[-1].loss, atol=1e-4)


def test_a_round_that_nobody_answers_leaves_the_state(caplog: pytest.LogCaptureFixture) -> None:
    population = small_population()
    engine = Flaky(Serial(small_task(), population), 0.0)
    sim = Simulation(FedAvg(local=LOCAL), population, engine, Schedule(rounds=2))
    sim.start()
    before = sim.state
    engine.drop = 1.0
    record = sim.step()
    assert sim.state is before and record.logged["no_replies"] == 1.0
    assert "leaves the state unchanged" in caplog.text
    engine.drop = 0.0
    sim.step()
    assert sim.state is not before


def with_sizes(*sizes: int) -> Population:
    def parts(extra: int) -> Shards:
        made: list[tuple[Tensor, Tensor]] = [(torch.randn(n + extra, 6), torch.arange(n + extra) % 3) for n in sizes]
        return Shards.from_parts(made)

    return Population(parts(0), parts(4), len(sizes), 3)


def test_clients_without_data_take_no_part(caplog: pytest.LogCaptureFixture) -> None:
    population = with_sizes(8, 0, 5, 0)
    sim = simulation(population=population)
    assert "take no part: client-01, client-03" in caplog.text and sim.active.tolist() == [0, 2]
    outcome = sim.run()
    assert outcome.clusters is None and outcome.unseen is None
    assert outcome.accuracy.mean == outcome.accuracy.mean  # measured on all four
    with pytest.raises(ValueError, match="at least one"):
        simulation(population=with_sizes(0, 0))


def test_global_figures_are_those_of_the_model_before_personalisation() -> None:
    torch.manual_seed(0)
    population = with_sizes(40, 7, 3)
    outcome = simulation("fedper", population=population, rounds=2).run()
    module = small_task().module
    module.load_state_dict({name: t[0] for name, t in outcome.served.models.items()})
    right = [float((module(x).argmax(1) == y).float().mean()) for x, y in map(population.test.of, range(3))]
    assert outcome.served.k == 1 and outcome.accuracy.mean != pytest.approx(sum(right) / 3)
    assert outcome.global_accuracy == pytest.approx(sum(right) / 3)
    assert outcome.global_weighted == pytest.approx((40 * right[0] + 7 * right[1] + 3 * right[2]) / 50)


@pytest.mark.parametrize(
    "wrong", [{"rounds": -1}, {"participation": 0.0}, {"participation": 1.1}, {"eval_every": 0}], ids=str
)
def test_schedules_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="should be"):
        Schedule(**wrong)


def test_clients_whose_data_changes_at_a_round_train_and_are_measured_on_the_new_data() -> None:
    """Drift: from round 2 on every client holds what its neighbour of the other group held."""
    before = small_population(ragged=False)
    assert before.truth is not None
    other = torch.arange(14).reshape(-1, 2).flip(1).flatten()
    after = replace(before, train=before.train.select(other), test=before.test.select(other), truth=before.truth[other])
    population = replace(before, drift=(2, after))
    method, sims = IFCA(k=2, local=LOCAL), []
    for engine in (Serial(small_task(), population), Stacked(small_task(), population)):
        sim = Simulation(method, population, engine, Schedule(rounds=3))
        sim.run()
        assert engine.population is after
        sims.append(sim)
    assert_close(sims[0].state, sims[1].state, "drift")
    assert not torch.equal(sims[0].records[1].assign, sims[0].records[3].assign), "clients follow their data"
    plain = Simulation(method, before, Serial(small_task(), before), Schedule(rounds=3))
    plain.run()
    assert torch.equal(plain.records[1].accuracy, sims[0].records[1].accuracy), "nothing changes before the drift"


@pytest.mark.parametrize("name", ["ifca", "fedper", "mcfl"])
def test_a_sample_of_clients_is_measured_and_said(name: str) -> None:
    method = METHODS[name]() if name == "mcfl" else METHODS[name](local=LOCAL)
    runs = {
        some: Simulation(
            method, POPULATION, Serial(small_task(), POPULATION), Schedule(2, eval_clients=some, eval_inter=True)
        )
        for some in (None, 0.5, 5)
    }
    outcomes = {some: run.run() for some, run in runs.items()}
    whole = outcomes[None].records
    assert all(r.sampled is None and not bool(r.accuracy.isnan().any()) for r in whole)
    for some, count in ((0.5, CLIENTS // 2), (5, 5)):
        for r, all_clients in zip(outcomes[some].records, whole, strict=True):
            known = ~r.accuracy.isnan()
            assert r.sampled == count == int(known.sum()) and torch.equal(
                known.nonzero().flatten(), runs[some].measured
            )
            assert_close(r.accuracy[known], all_clients.accuracy[known], "the same clients' accuracy")
            assert torch.equal(r.assign, all_clients.assign)
        assert outcomes[some].score.mean == pytest.approx(float(outcomes[some].records[-1].accuracy.nanmean()))
        assert outcomes[some].top5_rounds == outcomes[some].top5_rounds  # not NaN


@pytest.mark.parametrize("some", [0, -1, 1.5, 0.0, True, "all"])
def test_a_sample_of_clients_is_a_number_or_a_share(some: Any) -> None:
    with pytest.raises(ValueError, match=r"eval_clients=.* should be a number of clients"):
        Schedule(eval_clients=some)
