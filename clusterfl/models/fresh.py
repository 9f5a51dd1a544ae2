"""Fresh weights of any module: PyTorch's default distributions, drawn from a key."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from clusterfl import keys
from clusterfl.keys import Key
from clusterfl.tree import Tree


def fresh_weights(module: nn.Module, key: Key) -> Tree:
    """Parameters and buffers by name; each parameter has a key of its own, folded from its name."""
    tree: Tree = {}
    for prefix, part in module.named_modules():
        for name, p in part.named_parameters(prefix, recurse=False):
            tree[name] = _fresh(part, p.detach(), keys.fold_in(key, name))
    for name, buffer in module.named_buffers():
        tree[name] = _fresh_buffer(name, buffer.detach())
    return tree


def _fresh(module: nn.Module, p: Tensor, key: Key) -> Tensor:
    """One parameter as its layer's ``reset_parameters`` would draw it."""
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        weight = module.weight
        fan_in = weight[0].numel() if weight.dim() > 1 else weight.numel()
        bound = 1.0 / math.sqrt(max(fan_in, 1))
        if p.dim() > 1:  # a layer may ask for a wider start (He's, in the library's deep MLPs)
            bound *= float(getattr(module, "gain", 1.0))
        return (keys.uniform(key, *p.shape) * 2.0 - 1.0) * bound
    if isinstance(module, nn.Embedding):
        return keys.normal(key, *p.shape)
    if isinstance(module, nn.RNNBase):
        bound = 1.0 / math.sqrt(max(module.hidden_size, 1))
        return (keys.uniform(key, *p.shape) * 2.0 - 1.0) * bound
    # Norm layers start at ones and zeros, which the template holds; so does any layer unknown to us.
    return p.clone()


def _fresh_buffer(name: str, buffer: Tensor) -> Tensor:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "running_mean" or leaf == "num_batches_tracked":
        return torch.zeros_like(buffer)
    return torch.ones_like(buffer) if leaf == "running_var" else buffer.clone()
