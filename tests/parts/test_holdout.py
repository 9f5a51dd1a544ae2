"""What a client sets aside for validation."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.parts.holdout import folds, hold_out
from clusterfl.testing.small import small_task


def client(n: int, round_key: int = 0) -> Client:
    x, y = keys.normal(keys.key(1), n, 6), torch.zeros(n, dtype=torch.int64)
    shard = Shard(x, y, torch.arange(n), n)
    return Client(small_task(), shard, shard, keys.key(round_key), smallest=n)


@pytest.mark.parametrize(("n", "held"), [(1, 1), (2, 1), (4, 1), (10, 2), (99, 19)])
def test_parts_share_no_sample(n: int, held: int) -> None:
    training, validation = hold_out(client(n), 0.2)
    a, b = training.train.rows.tolist(), validation.train.rows.tolist()
    assert len(b) == validation.n == held and len(a) == training.n == max(n - held, 1)
    if n > 1:
        assert sorted(a + b) == list(range(n))
    later = hold_out(client(n, round_key=5), 0.2)[1]
    assert torch.equal(later.train.rows, validation.train.rows)  # the same in every round


@pytest.mark.parametrize(("n", "most"), [(1, 5), (2, 3), (4, 2), (10, 1), (99, 1)])
def test_every_sample_is_held_out_in_its_turn(n: int, most: int) -> None:
    """Once, where parts are whole; of a few samples some several times, of 99 the four that are left over never."""
    turns = torch.zeros(n, dtype=torch.int64)
    for training, validation in folds(client(n), 0.2):
        a, b = training.train.rows.tolist(), validation.train.rows.tolist()
        assert n == 1 or sorted(a + b) == list(range(n))
        turns[b] += 1
    assert int(turns.max()) == most and int((turns == 0).sum()) == (4 if n == 99 else 0)
    first = next(iter(folds(client(n), 0.2)))[1]
    assert torch.equal(first.train.rows, hold_out(client(n), 0.2)[1].train.rows)


@pytest.mark.parametrize("fold", [0, 1, 4])
def test_ragged_shards_are_split_as_alone(fold: int) -> None:
    """In a stacked chunk a shard is padded; its parts hold the same samples as without the padding."""
    sizes, longest = torch.tensor([7, 10, 23]), 23
    x, y = keys.normal(keys.key(1), longest, 6), torch.zeros(longest, dtype=torch.int64)
    task = small_task()

    def parts(n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.where(torch.arange(longest) < n, torch.arange(longest), 0)
        me = Client(task, Shard(x, y, rows, n, True), Shard(x, y, rows, n, True), keys.key(0), smallest=7)
        a, b = hold_out(me, 0.2, fold)
        return a.train.rows, torch.as_tensor(a.n), b.train.rows, torch.as_tensor(b.n)

    got = torch.func.vmap(parts)(sizes)
    for j, n in enumerate(sizes.tolist()):
        alone = hold_out(client(n), 0.2, fold)
        for rows, count, mine in ((got[0], got[1], alone[0]), (got[2], got[3], alone[1])):
            assert int(count[j]) == mine.n
            assert torch.equal(rows[j, : int(count[j])], mine.train.rows)
