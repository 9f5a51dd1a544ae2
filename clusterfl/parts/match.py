"""Neuron matching: the order of neurons that brings one network nearest to another, layer by layer.

A network computes the same function in any order of its hidden neurons, so that two of them may have to be
put in order before their mean makes sense (Yurochkin et al., 2019; Wang et al., 2020). The width stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clusterfl.models.dropout import KeyedDropout
from clusterfl.models.layers import Classifier
from clusterfl.task import Task
from clusterfl.tree import Tree

_WEIGHTED = nn.Linear | nn.Conv1d | nn.Conv2d
_NORMS = nn.BatchNorm1d | nn.BatchNorm2d
_PER_NEURON = (  # layers that treat every neuron or channel alike and apart from the others
    *(nn.Identity, nn.Flatten, nn.Dropout, KeyedDropout),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
)


@dataclass
class Layer:
    """A dense layer or a convolution, and all that goes with the order of its neurons."""

    neurons: int
    weight: str
    along: list[str]  # its bias, and the batch norm after it: one entry (or block of entries) per neuron


def chain(task: Task) -> list[Layer]:
    """The layers of a plain feed-forward network, in order."""
    found: list[Layer] = []
    _follow(task.module, "", found, type(task.module).__name__)
    if len(found) < 1:
        raise ValueError("model should have a dense layer or a convolution to be matched")
    return found


def _follow(module: nn.Module, name: str, found: list[Layer], model: str) -> None:
    own = [f"{name}.{n}" if name else n for n, _ in [*module.named_parameters(), *module.named_buffers()]]
    if isinstance(module, nn.Sequential | Classifier):
        for child, part in module.named_children():
            _follow(part, f"{name}.{child}" if name else child, found, model)
    elif isinstance(module, _WEIGHTED) and getattr(module, "groups", 1) == 1:
        weight, *bias = own
        found.append(Layer(module.weight.shape[0], weight, bias))
    elif isinstance(module, _NORMS):
        if found:  # one before the first layer is tied to the inputs, whose order is given
            found[-1].along += [n for n in own if not n.endswith("num_batches_tracked")]
    elif not isinstance(module, _PER_NEURON):
        raise ValueError(
            f"model={model} with a {type(module).__name__} at {name or 'its root'!r} should be a plain sequence of "
            "dense layers and convolutions to be matched, as mlp, lenet and cnn are"
        )


def orders(layers: list[Layer], theta: Tree, target: Tree) -> list[Tensor]:
    """For every layer but the last: which neuron of ``theta`` belongs at each place of ``target``.

    Each layer is matched by its incoming weights and bias, after its inputs have been put in order.
    """
    from scipy.optimize import linear_sum_assignment  # here, so that nodes start without SciPy

    found: list[Tensor] = []
    for layer in layers[:-1]:
        mine = {**theta, layer.weight: _inputs(theta[layer.weight], found[-1])} if found else theta
        # the squared distance's own parts |a|^2 and |b|^2 are in every matching's sum: the best has most overlap
        overlap = _incoming(layer, target) @ _incoming(layer, mine).T
        _, order = linear_sum_assignment(overlap.numpy(), maximize=True)
        found.append(torch.as_tensor(order, dtype=torch.int64))
    return found


def _incoming(layer: Layer, theta: Tree) -> Tensor:
    """One row per neuron, in float64: its weights, and its bias if it has one."""
    bias = layer.weight.removesuffix("weight") + "bias"
    names = [layer.weight, bias] if bias in layer.along else [layer.weight]
    return torch.cat([theta[n].reshape(layer.neurons, -1) for n in names], dim=1).double()


def _inputs(weight: Tensor, order: Tensor) -> Tensor:
    """Incoming weights in another order of the neurons before; after a flatten each one is a block of inputs."""
    return weight.reshape(weight.shape[0], len(order), -1)[:, order].reshape(weight.shape)


def permuted(layers: list[Layer], theta: Tree, by: list[Tensor]) -> Tree:
    """The same function, with the hidden neurons of every layer in another order."""
    out = dict(theta)
    for layer, after, order in zip(layers[:-1], layers[1:], by, strict=True):
        for name in (layer.weight, *layer.along):
            t = out[name]
            out[name] = t.reshape(layer.neurons, -1)[order].reshape(t.shape)
        out[after.weight] = _inputs(out[after.weight], order)
    return out


def matched(layers: list[Layer], theta: Tree, target: Tree) -> Tree:
    """``theta`` with its neurons in the order that matches ``target``."""
    return permuted(layers, theta, orders(layers, theta, target))
