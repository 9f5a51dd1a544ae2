"""The proximal term that keeps local training near the model it began with."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterfl.client import Batch, Client
from clusterfl.parts.local import Gradient, gradient
from clusterfl.tree import Tree


def proximal(anchor: Tree, strength: float | Tensor, grad: Gradient = gradient) -> Gradient:
    """The gradient of ``loss + strength / 2 * |theta - anchor|^2``; at 0 it is ``grad`` itself.

    A tensor is a strength of the client's own.
    """
    if not isinstance(strength, Tensor) and not strength:
        return grad

    def pulled(me: Client, theta: Tree, batch: Batch) -> Tree:
        got = grad(me, theta, batch)
        if me.stacked:
            return {n: g + strength * (theta[n] - anchor[n]) for n, g in got.items()}
        off = torch._foreach_sub([theta[n] for n in got], [anchor[n] for n in got])
        return dict(zip(got, torch._foreach_add(list(got.values()), off, alpha=float(strength)), strict=True))

    pulled.__reads_once__ = grad is gradient  # type: ignore[attr-defined]
    return pulled
