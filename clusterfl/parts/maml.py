"""MAML's gradients: of the loss after one step on the client's own data.

The exact gradient of ``g(w) = l(w - a grad l(w))`` is ``(I - a H(w)) grad l(w')`` with ``w' = w - a grad l(w)``.
First order drops the Hessian ``H``; Hessian-free takes ``H v`` from a difference of two gradients. Both are
made for one client and one call of :func:`~clusterfl.parts.local.sgd`, with the same rule and stream:

>>> sgd(me, theta, rule, first_order(me, rule, 0.01))
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterfl.client import Batch, Client
from clusterfl.parts.local import SGD, Gradient, gradient
from clusterfl.tree import Tree


def moved(theta: Tree, direction: Tree, rate: float) -> Tree:
    """``theta - rate * direction``; what has no direction (buffers) stays the same tensor."""
    return {**theta, **{n: theta[n] - rate * d for n, d in direction.items()}}


def first_order(me: Client, rule: SGD, inner_lr: float, *, independent: bool = True, stream: int = 0) -> Gradient:
    """``grad l(w'; D')`` where ``w' = w - inner_lr * grad l(w; D)``.

    ``D'`` is the batch of the step. ``D`` is drawn apart from it, or is the same batch if not ``independent``.
    """
    if not inner_lr:
        return gradient
    inner = _others(me, rule, stream, 1)

    def grad(me: Client, theta: Tree, batch: Batch) -> Tree:
        first = next(inner) if independent else batch
        return gradient(me, moved(theta, gradient(me, theta, first), inner_lr), batch)

    return grad


def hessian_free(
    me: Client,
    rule: SGD,
    inner_lr: float,
    *,
    delta: float = 1e-3,
    independent: bool = True,
    stream: int = 0,
) -> Gradient:
    """``v - inner_lr * H(w; D'') v`` with ``v`` the first-order gradient, and the product taken as
    ``(grad l(w + delta v; D'') - grad l(w - delta v; D'')) / (2 delta)``; ``D''`` is a third batch."""
    if not inner_lr:
        return gradient
    outer = first_order(me, rule, inner_lr, independent=independent, stream=stream)
    curved = _others(me, rule, stream, 2)

    def grad(me: Client, theta: Tree, batch: Batch) -> Tree:
        v = outer(me, theta, batch)
        third = next(curved) if independent else batch
        up, down = (gradient(me, moved(theta, v, sign * delta), third) for sign in (-1.0, 1.0))
        return {n: v[n] - inner_lr / (2.0 * delta) * (up[n] - down[n]) for n in v}

    return grad


def _others(me: Client, rule: SGD, stream: int, place: int) -> Iterator[Batch]:
    """As many batches as the rule's own, in an order of their own."""
    # far from the small numbers that callers give to streams of theirs
    apart = 1_000 * (stream + 1) + place
    return me.batches(size=rule.batch, epochs=rule.epochs, steps=rule.steps, stream=apart)
