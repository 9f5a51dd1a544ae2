"""Perceptrons without autograd: against autograd, alone and stacked."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.client import Batch
from clusterfl.data.population import Population
from clusterfl.engines.chunks import Plan
from clusterfl.engines.serial import Serial
from clusterfl.methods.fedavg import FedAvg
from clusterfl.models import build_model
from clusterfl.models.layers import dense
from clusterfl.parts import perceptron
from clusterfl.parts.local import SGD, Losses
from clusterfl.task import Task
from clusterfl.testing.compare import assert_close
from clusterfl.testing.small import Kind, play, small_population
from clusterfl.tree import row


def test_which_models_are_perceptrons() -> None:
    assert dense(build_model("mclr", (1, 4, 4), 3)) == (("head.weight", "head.bias"),)
    layers = dense(build_model("mlp", (16,), 3, widths=[5, 4]))
    assert layers == tuple((f"{n}.weight", f"{n}.bias") for n in ("encoder.fc1", "encoder.fc2", "head"))
    assert dense(nn.Linear(3, 2, bias=False)) == (("weight", None),)
    assert dense(nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))) is not None


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(),
    ],
)
def test_which_are_not(module: nn.Module) -> None:
    assert dense(module) is None


def test_frozen_parameters_hooks_and_other_losses_go_the_long_way() -> None:
    frozen, hooked = nn.Linear(3, 2), nn.Linear(3, 2)
    frozen.bias.requires_grad_(False)
    hooked.register_forward_hook(lambda *_: None)
    assert Task(frozen, 2).dense is None and Task(hooked, 2).dense is None
    assert Task(nn.Linear(3, 2), 2, lambda logits, y: logits.square().sum(dim=1)).dense is None
    assert Task(nn.Linear(3, 2), loss="mae").dense is None and Task(nn.Linear(3, 2), loss="huber").dense is None
    assert Task(nn.Linear(3, 2), 2, class_weights=[1.0, 2.0]).dense is None
    assert Task(nn.Linear(3, 2), 2).dense is not None and Task(nn.Linear(3, 2), loss="mse").dense is not None


def by_autograd(task: Task, theta: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    leaves = {n: t.clone().requires_grad_() for n, t in theta.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(task.loss(leaves, batch.x, batch.y, batch.w), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), max_size=3),
    samples=st.integers(1, 9),
    padding=st.integers(0, 4),
    weighted=st.booleans(),
    numbers=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_gradient_is_autograds(
    widths: list[int], samples: int, padding: int, weighted: bool, numbers: bool, seed: int
) -> None:
    module = build_model("mlp", (2, 3), 4, widths=widths)
    task = Task(module, loss="mse") if numbers else Task(module, 4)
    theta = task.init(keys.key(seed))
    rng = torch.Generator().manual_seed(seed)
    n = samples + (padding if weighted else 0)
    x, y = torch.randn(n, 2, 3, generator=rng), torch.randint(4, (n,), generator=rng)
    if numbers:
        y = torch.randn(n, 2, 2, generator=rng)
    w = (torch.arange(n) < samples).float() if weighted else None
    batch = Batch(x, y, w, keys.key(0))
    assert task.dense is not None
    found = perceptron.gradient(perceptron.factors(task.dense, theta, x, y, w, squared=numbers))
    assert_close(found, by_autograd(task, theta, batch), "gradient", 1e-6)


def test_a_batch_of_padding_moves_nothing() -> None:
    task = Task(build_model("mclr", (3,), 2), 2)
    theta = task.init(keys.key(0))
    before = {n: t.clone() for n, t in theta.items()}
    assert task.dense is not None
    perceptron.step(
        task.dense, theta, task.params, 0.5, torch.randn(4, 3), torch.zeros(4).long(), torch.zeros(4), squared=False
    )
    assert all(torch.equal(theta[n], t) for n, t in before.items())


def perceptron_for(population: Population, widths: list[int]) -> Task:
    shape, outputs, numbers = population.input_shape, population.outputs, population.regression
    module = build_model("mlp", shape, outputs, widths=widths, regression=numbers)
    return Task(module, loss="mse") if numbers else Task(module, outputs)


@pytest.mark.parametrize(
    "rule",
    [
        SGD(lr=0.3, batch=5, epochs=2),
        SGD(lr=0.3, batch=5, steps=4),
        SGD(lr=0.03, batch=5, epochs=2, momentum=0.9, weight_decay=0.01),
        SGD(lr=0.3, batch=5, epochs=1, clip=0.5),
    ],
)
@pytest.mark.parametrize("kind", get_args(Kind))
def test_training_is_that_of_autograd(rule: SGD, kind: Kind) -> None:
    """Clients of unequal sizes, alone and stacked, with and without the written-out steps."""
    population, ends = small_population(kind=kind), []
    for long_way in (False, True):
        for plan in (Plan(), Plan(stacked=True, chunk=4, spread=3.0)):
            task = perceptron_for(population, [7])
            if long_way:
                task.__dict__["dense"] = None
            ends.append(play(FedAvg(local=rule), Serial(task, population, plan)))
    for other in ends[1:]:
        assert_close(ends[0], other, "training", 1e-5)


@pytest.mark.parametrize("widths", [[], [5], [6, 4]])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_losses_of_many_models(widths: list[int], kind: Kind) -> None:
    """Against one model after another, on clients of unequal sizes, alone and stacked."""
    population = small_population(kind=kind)
    task, plain = perceptron_for(population, widths), perceptron_for(population, widths)
    centers, ids = task.init_stack(keys.key(3), 3), torch.arange(12)
    plain.__dict__["dense"] = None
    for plan in (Plan(), Plan(stacked=True, chunk=5, spread=4.0)):
        found, slow = (
            Serial(t, population, plan).cohort(ids, keys.key(0)).run(Losses().losses, {"centers": centers})["losses"]
            for t in (task, plain)
        )
        assert found.shape == (12, 3) and torch.allclose(found, slow, atol=1e-6)
    x, y = population.train.of(4)
    loss = nn.functional.cross_entropy if population.classes else nn.functional.mse_loss
    outputs = [task.logits(row(centers, k), x) for k in range(3)]
    by_hand = [float(loss(o if population.classes else o.squeeze(1), y)) for o in outputs]
    assert found[4].tolist() == pytest.approx(by_hand, abs=1e-6)
