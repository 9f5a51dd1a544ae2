"""Adam (Kingma and Ba, 2015) in plain tensors, so that it runs under ``vmap`` and over stacks of models: a search
for many steps with one rate. Its server step is in server_optimizer.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from clusterfl.tree import Tree


def moments(first: Tree, second: Tree, g: Tree, beta1: float, beta2: float) -> tuple[Tree, Tree]:
    """The running means of a gradient and of its square, one step on; ``first`` names what moves."""
    first = {n: m * beta1 + g[n] * (1.0 - beta1) for n, m in first.items()}
    second = {n: v * beta2 + g[n].square() * (1.0 - beta2) for n, v in second.items()}
    return first, second


def adam(
    gradient: Callable[[Tree, int], Tree], start: Tree, steps: int, lr: float, betas: tuple[float, float] = (0.9, 0.999)
) -> Tree:
    """``start`` after some steps down; step numbers begin at 1."""
    x = start
    first: Tree = {}
    second: Tree = {}
    for step in range(1, steps + 1):
        g = gradient(x, step)
        rate, root = lr / (1.0 - betas[0] ** step), (1.0 - betas[1] ** step) ** 0.5
        if step == 1:  # makes the copies (and, under vmap, gives them the client axis); then all is in place
            nothing = {n: torch.zeros_like(t) for n, t in x.items()}
            first, second = moments(nothing, nothing, g, *betas)
            x = {n: t - rate * first[n] / (second[n].sqrt() / root + 1e-8) for n, t in x.items()}
            continue
        for n, t in x.items():
            first[n].mul_(betas[0]).add_(g[n], alpha=1.0 - betas[0])
            second[n].mul_(betas[1]).add_(g[n].square(), alpha=1.0 - betas[1])
            # vmap has no rule for addcdiv_
            t.sub_(second[n].sqrt().div_(root).add_(1e-8).reciprocal_().mul_(first[n]), alpha=rate)
    return x


def gradient_of(value: Callable[[Tree], Tensor], at: Tree, *, stacked: bool) -> Tree:
    """The gradient of a scalar function of a tree, inside ``vmap`` (``stacked``) or outside."""
    if stacked:
        functional: Tree = torch.func.grad(value)(at)
        return functional
    leaves = {n: t.detach().requires_grad_() for n, t in at.items()}
    with torch.enable_grad():
        grads = torch.autograd.grad(value(leaves), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))
