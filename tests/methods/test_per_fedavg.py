"""Per-FedAvg against MAML's gradients by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from clusterfl import keys
from clusterfl.data.population import Population
from clusterfl.data.shards import Shards
from clusterfl.engines import Serial
from clusterfl.evaluate.served import evaluate
from clusterfl.evaluate.shared import score
from clusterfl.methods import FedAvg, PerFedAvg
from clusterfl.parts.local import SGD
from clusterfl.parts.start import first_net
from clusterfl.testing import check_same
from clusterfl.testing.small import play, small_population, small_task
from clusterfl.tree import Tree, vector

LOCAL = SGD(lr=0.1, batch=10, epochs=1, momentum=0.5)


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_with_no_inner_step_it_is_plain_sgd(order: str) -> None:
    check_same(PerFedAvg(LOCAL, alpha=0.0, order=order), FedAvg(LOCAL, weights="uniform"))  # type: ignore[arg-type]


def one_step(order: str, alpha: float) -> tuple[Tree, Tree, Tree]:
    """(what one step moved the start by, the start, the exact gradients): one client, all its data every time."""
    x, y = small_population().train.of(0)
    shards, task = Shards.from_parts([(x, y)]), small_task()
    method = PerFedAvg(SGD(lr=1.0, batch=1000, steps=1), alpha=alpha, order=order)  # type: ignore[arg-type]
    got = play(method, Serial(task, Population(shards, shards, 1, 3)), 1).theta
    start = first_net(task, keys.key(7))

    def loss(w: Tree) -> Tensor:
        return nn.functional.cross_entropy(functional_call(task.module, w, (x,)), y)

    def after(w: Tree) -> Tree:
        g = grad(loss)(w)
        return {n: w[n] - alpha * g[n] for n in w}

    exact = grad(loss)(after(start)) if order == "first" else grad(lambda w: loss(after(w)))(start)
    return {n: start[n] - got[n] for n in start}, start, exact


def test_first_order_gradient() -> None:
    moved, _, exact = one_step("first", 0.5)
    for n in moved:
        torch.testing.assert_close(moved[n], exact[n], rtol=1e-4, atol=1e-6)


def test_hessian_free_is_nearer_to_the_exact_gradient() -> None:
    moved, _, exact = one_step("hessian-free", 0.5)
    first, _, _ = one_step("first", 0.5)
    gap = [float((vector(g, exact) - vector(exact)).norm() / vector(exact).norm()) for g in (moved, first)]
    assert gap[0] < 0.02 < gap[1]


def test_the_personal_model_is_one_step_away() -> None:
    task, population, ids = small_task(), small_population(), torch.arange(12)
    engine, method = Serial(task, population), PerFedAvg(LOCAL, alpha=0.5)
    state = play(method, engine, rounds=5)
    served = method.serve(state, ids)
    own, before = evaluate(engine, method, served, ids, keys.key(0)), score(engine, served.models, served.index, ids)
    assert float(own.sums["loss"].sum()) < float(
        before.sums["loss"].sum()
    )  # labels differ between groups: the step helps


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="order='second' should"):
        PerFedAvg(order="second")  # type: ignore[arg-type]
