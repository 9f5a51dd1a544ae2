"""Neuron matching: permuted networks are put back in order, and permuting never changes the function."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.models import build_model
from clusterfl.parts.match import Layer, chain, matched, orders, permuted
from clusterfl.task import Task
from clusterfl.tree import Tree, map_floats

MODELS = {
    "mlp": ((1, 8, 8), {"widths": (32, 20)}),
    "lenet": ((1, 28, 28), {}),
    "cnn": ((3, 12, 12), {"hidden": 30, "width": 0.5}),
    "awcnn": ((1, 12, 12), {"dropout": 0.5}),
    "conv18": ((3, 16, 16), {"width": 0.1}),
    "mclr": ((1, 8, 8), {}),
}


def made(name: str) -> tuple[Task, Tree, Tensor]:
    shape, params = MODELS[name]
    task = Task(build_model(name, shape, 10, **params), 10)
    theta = task.init(keys.key(1))
    # batch norms start alike in every channel, which would hide a channel in the wrong place
    noise = {n: keys.uniform(keys.fold_in(keys.key(2), n), *t.shape) for n, t in theta.items()}
    theta = map_floats(lambda t, u: t + 0.1 * u, theta, noise)
    return task, theta, keys.normal(keys.key(3), 5, *shape)


def random_orders(layers: list[Layer], seed: int) -> list[Tensor]:
    return [keys.permutation(keys.fold_in(keys.key(seed), i), layer.neurons) for i, layer in enumerate(layers[:-1])]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [4, 5])
def test_a_permuted_copy_is_the_same_function_and_matches_back(name: str, seed: int) -> None:
    task, theta, x = made(name)
    layers = chain(task)
    other = permuted(layers, theta, random_orders(layers, seed))
    if len(layers) > 1:
        assert not all(torch.equal(other[n], t) for n, t in theta.items())
    torch.testing.assert_close(task.logits(other, x), task.logits(theta, x), rtol=1e-4, atol=1e-5)
    back = matched(layers, other, theta)
    assert all(torch.equal(back[n], t) for n, t in theta.items())


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_matching_survives_noise(name: str) -> None:
    """A trained copy differs from its centre by less than neurons differ from each other."""
    task, theta, _ = made(name)
    layers = chain(task)
    noise = {n: keys.normal(keys.fold_in(keys.key(6), n), *t.shape) for n, t in theta.items()}
    near = map_floats(lambda t, u: t + 0.01 * u, theta, noise)
    by = random_orders(layers, 7)
    back = matched(layers, permuted(layers, near, by), theta)
    assert all(torch.equal(back[n], t) for n, t in near.items())


def test_aligned_networks_stay_as_they_are() -> None:
    task, theta, _ = made("mlp")
    layers = chain(task)
    assert all(torch.equal(o, torch.arange(len(o))) for o in orders(layers, theta, theta))
    back = matched(layers, theta, theta)
    assert all(torch.equal(back[n], t) for n, t in theta.items())


def test_the_first_layer_is_matched_best_of_all_orders() -> None:
    """Hungarian against every permutation of a small layer."""
    task = Task(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), 2)
    a, b = task.init(keys.key(8)), task.init(keys.key(9))
    rows = [torch.cat([t["0.weight"], t["0.bias"].unsqueeze(1)], 1) for t in (a, b)]
    best = min(permutations(range(5)), key=lambda p: float((rows[0][list(p)] - rows[1]).square().sum()))
    assert orders(chain(task), a, b)[0].tolist() == list(best)


def test_chain_names_what_goes_with_each_layer() -> None:
    layers = chain(Task(build_model("conv18", (3, 16, 16), 10, width=0.1), 10))
    assert len(layers) == 18
    assert layers[0].weight == "encoder.conv1.conv.weight"
    assert {n.rsplit(".", 1)[1] for n in layers[0].along} == {"weight", "bias", "running_mean", "running_var"}
    assert layers[-1].along == ["head.bias"]


@pytest.mark.parametrize(("name", "block"), [("resnet18", "Block"), ("mobilenetv2", "Bottleneck")])
def test_residual_nets_are_refused_by_name(name: str, block: str) -> None:
    task = Task(build_model(name, (3, 16, 16), 10, width=0.1), 10)
    with pytest.raises(ValueError, match=rf"model=Classifier with a {block} at 'encoder.stage1.0' should be a plain"):
        chain(task)


def test_a_module_of_ones_own_is_refused_by_name() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)

    with pytest.raises(ValueError, match="model=Mine with a Mine at 'its root'"):
        chain(Task(Mine(), 2))
