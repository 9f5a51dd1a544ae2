"""MD-ICFL's generator: shapes, stacked like a loop, and it can be taught a label."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from clusterfl import keys
from clusterfl.errors import ConfigError
from clusterfl.models import Generator
from clusterfl.tree import Tree, row

KEY = keys.key(3)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (60,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    generator = Generator(shape, 10)
    theta = generator.init(KEY)
    images = generator.forward(theta, keys.normal(KEY, 20, 16), torch.eye(10).repeat(2, 1))
    assert images.shape == (20, *shape)
    assert 0.3 < images.std() < 3
    assert generator.sample(theta, KEY, 5).shape == (10, 5, *shape)


def test_sample_is_one_batch_in_class_order() -> None:
    generator = Generator((4,), 3, hidden=8)
    theta = generator.init(KEY)
    onehot = F.one_hot(torch.tensor([0, 0, 1, 1, 2, 2]), 3).float()
    images = generator.forward(theta, keys.normal(KEY, 6, 16), onehot)
    assert torch.equal(generator.sample(theta, KEY, 2).reshape(6, 4), images)


def test_stacked_equals_a_loop() -> None:
    generator, clusters = Generator((1, 4, 4), 3, hidden=16), 3
    each = keys.split(KEY, clusters)
    thetas = vmap(generator.init)(each)
    assert all(t.is_contiguous() for t in thetas.values())
    noise, onehot = keys.normal(KEY, clusters, 6, 16), torch.eye(3).repeat(2, 1)

    def loss(theta: Tree, noise: Tensor) -> Tensor:
        return generator.forward(theta, noise, onehot).square().mean()

    images = vmap(generator.forward, in_dims=(0, 0, None))(thetas, noise, onehot)
    gradient = vmap(grad(loss))(thetas, noise)
    samples = vmap(lambda theta, key: generator.sample(theta, key, 4))(thetas, each)
    for i in range(clusters):
        theta = generator.init(each[i])
        for name, t in theta.items():
            assert torch.equal(thetas[name][i], t)
        torch.testing.assert_close(images[i], generator.forward(theta, noise[i], onehot))
        torch.testing.assert_close(row(gradient, i), grad(loss)(theta, noise[i]), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(samples[i], generator.sample(theta, each[i], 4))


def test_learns_labels_from_a_fixed_model() -> None:
    generator = Generator((8,), 4, hidden=32)
    model = keys.normal(keys.fold_in(KEY, "model"), 4, 8)
    theta = {name: t.requires_grad_() for name, t in generator.init(KEY).items()}
    optimiser = torch.optim.Adam(theta.values(), lr=0.01)
    for step in range(60):
        k = keys.fold_in(KEY, step)
        y = keys.randint(keys.fold_in(k, "y"), 4, 50)
        images = generator.forward(theta, keys.normal(k, 50, 16), F.one_hot(y, 4).float())
        optimiser.zero_grad()
        F.cross_entropy(images @ model.T, y).backward()
        optimiser.step()
    guessed = (generator.sample(theta, KEY, 10) @ model.T).argmax(-1)
    assert (guessed == torch.arange(4)[:, None]).float().mean() > 0.95


def test_errors() -> None:
    with pytest.raises(ConfigError, match="noise=0 should be at least 1"):
        Generator((4,), 3, noise=0)
    with pytest.raises(ConfigError, match="should be whole numbers above 0"):
        Generator((), 3)
