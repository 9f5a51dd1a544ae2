"""The proximal term that keeps local training near the model it began with."""

from __future__ import annotations

from clusterfl.client import Batch, Client
from clusterfl.parts.local import Gradient, gradient
from clusterfl.tree import Tree


def proximal(anchor: Tree, strength: float, grad: Gradient = gradient) -> Gradient:
    """The gradient of ``loss + strength / 2 * |theta - anchor|^2``; at 0 it is ``grad`` itself."""
    if not strength:
        return grad

    def pulled(me: Client, theta: Tree, batch: Batch) -> Tree:
        return {n: g + strength * (theta[n] - anchor[n]) for n, g in grad(me, theta, batch).items()}

    return pulled
