"""Cohorts: replies in order, what clients keep, traffic, joins, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Client
from clusterfl.cohort import Cohort
from clusterfl.engines import Flaky, Serial, Stacked, Wire
from clusterfl.errors import ClientError, NoReplies
from clusterfl.message import Kept, Labels, Loss, Payload, Statistic, Weight, on_client
from clusterfl.method import Procedures
from clusterfl.testing.small import small_population, small_task


@dataclass(frozen=True)
class Echo(Procedures):
    scale: float = 1.0

    @on_client(sum=Statistic("a sum"), n=Weight(), tree=Labels("its key", bound=None))
    def say(self, me: Client, a: Tensor, b: Tensor) -> dict[str, Payload]:
        return {"sum": a * self.scale + b, "n": me.size, "tree": {"key": me.key}}

    @on_client(seen=Kept("how often it was asked"), before=Loss())
    def count(self, me: Client) -> dict[str, Payload]:
        seen = me.state.get("seen", torch.zeros(()))
        me.keep(seen=seen + 1)
        return {"before": seen}

    @on_client(x=Loss())
    def fail(self, me: Client, which: Tensor) -> dict[str, Payload]:
        if not me.stacked and bool(which > 0):
            raise ValueError("on purpose")
        return {"x": which}

    def unmarked(self, me: Client) -> dict[str, Payload]:
        return {}


POPULATION, TASK = small_population(), small_task()


ENGINES = {"serial": Serial, "stacked": Stacked, "wire": Wire}


@pytest.mark.parametrize("name", ENGINES)
def test_replies_are_in_the_order_of_the_cohort(name: str) -> None:
    engine: Any = ENGINES[name](TASK, POPULATION)
    ids = torch.tensor([7, 2, 11, 0])
    got = engine.cohort(ids, keys.key(1)).run(Echo(2.0).say, {"b": torch.tensor(0.5)}, a=torch.arange(4.0))
    assert got.ids.tolist() == ids.tolist()
    assert torch.equal(got["sum"], torch.arange(4.0) * 2 + 0.5)
    assert got["n"].tolist() == POPULATION.train.sizes[ids].tolist()
    reference = Serial(TASK, POPULATION).cohort(ids, keys.key(1))
    expected = reference.run(Echo(2.0).say, {"b": torch.tensor(0.5)}, a=torch.arange(4.0))
    assert torch.equal(got["tree"]["key"], expected["tree"]["key"])


@pytest.mark.parametrize("name", ENGINES)
def test_what_clients_keep_stays_with_them(name: str) -> None:
    engine: Any = ENGINES[name](TASK, POPULATION)
    for t, ids in enumerate([[0, 1, 2], [1, 2, 3], [2]]):
        got = engine.cohort(torch.tensor(ids), keys.key(t)).run(Echo().count)
        assert got["before"].tolist() == [[0, 0, 0], [1, 1, 0], [2]][t]
    assert sorted(engine.states()) == [0, 1, 2, 3]


def test_traffic_is_payload_per_client() -> None:
    engine = Serial(TASK, POPULATION)
    engine.cohort(torch.arange(5), keys.key(0)).run(Echo().say, {"b": torch.zeros(10)}, a=torch.zeros(5, 3).sum(1))
    label = "Echo.say"
    assert engine.traffic.down == {label: 5 * (40 + 4)}
    assert engine.traffic.up == {label: 5 * (40 + 4 + 8)}


def test_each_call_of_a_round_has_its_own_keys() -> None:
    cohort = Serial(TASK, POPULATION).cohort(torch.arange(3), keys.key(0))
    arguments: dict[str, Any] = {"a": torch.zeros(3)}
    first, second = (cohort.run(Echo().say, {"b": torch.tensor(0.0)}, **arguments) for _ in range(2))
    both = torch.cat([first["tree"]["key"], second["tree"]["key"]])
    assert len(both.unique()) == 6


def test_joins_keep_those_who_answered_twice() -> None:
    engine = Serial(TASK, POPULATION)
    shared = {"b": torch.tensor(0.0)}
    one = engine.cohort(torch.tensor([4, 1, 3]), keys.key(0)).run(Echo().say, shared, a=torch.tensor([4.0, 1.0, 3.0]))
    two = engine.cohort(torch.tensor([3, 4]), keys.key(1)).run(Echo().say, shared, a=torch.tensor([30.0, 40.0]))
    mine, theirs = one.join(two, "sum")
    assert mine.ids.tolist() == [4, 3] and mine["sum"].tolist() == [4.0, 3.0] and theirs.tolist() == [40.0, 30.0]
    assert mine.cohort.ids.tolist() == [4, 3]


def test_errors_name_the_procedure_and_the_client() -> None:
    cohort = Serial(TASK, POPULATION).cohort(torch.tensor([5, 9, 2]), keys.key(0))
    with pytest.raises(ClientError, match=r"Echo\.fail failed on client 9: ValueError: on purpose"):
        cohort.run(Echo().fail, which=torch.tensor([0.0, 1.0, 1.0]))
    with pytest.raises(TypeError, match="@on_client"):
        cohort.run(Echo().unmarked)
    with pytest.raises(ValueError, match="which=2 rows"):
        cohort.run(Echo().fail, which=torch.zeros(2))


def test_nobody_answers() -> None:
    engine = Flaky(Serial(TASK, POPULATION), 1.0)
    with pytest.raises(NoReplies, match=r"Echo\.count"):
        engine.cohort(torch.arange(3), keys.key(0)).run(Echo().count)
    assert engine.states() == {}


def test_logs_are_shared_by_a_cohort_and_its_parts() -> None:
    cohort: Cohort = Serial(TASK, POPULATION).cohort(torch.arange(4), keys.key(0))
    cohort.only(torch.tensor([1])).log(gap=0.5)
    assert cohort.logged == {"gap": 0.5}
