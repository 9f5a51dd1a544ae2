"""One model out of many that withstands lying clients.

A stack ``[m]`` of client models goes in, one model comes out. Every client counts once: the sizes that clients
declare are not trusted. Tolerance is per cluster: a cluster of three withstands nobody.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from clusterfl.tree import Tree, flat, rows, take

_NUMPY = (torch.float32, torch.float64)


def liars(share: float, n: int) -> int:
    """The most liars among ``n`` clients if their share is at most ``share``."""
    return int(share * n + 1e-9)


def median(models: Tree) -> Tree:
    """The median of every coordinate, halfway between the middle two where their number is even."""
    m = rows(models)
    return _by_coordinate(models, lambda ordered: (ordered[(m - 1) // 2] + ordered[m // 2]) / 2)


def trimmed_mean(models: Tree, cut: int) -> Tree:
    """The mean of every coordinate without its ``cut`` smallest and ``cut`` largest values (Yin et al., 2018)."""
    m = rows(models)
    if not 0 <= 2 * cut < m:
        raise ValueError(f"cut={cut} should be at least 0 and below half of the {m} clients")
    return _by_coordinate(models, lambda ordered: ordered[cut : m - cut].mean(dim=0))


def most_central(models: Tree, f: int, keep: int = 1) -> Tree:
    """Krum's choice (Blanchard et al., 2017): the ``keep`` models whose n - f - 2 nearest others are nearest to them.

    A stack in client order; ties go to the first client.
    """
    n = rows(models)
    if f < 0 or n < 2 * f + 3:
        raise ValueError(f"f={f} should be at least 0 with n >= 2f + 3 clients, and there are n={n}")
    if not 1 <= keep <= n - f:
        raise ValueError(f"keep={keep} should be at least 1 and at most n - f = {n - f}")
    points = flat(models).double()
    # not by the expansion of |a - b|^2, which cancels; a model that is not finite is far from everybody
    squares = torch.stack([(points - p).square().sum(dim=1) for p in points]).nan_to_num(nan=torch.inf)
    scores = squares.fill_diagonal_(torch.inf).sort(dim=1).values[:, : n - f - 2].sum(dim=1)
    best = scores.argsort(stable=True)[:keep]
    return take(models, best.sort().values)


def _by_coordinate(models: Tree, f: Callable[[Tensor], Tensor]) -> Tree:
    """``f`` on the ordered values of floating tensors (NaN goes last); integer buffers are the last client's."""
    return {n: f(_ordered(t)) if t.is_floating_point() else t[-1] for n, t in models.items()}


def _ordered(values: Tensor) -> Tensor:
    """Along the first axis. NumPy's, which does not keep where each came from, takes an eighth of torch's time."""
    return torch.from_numpy(np.sort(values.numpy(), axis=0)) if values.dtype in _NUMPY else values.sort(dim=0).values
