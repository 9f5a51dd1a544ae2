"""Stacks of client models for tests."""

from __future__ import annotations

import torch

from clusterfl import keys
from clusterfl.tree import Tree


def models(m: int, seed: int = 0) -> Tree:
    key = keys.key(seed)
    return {
        "a": keys.normal(keys.fold_in(key, "a"), m, 3, 2),
        "b": keys.normal(keys.fold_in(key, "b"), m, 4),
        "count": torch.arange(m),
    }
