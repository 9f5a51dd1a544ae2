"""A client as its procedures see it: batches, shards, what it keeps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

from clusterfl import keys
from clusterfl.client import Batch, Client, Shard
from clusterfl.engines import Serial, Stacked
from clusterfl.methods import FedAvg
from clusterfl.parts.local import SGD
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close
from clusterfl.testing.small import play, small_population, small_task

TASK = Task(nn.Linear(1, 2), 2)


def client(n: int, key: Tensor) -> Client:
    """Sample j is the number j."""
    x = torch.arange(float(n)).unsqueeze(1)
    shard = Shard(x, torch.arange(n), torch.arange(n), n)
    return Client(TASK, shard, shard, key, smallest=n)


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
        me = Client(TASK, shard, shard, key, stacked=True, smallest=min(sizes))
        return [(b.y, b.w, b.key) for b in me.batches(size=size, **mode) if b.w is not None]

    got = vmap(stacked)(many, rows, torch.tensor(sizes))
    for i, n in enumerate(sizes):
        mine = [(y[i][w[i] > 0].tolist(), int(k[i])) for y, w, k in got if bool((w[i] > 0).any())]
        assert mine == [(numbers(b), int(b.key)) for b in client(n, many[i]).batches(size=size, **mode)]


def test_a_batch_above_the_clients_sizes_costs_no_memory_of_its_own() -> None:
    """Stacked, with steps: batches are as long as the longest shard, not as the batch that was asked for."""
    sizes, size = (30, 45, 37), 20_000
    longest = max(sizes)
    x = torch.arange(float(longest)).unsqueeze(1)
    rows = torch.stack([torch.where(torch.arange(longest) < n, torch.arange(longest), 0) for n in sizes])
    lengths: list[int] = []

    def stacked(key: Tensor, mine: Tensor, n: Tensor) -> list[tuple[Tensor, Tensor]]:
        shard = Shard(x, torch.arange(longest), mine, n, ragged=True)
        found = list(Client(TASK, shard, shard, key, stacked=True, smallest=min(sizes)).batches(size=size, steps=3))
        lengths.extend(length for b in found if b.w is not None for length in (len(b.x), len(b.y), len(b.w)))
        return [(b.y, b.w) for b in found if b.w is not None]

    many = keys.split(keys.key(3), len(sizes))
    got = vmap(stacked)(many, rows, torch.tensor(sizes))
    assert lengths == [longest] * 9
    for i, n in enumerate(sizes):
        mine = [y[i][w[i] > 0].tolist() for y, w in got]
        assert mine == [numbers(b) for b in client(n, many[i]).batches(size=size, steps=3)]


def test_a_huge_batch_trains_stacked_as_serial() -> None:
    method = FedAvg(local=SGD(lr=0.1, batch=20_000, steps=3))
    serial, stacked = (play(method, make(small_task(), small_population())) for make in (Serial, Stacked))
    assert_close(serial, stacked, "a batch above every client's size")


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
