"""Pseudo samples: both searches against plain computations."""

from __future__ import annotations

import pytest
import torch

from clusterfl import keys
from clusterfl.parts.adam import gradient_of
from clusterfl.parts.distances import outputs
from clusterfl.parts.pseudo import BackSearch, GeneratorSearch, Prior, search
from clusterfl.task import Task
from clusterfl.testing.small import CLASSES, small_task
from clusterfl.tree import Tree
from tests.helpers import alone

KEY = keys.key(5)


@pytest.mark.parametrize("prior", [Prior(), Prior(0.3, 0.5), Prior(0.01, -1.0, squared=True)])
def test_back_search_is_equation_6(prior: Prior) -> None:
    task = small_task()
    theta, me = task.init(KEY), alone(task, (6,))
    sampler = BackSearch(4, prior)
    start = sampler.start(me)
    assert start["x"].shape == (CLASSES, 4, 6)
    found = search(me, theta, sampler, start, 25)["x"]
    x = start["x"].clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.1)
    for _ in range(25):
        optimiser.zero_grad()
        total = torch.zeros(())
        for k in range(CLASSES):
            for n in range(4):
                distance = torch.linalg.vector_norm(x[k, n] - prior.mean)
                distance = distance.square() if prior.squared else distance
                total = total - torch.log_softmax(task.logits(theta, x[k, n : n + 1]), 1)[0, k]
                total = total + prior.penalty / 2 * distance
        total.backward()
        optimiser.step()
    torch.testing.assert_close(found, x.detach(), rtol=1e-3, atol=1e-4)


def test_the_prior_has_a_gradient_at_its_mean() -> None:
    task = small_task()
    theta, y = task.init(KEY), torch.zeros(2, dtype=torch.int64)
    at = {"x": torch.zeros(2, 6)}
    for stacked in (False, True):
        g = gradient_of(lambda tree: Prior().energy(task, theta, tree["x"], y).sum(), at, stacked=stacked)
        assert bool(torch.isfinite(g["x"]).all())


def sharp_task() -> tuple[Task, Tree]:
    """A net that is sure of its answers, as a trained one is."""
    task = small_task()
    return task, {n: 3.0 * t for n, t in task.init(KEY).items()}


def test_both_samplers_find_samples_of_every_class() -> None:
    task, theta = sharp_task()
    me = alone(task, (6,))
    for sampler, its in ((BackSearch(10, Prior()), 100), (GeneratorSearch(10, Prior(), batch=30, hidden=32), 150)):
        found = search(me, theta, sampler, sampler.start(me), its)
        x = sampler.draw(me, found)
        assert x.shape == (CLASSES, 10, 6)
        h = outputs(task, theta, x, 2)
        right = h.argmax(-1) == torch.arange(CLASSES).unsqueeze(1)
        assert float(right.float().mean()) > 0.9


def test_a_larger_penalty_keeps_samples_nearer_to_the_mean() -> None:
    task, theta = sharp_task()
    me = alone(task, (6,))
    far = []
    for penalty in (0.01, 0.1, 1.0):
        sampler = BackSearch(10, Prior(penalty, 0.5))
        x = search(me, theta, sampler, sampler.start(me), 100)["x"]
        far.append(float((x - 0.5).flatten(2).norm(dim=2).mean()))
    assert far[0] > far[1] > far[2]
