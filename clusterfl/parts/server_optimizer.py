"""Server steps: from the old models towards what the clients' models say."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.parts.adam import moments
from clusterfl.tree import Tree


def towards(old: Tree, target: Tree, rate: float) -> Tree:
    """``old + rate * (target - old)``; at a rate of 1 it is ``target``, bit for bit."""
    if rate == 1.0:
        return target
    return {n: old[n] + rate * (t - old[n]) if t.is_floating_point() else t for n, t in target.items()}


def only_where(alive: Tensor, new: Tree, old: Tree) -> Tree:
    """Rows of ``new`` where ``alive``, of ``old`` elsewhere."""
    return {n: torch.where(alive.reshape(-1, *([1] * (t.dim() - 1))), t, old[n]) for n, t in new.items()}


def no_moments(models: Tree, names: tuple[str, ...]) -> Tree:
    """Moments before the first step."""
    return {n: torch.zeros_like(models[n]) for n in names}


def adam_towards(
    old: Tree,
    target: Tree,
    first: Tree,
    second: Tree,
    steps: Tensor,
    rate: float,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-4,
) -> tuple[Tree, Tree, Tree]:
    """One step on stacks ``[K]``, with ``target - old`` as the downhill direction: new models and moments.

    ``first`` and ``second`` are the moments and name the parameters that move; ``steps`` ``[K]`` counts this
    step already. Buffers are taken from ``target``.
    """
    first, second = moments(first, second, {n: target[n] - old[n] for n in first}, beta1, beta2)
    new = dict(target)
    for n, m in first.items():
        t = steps.clamp(min=1).to(m.dtype).reshape(-1, *([1] * (m.dim() - 1)))
        speed = (second[n] / (1.0 - beta2**t)).sqrt() + eps
        new[n] = old[n] + rate * (m / (1.0 - beta1**t)) / speed
    return new, first, second
