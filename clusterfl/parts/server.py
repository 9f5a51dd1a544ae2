"""Server steps: from the old models towards what the clients' models say."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.tree import Tree


def towards(old: Tree, target: Tree, rate: float) -> Tree:
    """``old + rate * (target - old)``; at a rate of 1 it is ``target``, bit for bit."""
    if rate == 1.0:
        return target
    return {n: old[n] + rate * (t - old[n]) if t.is_floating_point() else t for n, t in target.items()}


def only_where(alive: Tensor, new: Tree, old: Tree) -> Tree:
    """Rows of ``new`` where ``alive``, of ``old`` elsewhere."""
    return {n: torch.where(alive.reshape(-1, *([1] * (t.dim() - 1))), t, old[n]) for n, t in new.items()}


def zeros(models: Tree, names: tuple[str, ...]) -> Tree:
    """Moments before the first step."""
    return {n: torch.zeros_like(models[n]) for n in names}
