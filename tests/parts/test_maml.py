"""MAML's gradients: against torch's own second-order derivatives, alone and stacked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.client import Batch, Client, Shard
from clusterfl.parts.local import SGD, gradient, sgd
from clusterfl.parts.maml import first_order, hessian_free
from clusterfl.task import Task
from clusterfl.testing.small import CLASSES, WIDTH, small_task
from clusterfl.tree import Tree

RULE = SGD(lr=0.1, batch=8, steps=3)


def client(n: int = 24) -> Client:
    x, y = keys.normal(keys.key(1), n, WIDTH), torch.arange(n) % CLASSES
    shard = Shard(x, y, torch.arange(n), n)
    return Client(small_task(), shard, shard, keys.key(2), smallest=n)


def exact(task: Task, theta: Tree, first: Batch, batch: Batch, rate: float, *, second: bool) -> Tree:
    """The gradient of l(w - rate * grad l(w; D); D') by torch, through the inner step or past it."""
    leaves = {n: t.clone().requires_grad_() for n, t in theta.items()}
    inner = torch.autograd.grad(task.loss(leaves, first.x, first.y), list(leaves.values()), create_graph=second)
    ahead = {n: t - rate * g for (n, t), g in zip(leaves.items(), inner, strict=True)}
    grads = torch.autograd.grad(task.loss(ahead, batch.x, batch.y), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def batches(me: Client, stream: int) -> list[Batch]:
    return list(me.batches(size=RULE.batch, steps=RULE.steps, stream=stream))


@pytest.mark.parametrize("independent", [True, False])
def test_first_order_is_the_gradient_after_a_step(independent: bool) -> None:
    me = client()
    theta, grad = me.task.init(keys.key(3)), first_order(me, RULE, 0.5, independent=independent)
    firsts = batches(me, 1001) if independent else batches(me, 0)
    for first, batch in zip(firsts, batches(me, 0), strict=True):
        found, true = grad(me, theta, batch), exact(me.task, theta, first, batch, 0.5, second=False)
        assert all(torch.allclose(found[n], t, atol=1e-6) for n, t in true.items())


def test_hessian_free_is_the_exact_gradient() -> None:
    """With one batch for all three places the difference quotient is MAML's own gradient, up to delta^2."""
    me = client()
    theta = me.task.init(keys.key(4))
    batch = batches(me, 0)[0]
    true = exact(me.task, theta, batch, batch, 0.5, second=True)
    rough = exact(me.task, theta, batch, batch, 0.5, second=False)
    found = hessian_free(me, RULE, 0.5, delta=1e-2, independent=False)(me, theta, batch)
    error = max(float((found[n] - t).abs().max()) for n, t in true.items())
    gap = max(float((rough[n] - t).abs().max()) for n, t in true.items())
    assert error < 0.02 * gap


def test_the_three_batches_are_drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    me = client()
    seen: list[Tensor] = []

    def watch(me: Client, theta: Tree, batch: Batch) -> Tree:
        seen.append(batch.x)
        return gradient(me, theta, batch)

    monkeypatch.setattr("clusterfl.parts.maml.gradient", watch)
    grad = hessian_free(me, RULE, 0.1)
    grad(me, me.task.init(keys.key(5)), batches(me, 0)[0])
    inner, outer, up, down = seen
    assert torch.equal(up, down)
    assert not torch.equal(inner, outer) and not torch.equal(inner, up) and not torch.equal(outer, up)


def test_an_inner_rate_of_zero_is_plain_training() -> None:
    me = client()
    theta = me.task.init(keys.key(6))
    plain = sgd(me, theta, RULE)
    for grad in (first_order(me, RULE, 0.0), hessian_free(me, RULE, 0.0)):
        found = sgd(me, theta, RULE, grad)
        assert all(torch.equal(found[n], t) for n, t in plain.items())


def test_training_draws_as_many_inner_batches_as_steps() -> None:
    """Epochs or steps: the iterators end together, and the received weights stay as they were."""
    me = client(20)
    theta = me.task.init(keys.key(7))
    before = {n: t.clone() for n, t in theta.items()}
    for rule in (SGD(batch=8, epochs=2), SGD(batch=8, steps=7), SGD(batch=64, epochs=3)):
        after = sgd(me, theta, rule, first_order(me, rule, 0.1))
        assert not torch.equal(after["0.weight"], theta["0.weight"])
        assert all(torch.equal(theta[n], t) for n, t in before.items())


def test_the_gradient_of_a_padded_batch_is_zero() -> None:
    me = client()
    theta, batch = me.task.init(keys.key(8)), batches(me, 0)[0]
    empty = Batch(batch.x, batch.y, torch.zeros(len(batch.y)), batch.key)
    found = first_order(me, RULE, 0.1, independent=False)(me, theta, empty)
    assert all(bool((g == 0).all()) for g in found.values())
    assert any(bool((g != 0).any()) for g in gradient(me, theta, batch).values())
