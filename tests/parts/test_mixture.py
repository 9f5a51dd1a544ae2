"""EM on a client: against the authors' code and autograd."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.client import Client, Shard
from clusterfl.engines import Serial, Stacked
from clusterfl.parts.local import SGD, losses, sgd
from clusterfl.parts.mixture import e_step, fit_pi, m_step, sample_losses, train_mixture
from clusterfl.task import Task
from clusterfl.testing.small import small_population, small_task
from clusterfl.tree import row

from ..helpers import batch_norm_task

LOSSES = 4.0 * keys.uniform(keys.key(3), 3, 5)
# `MixtureClient.update_sample_weights` and `update_learners_weights` of omarfoq/FedEM, client.py, on LOSSES from
# learners_weights (.5, .3, .2)
Q = [
    [0.147926, 0.383949, 0.681660, 0.143297, 0.105943],
    [0.143925, 0.050442, 0.158269, 0.428539, 0.086193],
    [0.708149, 0.565609, 0.160071, 0.428164, 0.807864],
]
PI = [0.292555, 0.173474, 0.533971]


def client(i: int = 0, task: Task | None = None, *, padding: int = 0) -> Client:
    x, y = small_population().train.of(i)
    rows = torch.cat([torch.arange(len(y)), torch.zeros(padding, dtype=torch.int64)])
    shard = Shard(x, y, rows, len(y), ragged=padding > 0)
    return Client(task or small_task(), shard, shard, keys.key(9), smallest=len(y))


def test_one_step_of_em_is_the_authors() -> None:
    q = e_step(torch.tensor([0.5, 0.3, 0.2]), LOSSES)
    torch.testing.assert_close(q, torch.tensor(Q), atol=1e-5, rtol=0.0)
    rows = torch.arange(5)
    shard = Shard(torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64), rows, 5)
    me = Client(small_task(), shard, shard, keys.key(0), smallest=5)
    torch.testing.assert_close(m_step(me, q), torch.tensor(PI), atol=1e-5, rtol=0.0)


def test_padding_counts_for_nothing() -> None:
    centers = small_task().init_stack(keys.key(1), 3)
    plain, padded = (fit_pi(me, sample_losses(me, centers), 4) for me in (client(), client(padding=3)))
    torch.testing.assert_close(plain, padded)
    assert float(plain.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("padding", [0, 3])
def test_without_samples_all_models_count_alike(padding: int) -> None:
    """A client that holds test data alone: by itself, and padded in a stack of clients that hold more."""
    pool = small_population().train
    shard = Shard(pool.x, pool.y, torch.zeros(padding, dtype=torch.int64), 0, ragged=padding > 0)
    me, centers = Client(small_task(), shard, shard, keys.key(9), smallest=0), small_task().init_stack(keys.key(1), 4)
    found = sample_losses(me, centers)
    assert found.shape == (4, padding)
    torch.testing.assert_close(fit_pi(me, found, 3), torch.full((4,), 0.25))


@pytest.mark.parametrize("task", [small_task(), batch_norm_task()])
def test_sample_losses_are_those_whose_mean_is_the_loss(task: Task) -> None:
    me, centers = client(task=task), task.init_stack(keys.key(1), 3)
    torch.testing.assert_close(sample_losses(me, centers).mean(dim=1), losses(me, centers))


@pytest.mark.parametrize("padding", [0, 3])
def test_a_step_descends_the_weighted_loss(padding: int) -> None:
    """One batch of everything: ``theta - lr * grad(mean(q * loss))``, by autograd (FedEM's Learner.fit_batch)."""
    me, task = client(padding=padding), small_task()
    n, centers = int(me.train.n), task.init_stack(keys.key(1), 2)
    q = e_step(torch.tensor([0.5, 0.5]), sample_losses(me, centers))
    got = train_mixture(me, centers, q, SGD(lr=0.3, batch=64))
    for k in range(2):
        theta = {name: t.clone().requires_grad_() for name, t in row(centers, k).items()}
        logits = task.logits(theta, me.train.x[:n])
        (task.per_sample(logits, me.train.y[:n]) * q[k, :n]).mean().backward()  # type: ignore[no-untyped-call]
        for name, t in theta.items():
            torch.testing.assert_close(got[name][k], t.detach() - 0.3 * t.grad)


def test_weights_stay_with_their_samples_however_these_are_shuffled() -> None:
    """With a weight of 0 or 1, training is that on the samples of weight 1 alone, in steps shortened by their share."""
    me, task = client(), small_task()
    centers = task.init_stack(keys.key(1), 2)
    first = (torch.arange(int(me.train.n)) < 12).float()
    got = train_mixture(me, centers, torch.stack([first, 1.0 - first]), SGD(lr=0.2, batch=64, epochs=2))
    half = Shard(me.train.pool_x, me.train.pool_y, torch.arange(12), 12)
    alone = Client(task, half, half, me.key, smallest=12)
    expected = sgd(alone, row(centers, 0), SGD(lr=0.2 * 12 / int(me.train.n), batch=64, epochs=2))
    for name, t in expected.items():
        torch.testing.assert_close(got[name][0], t)


def test_the_same_stacked_or_not() -> None:
    from clusterfl.methods import FedEM

    task, population = batch_norm_task(0.0), small_population(ragged=False)
    method, centers = FedEM(k=2, local=SGD(batch=10, steps=3)), task.init_stack(keys.key(2), 2)
    serial, stacked = (
        e(task, population).cohort(torch.arange(6), keys.key(3)).run(method.weigh_and_train, {"centers": centers})
        for e in (Serial, Stacked)
    )
    for name, t in serial["theta"].items():
        torch.testing.assert_close(t, stacked["theta"][name], atol=1e-5, rtol=1e-4)
