"""Batches, shards, replies and cohorts: what client procedures and servers rely on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

from clusterfl import keys
from clusterfl.client import Batch, Client, Cohort, Payload, Shard, on_client
from clusterfl.data.population import Population, Shards
from clusterfl.engines import Flaky, Serial, Stacked, Wire
from clusterfl.errors import ClientError, NoReplies
from clusterfl.method import Procedures
from clusterfl.task import Task
from clusterfl.testing import assert_close, small_population, small_task

TASK = Task(nn.Linear(1, 2), 2)


def client(n: int, key: Tensor) -> Client:
    """Sample j is the number j."""
    x = torch.arange(float(n)).unsqueeze(1)
    shard = Shard(x, torch.arange(n), torch.arange(n), n)
    return Client(TASK, shard, shard, key, least=n)


def numbers(batch: Batch) -> list[int]:
    y = batch.y if batch.w is None else batch.y[batch.w > 0]
    return [int(v) for v in y]


@given(st.integers(1, 40), st.integers(1, 15), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_sample_once_per_epoch(n: int, size: int, epochs: int) -> None:
    batches = [numbers(b) for b in client(n, keys.key(n)).batches(size=size, epochs=epochs)]
    per_epoch = -(-n // size)
    assert len(batches) == epochs * per_epoch
    orders = []
    for e in range(epochs):
        epoch = batches[e * per_epoch : (e + 1) * per_epoch]
        assert all(len(b) == size for b in epoch[:-1]) and 1 <= len(epoch[-1]) <= size
        orders.append([v for b in epoch for v in b])
        assert sorted(orders[-1]) == list(range(n))
    if n > 10 and epochs > 1:
        assert orders[0] != orders[1]


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_steps_are_the_first_batches_of_as_many_epochs(n: int, size: int, steps: int) -> None:
    me = client(n, keys.key(1))
    by_steps = [(numbers(b), int(b.key)) for b in me.batches(size=size, steps=steps)]
    by_epochs = [(numbers(b), int(b.key)) for b in me.batches(size=size, epochs=steps)]
    assert by_steps == by_epochs[:steps] and len(by_steps) == steps


def test_streams_differ_and_batches_have_keys_of_their_own() -> None:
    me = client(30, keys.key(0))
    one, again, two = ([numbers(b) for b in me.batches(size=7, epochs=1, stream=s)] for s in (0, 0, 1))
    assert one == again != two
    assert len({int(b.key) for b in me.batches(size=7, epochs=3)}) == 15
    for both in ({}, {"epochs": 1, "steps": 1}):
        with pytest.raises(ValueError, match="exactly one"):
            list(me.batches(size=7, **both))


@pytest.mark.parametrize("mode", [{"epochs": 2}, {"steps": 7}])
@pytest.mark.parametrize("sizes", [(5, 9, 12), (1, 4, 4), (12, 12, 11)])
def test_ragged_batches_equal_serial_ones(mode: dict[str, int], sizes: tuple[int, ...]) -> None:
    """Padded to the longest client and under vmap: the same samples in the same batches."""
    longest, size = max(sizes), 4
    many = keys.split(keys.key(3), len(sizes))
    x = torch.arange(float(longest)).unsqueeze(1)
    rows = torch.stack([torch.where(torch.arange(longest) < n, torch.arange(longest), 0) for n in sizes])

    def stacked(key: Tensor, mine: Tensor, n: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        shard = Shard(x, torch.arange(longest), mine, n, ragged=True)
        me = Client(TASK, shard, shard, key, stacked=True, least=min(sizes))
        return [(b.y, b.w, b.key) for b in me.batches(size=size, **mode) if b.w is not None]

    got = vmap(stacked)(many, rows, torch.tensor(sizes))
    for i, n in enumerate(sizes):
        mine = [(y[i][w[i] > 0].tolist(), int(k[i])) for y, w, k in got if bool((w[i] > 0).any())]
        assert mine == [(numbers(b), int(b.key)) for b in client(n, many[i]).batches(size=size, **mode)]


def test_shard_pieces_cover_everything_in_order() -> None:
    shard = Shard(torch.arange(10.0), torch.arange(10), torch.tensor([3, 1, 4, 1, 5]), 5)
    assert torch.cat([y for _, y, _ in shard.pieces(2)]).tolist() == [3, 1, 4, 1, 5]
    assert shard.w is None
    ragged = Shard(torch.arange(10.0), torch.arange(10), torch.tensor([3, 1, 3]), 2, ragged=True)
    weights = ragged.w
    assert weights is not None and weights.tolist() == [1.0, 1.0, 0.0]


def test_kept_trees_come_back_by_name() -> None:
    me = client(3, keys.key(0))
    assert me.tree("theta") is None
    me.keep_tree("theta", {"w": torch.ones(2)})
    me.keep(count=torch.tensor(3))
    me.state = me.kept
    back = me.tree("theta")
    assert back is not None and torch.equal(back["w"], torch.ones(2)) and me.state["count"] == 3


# -- cohorts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Echo(Procedures):
    scale: float = 1.0

    @on_client
    def say(self, me: Client, a: Tensor, b: Tensor) -> dict[str, Payload]:
        return {"sum": a * self.scale + b, "n": me.size, "tree": {"key": me.key}}

    @on_client
    def count(self, me: Client) -> dict[str, Payload]:
        seen = me.state.get("seen", torch.zeros(()))
        me.keep(seen=seen + 1)
        return {"seen": seen}

    @on_client
    def fail(self, me: Client, which: Tensor) -> dict[str, Payload]:
        if not me.stacked and bool(which > 0):
            raise ValueError("on purpose")
        return {"x": which}

    def unmarked(self, me: Client) -> dict[str, Payload]:
        return {}


POPULATION, TASK_SMALL = small_population(), small_task()
ENGINES = {"serial": Serial, "stacked": Stacked, "wire": Wire}


@pytest.mark.parametrize("name", ENGINES)
def test_replies_are_in_the_order_of_the_cohort(name: str) -> None:
    engine: Any = ENGINES[name](TASK_SMALL, POPULATION)
    ids = torch.tensor([7, 2, 11, 0])
    got = engine.cohort(ids, keys.key(1)).run(Echo(2.0).say, {"b": torch.tensor(0.5)}, a=torch.arange(4.0))
    assert got.ids.tolist() == ids.tolist()
    assert torch.equal(got["sum"], torch.arange(4.0) * 2 + 0.5)
    assert got["n"].tolist() == POPULATION.train.sizes[ids].tolist()
    reference = Serial(TASK_SMALL, POPULATION).cohort(ids, keys.key(1))
    expected = reference.run(Echo(2.0).say, {"b": torch.tensor(0.5)}, a=torch.arange(4.0))
    assert torch.equal(got["tree"]["key"], expected["tree"]["key"])


@pytest.mark.parametrize("name", ENGINES)
def test_what_clients_keep_stays_with_them(name: str) -> None:
    engine: Any = ENGINES[name](TASK_SMALL, POPULATION)
    for t, ids in enumerate([[0, 1, 2], [1, 2, 3], [2]]):
        got = engine.cohort(torch.tensor(ids), keys.key(t)).run(Echo().count)
        assert got["seen"].tolist() == [[0, 0, 0], [1, 1, 0], [2]][t]
    assert sorted(engine.states()) == [0, 1, 2, 3]


def test_traffic_is_payload_per_client() -> None:
    engine = Serial(TASK_SMALL, POPULATION)
    engine.cohort(torch.arange(5), keys.key(0)).run(Echo().say, {"b": torch.zeros(10)}, a=torch.zeros(5, 3).sum(1))
    label = "Echo.say"
    assert engine.traffic.down == {label: 5 * (40 + 4)}
    assert engine.traffic.up == {label: 5 * (40 + 4 + 8)}


def test_each_call_of_a_round_has_its_own_keys() -> None:
    cohort = Serial(TASK_SMALL, POPULATION).cohort(torch.arange(3), keys.key(0))
    arguments: dict[str, Any] = {"a": torch.zeros(3)}
    first, second = (cohort.run(Echo().say, {"b": torch.tensor(0.0)}, **arguments) for _ in range(2))
    both = torch.cat([first["tree"]["key"], second["tree"]["key"]])
    assert len(both.unique()) == 6


def test_joins_keep_those_who_answered_twice() -> None:
    engine = Serial(TASK_SMALL, POPULATION)
    shared = {"b": torch.tensor(0.0)}
    one = engine.cohort(torch.tensor([4, 1, 3]), keys.key(0)).run(Echo().say, shared, a=torch.tensor([4.0, 1.0, 3.0]))
    two = engine.cohort(torch.tensor([3, 4]), keys.key(1)).run(Echo().say, shared, a=torch.tensor([30.0, 40.0]))
    mine, theirs = one.join(two, "sum")
    assert mine.ids.tolist() == [4, 3] and mine["sum"].tolist() == [4.0, 3.0] and theirs.tolist() == [40.0, 30.0]
    assert mine.cohort.ids.tolist() == [4, 3]


def test_errors_name_the_procedure_and_the_client() -> None:
    cohort = Serial(TASK_SMALL, POPULATION).cohort(torch.tensor([5, 9, 2]), keys.key(0))
    with pytest.raises(ClientError, match=r"Echo\.fail failed on client 9: ValueError: on purpose"):
        cohort.run(Echo().fail, which=torch.tensor([0.0, 1.0, 1.0]))
    with pytest.raises(TypeError, match="@on_client"):
        cohort.run(Echo().unmarked)
    with pytest.raises(ValueError, match="which=2 rows"):
        cohort.run(Echo().fail, which=torch.zeros(2))


def test_nobody_answers() -> None:
    engine = Flaky(Serial(TASK_SMALL, POPULATION), 1.0)
    with pytest.raises(NoReplies, match=r"Echo\.count"):
        engine.cohort(torch.arange(3), keys.key(0)).run(Echo().count)
    assert engine.states() == {}


def test_logs_are_shared_by_a_cohort_and_its_parts() -> None:
    cohort: Cohort = Serial(TASK_SMALL, POPULATION).cohort(torch.arange(4), keys.key(0))
    cohort.only(torch.tensor([1])).log(gap=0.5)
    assert cohort.logged == {"gap": 0.5}


def test_scores_agree_between_engines_and_with_a_plain_loop() -> None:
    models = TASK_SMALL.init_stack(keys.key(4), 3)
    ids, index = torch.arange(14), torch.arange(14) % 3
    scores = [make(TASK_SMALL, POPULATION).score(models, index, ids) for make in (Serial, Stacked)]
    assert_close({"s": scores[0]}, {"s": scores[1]}, "scores")
    for i in range(14):
        x, y = POPULATION.test.of(i)
        logits = TASK_SMALL.logits({n: t[int(index[i])] for n, t in models.items()}, x)
        right = int((logits.argmax(1) == y).sum())
        loss = float(nn.functional.cross_entropy(logits, y, reduction="sum"))
        assert scores[0][i].tolist() == pytest.approx([right, loss, len(y)], rel=1e-5)


def test_populations_refuse_what_does_not_fit() -> None:
    shards = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))])
    two = Shards.from_parts([(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))] * 2)
    with pytest.raises(ValueError, match="should equal"):
        Population(shards, two, 1, 2)
    with pytest.raises(ValueError, match="one per client"):
        Population(shards, shards, 1, 2, truth=torch.tensor([0, 1]))
