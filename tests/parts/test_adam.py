"""Adam against PyTorch's own."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl import keys
from clusterfl.parts.adam import adam, gradient_of
from clusterfl.tree import Tree

KEY = keys.key(5)


def test_adam_is_torch_adam() -> None:
    target = keys.normal(KEY, 7)

    def value(tree: Tree) -> Tensor:
        return (tree["a"] - target).square().sum() + tree["b"].abs().pow(1.5).sum()

    start = {"a": torch.zeros(7), "b": keys.normal(keys.fold_in(KEY, 1), 2, 2)}
    leaves = {n: t.clone().requires_grad_() for n, t in start.items()}
    theirs = torch.optim.Adam(leaves.values(), lr=0.05)
    for _ in range(30):
        theirs.zero_grad()
        value(leaves).backward()
        theirs.step()
    mine = adam(lambda tree, _: gradient_of(value, tree, stacked=False), start, 30, 0.05)
    functional = adam(lambda tree, _: gradient_of(value, tree, stacked=True), start, 30, 0.05)
    for name, leaf in leaves.items():
        torch.testing.assert_close(mine[name], leaf.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(functional[name], mine[name], rtol=1e-5, atol=1e-6)
